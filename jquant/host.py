"""Programs for hosts without jquant: other processes with jax, or PJRT without Python.

`jax.export` leaves jquant-native out of a program, because another machine may run it, and a process that has not imported
jquant cannot read a program whose arguments hold a `PackedMatrix`. `export` keeps the calls, for hosts that have the
library, and makes a function of arrays alone; `write` puts it into a file with its parameters, for hosts without Python.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.export import DisabledSafetyCheck, Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jquant.errors import HostError, shown
from jquant.files import host_program
from jquant.files.host_program import Array
from jquant.kernels.native import shared_library
from jquant.lowering import partitioned

__all__ = ["HostError", "disabled_checks", "export", "native_calls", "portable_module", "write"]

_OLDEST = "1.9.0"  # of StableHLO, in which all programs can be written that jquant's tests export
_TYPES = (  # of PJRT's C API
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2fnuz"),
    *("float8_e4m3fnuz", "int4", "uint4", "int2", "uint2", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
)


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
    types = [_type_of("export", number, leaf) for number, leaf in enumerate(leaves)]
    donated = _leaves_of(args, donate_argnums)

    def of_leaves(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

    with native_calls() if native else contextlib.nullcontext():
        jitted = jax.jit(of_leaves, donate_argnums=donated)
        return jax.export.export(jitted, platforms=["cpu"], disabled_checks=disabled_checks())(*types)


def portable_module(exported: Exported, version: str = _OLDEST) -> bytes:
    """The program of `exported`, of `export`, in a version of StableHLO that older compilers read.

    Args:
      exported: a program for one platform and one device.
      version: of StableHLO, as in "1.9.0": the host's own, or an older one.

    Returns:
      What PJRT compiles as a program in the format "mlir". Its inputs are the leaves that ``exported.module_kept_var_idx``
      lists, its outputs all results.

    Raises:
      HostError: `version` is none that this jaxlib writes, or the program has something that it cannot say, or is for
        several devices.

    >>> import jax, jax.numpy as jnp, jquant.host
    >>> program = jax.export.export(jax.jit(jnp.sin), platforms=["cpu"])(jnp.ones(3))
    >>> b"StableHLO_v1.9.0" in jquant.host.portable_module(program)
    True
    """
    _require_one_device("portable_module", exported)
    try:
        with ir.Context() as context:
            sdy.register_dialect(context)
            module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
            _leave_shardings_out(module)
            return stablehlo.serialize_portable_artifact(module, version)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise HostError(f"portable_module: StableHLO {shown(version)} cannot be written: {reason}") from error


def write(path: str | os.PathLike[str], exported: Exported, *args: Any, version: str = _OLDEST) -> None:
    """A program and its arguments as one file, for a host without Python, such as that of ``native/example``.

    An argument of the program is one of three:

    - a parameter, if `args` has an array for it: the same in each call;
    - an input, if `args` has a `jax.ShapeDtypeStruct`: the host hands it in;
    - state, if it was donated and a result took its place: first the array of `args`, then that result of the call before.
      It is no longer a result for the host.

    The file appears whole or not at all. It names the functions of jquant-native that the program calls, and `jquant.files.
    host_program` describes it, line by line.

    Args:
      path: the file, by convention ``*.jquant``. One that is there is replaced.
      exported: a program of `export`, or of `jax.export.export`, for one CPU.
      *args: as for `export`, with the same leaves.
      version: of StableHLO, as for `portable_module`.

    Raises:
      HostError: a program for another platform or several devices, or of symbolic sizes; leaves of another number, type or
        shape than those of the program, or of a type that PJRT's C API lacks; state without a value.
      OSError: the file cannot be written.

    >>> import pathlib, tempfile
    >>> import jax, jax.numpy as jnp, jquant.host
    >>> args = jnp.ones((64, 4)), jax.ShapeDtypeStruct((1, 64), jnp.float32)
    >>> exported = jquant.host.export(lambda weights, x: x @ weights, *args, native=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "network.jquant")
    ...     jquant.host.write(path, exported, *args)
    ...     text = path.read_bytes()
    >>> print(text[: text.index(b"end")].decode())  # doctest: +ELLIPSIS
    jquant-host 1
    program uint8[...] 0
    parameter float32[64,4] ...
    input float32[1,64]
    output float32[1,4]
    <BLANKLINE>
    """
    _require_one_device("write", exported)
    if tuple(exported.platforms) != ("cpu",):
        raise HostError(f"write: the program is for {', '.join(exported.platforms)}; a host runs one for a CPU")
    types = exported.in_avals
    outputs = [_described(f"output {number} of the program", type_) for number, type_ in enumerate(exported.out_avals)]
    leaves = jax.tree.leaves(args)
    if len(leaves) != len(types):
        raise HostError(f"write: the arguments have {len(leaves)} leaves; the program has {len(types)}")
    for number, (leaf, type_) in enumerate(zip(leaves, types, strict=True)):
        given = _type_of("write", number, leaf)
        if (given.shape, given.dtype) != (type_.shape, type_.dtype):
            raise HostError(f"write: leaf {number} of the arguments is {_shown(given)}; the program has {_shown(type_)}")
    text = exported.mlir_module()
    arguments = []
    for number, output in zip(exported.module_kept_var_idx, _replacing_outputs(text), strict=True):
        is_input = isinstance(leaves[number], jax.ShapeDtypeStruct)
        if is_input and output is not None:
            raise HostError(f"write: leaf {number} of the arguments is donated, so that it is state; give its first value")
        if output == _LOST:
            raise HostError(
                f"write: leaf {number} of the arguments is donated, and no result has its type, to take its place"
            )
        value = None if is_input else _elements(leaves[number])
        described = _described(f"leaf {number} of the program", types[number])
        arguments.append(described._replace(value=value, output=output))
    functions = sorted({*re.findall(r"@(jquant_\w+\.\d+)", text)})
    host_program.write(Path(path), portable_module(exported, version), functions, arguments, outputs)


def _require_one_device(name: str, exported: Exported) -> None:
    if exported.nr_devices != 1:
        raise HostError(f"{name}: the program is for {exported.nr_devices} devices; a host runs one for one")


def _leave_shardings_out(module: ir.Module) -> None:
    """Removes what another dialect says of a program's devices, such as of random keys: there is but one."""
    found = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name in ("sdy.mesh", "sdy.sharding_constraint"):
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in found:
        for result, operand in zip(operation.results, operation.operands, strict=True):
            result.replace_all_uses_with(operand)
        operation.erase()


