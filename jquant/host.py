"""Programs for hosts without jquant: other processes with jax, or PJRT without Python.

`jax.export` leaves jquant-native out of a program, because another machine may run it, and a process that has not imported
jquant cannot read a program whose arguments hold a `PackedMatrix`. `export` keeps the calls, for hosts that have the
library, and writes a function of arrays alone.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.export
import numpy as np
from jax.export import DisabledSafetyCheck, Exported
from jaxlib.mlir.dialects import stablehlo

from jquant.errors import HostError, shown
from jquant.kernels.native import shared_library
from jquant.lowering import partitioned

__all__ = ["HostError", "disabled_checks", "export", "native_calls", "portable_module"]

_OLDEST = "1.9.0"  # of StableHLO, in which all programs can be written that jquant's tests export


def __dir__() -> list[str]:
    return sorted(__all__)


def native_calls() -> AbstractContextManager[None]:
    """A context in which `jax.export` keeps the calls of jquant-native, for hosts that have the same library.

    For those who call `jax.export.export` themselves, with `disabled_checks`: of a function that has not been lowered
    before, because JAX keeps what it has lowered.

    >>> import jax, jax.numpy as jnp, jquant.host
    >>> a, b = jnp.ones((2, 64), jnp.int8), jnp.ones((64, 64), jnp.int8)
    >>> with jquant.host.native_calls():
    ...     program = jax.export.export(
    ...         jax.jit(lambda a, b: jquant.matmul_integer(a, b)), disabled_checks=jquant.host.disabled_checks()
    ...     )(a, b)
    """
    return partitioned.keeping_native()


def disabled_checks() -> tuple[DisabledSafetyCheck, ...]:
    """What `jax.export.export` needs as `disabled_checks`, so that it takes programs with calls of jquant-native.

    Empty where the library cannot be used: programs have no calls of it then.
    """
    return tuple(DisabledSafetyCheck.custom_call(function.target) for function in shared_library.load().functions)


def export(
    function: Callable[..., Any], *args: Any, donate_argnums: int | Iterable[int] = (), native: bool = True
) -> Exported:
    """`function` for `args`, as a program of arrays alone, for a CPU.

    Its arguments are the leaves of `args`, in the order of ``jax.tree.leaves(args)``, and its results those of the result.
    So a process that has never heard of jquant can deserialize it; the layout of packed matrices is that of this jquant.
    A compiled module takes those leaves alone whose indices are in ``module_kept_var_idx``.

    Args:
      function: any function of JAX, jitted or not.
      *args: arrays, or trees of them, such as quantized parameters; `jax.ShapeDtypeStruct` will do. Keyword arguments and
        static ones: `functools.partial`.
      donate_argnums: the positions in `args` of those whose memory the results may take, such as a cache.
      native: whether the program calls jquant-native, for a host that has the same library. It has to register the functions
        of the library, which ``jquant_functions()`` lists. Otherwise, XLA's products take their place.

    Returns:
      `jax.export.Exported`, whose ``serialize()`` is what `jax.export.deserialize` reads, and `portable_module` what PJRT
      compiles.

    Raises:
      HostError: jquant-native cannot be used here; a symbolic size, with which its calls would be left out; arguments on
        several devices; an argument that is no array, or a wrong position.

    >>> import jax, jax.numpy as jnp, jquant.host
    >>> from jquant import transform
    >>> x, params = jnp.ones((1, 64)), {"w": jnp.ones((64, 64))}
    >>> apply, packed = transform.quantize(lambda params, x: x @ params["w"], params, transform.dynamic_int8, x)
    >>> exported = jquant.host.export(apply, packed, x, native=False)  # True where jquant-native is installed
    >>> restored = jax.export.deserialize(exported.serialize())  # in another process
    >>> restored.call(*jax.tree.leaves((packed, x)))[0].shape
    (1, 64)
    """
    library = shared_library.load()
    if native and library.obstacle is not None:
        raise HostError(f"export: {library.obstacle}; native=False exports XLA's products")
    leaves, tree = jax.tree.flatten(args)
    types = [_type_of(number, leaf) for number, leaf in enumerate(leaves)]
    donated = _leaves_of(args, donate_argnums)

    def of_leaves(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

    with native_calls() if native else contextlib.nullcontext():
        jitted = jax.jit(of_leaves, donate_argnums=donated)
        return jax.export.export(jitted, platforms=["cpu"], disabled_checks=disabled_checks())(*types)


def portable_module(exported: Exported, version: str = _OLDEST) -> bytes:
    """The program of `exported`, of `export`, in a version of StableHLO that older compilers read.

    Args:
      exported: a program for one platform.
      version: of StableHLO, as in "1.9.0": the host's own, or an older one.

    Returns:
      What PJRT compiles as a program in the format "mlir". Its inputs are the leaves that ``exported.module_kept_var_idx``
      lists, its outputs all results.

    Raises:
      HostError: `version` is none that this jaxlib writes, or the program has something that it cannot say.

    >>> import jax, jax.numpy as jnp, jquant.host
    >>> program = jax.export.export(jax.jit(jnp.sin), platforms=["cpu"])(jnp.ones(3))
    >>> b"StableHLO_v1.9.0" in jquant.host.portable_module(program)
    True
    """
    try:
        return stablehlo.serialize_portable_artifact_str(exported.mlir_module(), version)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise HostError(f"portable_module: StableHLO {shown(version)} cannot be written: {reason}") from error


def _type_of(number: int, leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        type_ = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else jax.typeof(leaf)
        shape, dtype = tuple(type_.shape), jax.dtypes.canonicalize_dtype(type_.dtype, allow_extended_dtype=True)
    except (TypeError, ValueError, AttributeError):
        raise HostError(f"export: leaf {number} of the arguments is {shown(leaf)}; it must be an array") from None
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise HostError(f"export: leaf {number} of the arguments has the shape {shape}; jquant-native needs known sizes")
    devices = getattr(getattr(leaf, "sharding", None), "device_set", ())
    if len(devices) > 1:
        raise HostError(f"export: leaf {number} of the arguments is on {len(devices)} devices; a host runs a program on one")
    return jax.ShapeDtypeStruct(shape, dtype)


def _leaves_of(args: tuple[Any, ...], positions: int | Iterable[int]) -> list[int]:
    """The numbers of the leaves of the arguments at `positions`."""
    chosen = (positions,) if isinstance(positions, int) else tuple(positions)
    for position in chosen:
        if type(position) is not int or not 0 <= position < len(args):
            raise HostError(f"export: donate_argnums has {shown(position)}; there are arguments 0 to {len(args) - 1}")
    ends = [*itertools.accumulate((len(jax.tree.leaves(arg)) for arg in args), initial=0)]
    return [number for position in sorted({*chosen}) for number in range(ends[position], ends[position + 1])]
