"""What no model can express, and why."""

from typing import Any

import numpy as np

from jquant.errors import ModelError
from jquant.onnx.writing import kernel_types
from jquant.onnx.writing.value import is_key

_CALLS_PYTHON = "a model cannot call Python"
RANDOM = "random numbers are not supported: pass them to the function"
_KERNEL = "a kernel of one's own is not supported; call the operator with the implementation that has none"
_DEVICES = "a model runs on one device"
_REASONS = {
    "debug_callback": _CALLS_PYTHON,
    "debug_print": _CALLS_PYTHON,
    "io_callback": _CALLS_PYTHON,
    "pure_callback": _CALLS_PYTHON,
    "pallas_call": _KERNEL,
    "ffi_call": _KERNEL,
    "shard_map": _DEVICES,
    "reshard": _DEVICES,
    "psum": _DEVICES,
    "all_gather": _DEVICES,
}
_OF_PROGRAMS = frozenset({"scan", "while", "cond"})  # whose effects are those of equations inside


def check(equation: Any, *, is_folded: bool) -> None:
    """Refuses an equation that no nodes express.

    Args:
      is_folded: whether its results are computed now, as random numbers from a known key are.

    Raises:
      ModelError: the reason.
    """
    name = equation.primitive.name
    operands, results = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    if name in _REASONS:
        raise ModelError(_REASONS[name])
    is_random = name.startswith(("random_", "rng_", "threefry")) or any(is_key(aval) for aval in (*operands, *results))
    if is_random and not is_folded:
        raise ModelError(RANDOM)
    if equation.effects and name not in _OF_PROGRAMS:
        raise ModelError("it has an effect, and a model has none")
    for aval in (*operands, *results):
        if not (is_folded and is_key(aval)):
            check_type(aval)


def check_type(aval: Any) -> None:
    """Refuses an array of a type that models are not written in.

    Raises:
      ModelError: the reason.
    """
    if is_key(aval):
        raise ModelError(RANDOM)
    if not kernel_types.is_written(aval.dtype):
        advice = "; convert it to float32" if aval.dtype == np.float64 else ""
        raise ModelError(f"{aval.dtype} is not supported{advice}")
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is not None and not mesh.empty and any(part is not None for part in aval.sharding.spec):
        raise ModelError(f"it is sharded over the axes of an explicit mesh, {aval.sharding.spec}; {_DEVICES}")