def _described(what: str, type_: Any) -> Array:
    """The type of an argument or an output as the host sees it: random keys are the integers of their data."""
    if not all(isinstance(size, int) for size in type_.shape):
        raise HostError(f"write: {what} has the shape {type_.shape}; a host needs known sizes")
    if _is_key(type_):
        type_ = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(type_.shape, type_.dtype))
    if str(type_.dtype) not in _TYPES:
        raise HostError(f"write: {what} is of the type {type_.dtype}; a host takes {', '.join(_TYPES)}")
    return Array(np.dtype(type_.dtype), tuple(type_.shape))


def _elements(leaf: Any) -> np.ndarray:
    leaf = jax.numpy.asarray(leaf)
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(array: Any) -> bool:
    return jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)


def _shown(type_: Any) -> str:
    return f"{type_.dtype}[{','.join(map(str, type_.shape))}]"


_LOST = -1


def _replacing_outputs(text: str) -> list[int | None]:
    """For each argument of a module, the number of the output that takes its memory, if it was donated; or `_LOST`."""
    _, _, arguments = text.partition("@main(")
    found = []
    for argument in re.split(r"%arg\d+: ", arguments.partition(") -> ")[0])[1:]:
        output = re.search(r"tf\.aliasing_output = (\d+)", argument)
        lost = _LOST if "jax.buffer_donor" in argument else None
        found.append(lost if output is None else int(output[1]))
    return found


def _type_of(name: str, number: int, leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        type_ = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else jax.typeof(leaf)
        shape, dtype = tuple(type_.shape), jax.dtypes.canonicalize_dtype(type_.dtype, allow_extended_dtype=True)
    except (TypeError, ValueError, AttributeError):
        raise HostError(f"{name}: leaf {number} of the arguments is {shown(leaf)}; it must be an array") from None
    if not all(isinstance(size, int | np.integer) for size in shape):
        raise HostError(f"{name}: leaf {number} of the arguments has the shape {shape}; jquant-native needs known sizes")
    devices = getattr(getattr(leaf, "sharding", None), "device_set", ())
    if len(devices) > 1:
        raise HostError(f"{name}: leaf {number} of the arguments is on {len(devices)} devices; a host runs a program on one")
    return jax.ShapeDtypeStruct(shape, dtype)


def _leaves_of(args: tuple[Any, ...], positions: int | Iterable[int]) -> list[int]:
    """The numbers of the leaves of the arguments at `positions`."""
    chosen = (positions,) if isinstance(positions, int) else tuple(positions)
    for position in chosen:
        if type(position) is not int or not 0 <= position < len(args):
            raise HostError(f"export: donate_argnums has {shown(position)}; there are arguments 0 to {len(args) - 1}")
    ends = [*itertools.accumulate((len(jax.tree.leaves(arg)) for arg in args), initial=0)]
    return [number for position in sorted({*chosen}) for number in range(ends[position], ends[position + 1])]
