"""Steps that many writers take: element-wise nodes, conversions, and changes of shape.

A step of known values is known.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.onnx.writing import kernel_types
from jquant.onnx.writing.builder import Builder, Operand
from jquant.onnx.writing.tensor import Size, Tensor, is_static, known, sizes_equal

_LARGEST = {  # the largest float32 that does not overflow, by the type that it is rounded to
    "float8_e4m3fn": np.float32(464),
    "float8_e5m2": np.nextafter(np.float32(61440), np.float32(0)),
}
_FOLDED = {
    "Add": lax.add,
    "Sub": lax.sub,
    "Mul": lax.mul,
    "Div": lax.div,
    "Max": lax.max,
    "Min": lax.min,
    "Neg": lax.neg,
    "Abs": lax.abs,
    "Equal": lax.eq,
    "Not": lax.bitwise_not,
}
_CONDITIONS = {"Where": 1}  # leading operands of another type than the data
_NIBBLES = ("int2", "int4", "uint2", "uint4")
_ALL = np.iinfo(np.int64).max  # as a limit: to the end


def like(x: Tensor, number: Any) -> Tensor:
    """A number in the type and the shape of `x`."""
    if is_static(x.shape):
        return known(np.broadcast_to(np.asarray(number, x.dtype), x.shape))
    return Tensor(x.dtype, x.shape, small=known(np.full((1,) * x.ndim, number, x.dtype)))


def computed(
    builder: Builder, operator: str, operands: Sequence[Operand], types: Any, *, since: int = 1, **attributes: Any
) -> Any:
    """A node, in a type that has a kernel: see `kernel_types`. The arguments are those of `Builder.node`.

    The operands, and the results, that have the type of the data are converted. It is the type of the first operand, or of
    the second one if the first is a condition.
    """
    count = _CONDITIONS.get(operator, 0)
    data = operands[count]
    assert data is not None
    dtype, needed = kernel_types.choice(operator, data.dtype)
    since = max(since, needed)
    if dtype == data.dtype:
        return builder.node(operator, operands, types, since=since, **attributes)
    to, back = _conversions(builder, operator, data.dtype, dtype)
    dtype = np.dtype(np.int32) if (operator, data.dtype) in _IN_INT32 else dtype
    wide = [
        operand if index < count or operand is None or operand.dtype != data.dtype else to(operand)
        for index, operand in enumerate(operands)
    ]
    several = isinstance(types, list | tuple)
    declared = list(types) if several else [types]
    widened = [jax.ShapeDtypeStruct(type.shape, dtype if type.dtype == data.dtype else type.dtype) for type in declared]
    results = builder.node(operator, wide, widened, since=since, **attributes)
    narrow = [
        back(result) if type.dtype == data.dtype else cast(builder, result, type.dtype)
        for result, type in zip(results, declared, strict=True)
    ]
    return narrow if several else narrow[0]


_MOVE, _COMPARE = ("Where",), ("TopK", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin")
_UNSIGNED = np.dtype(np.uint32)
_IN_INT32 = {(operator, _UNSIGNED) for operator in (*_MOVE, *_COMPARE)}  # int64 would be no type of a loaded model in JAX
_Conversion = Callable[[Tensor], Tensor]


def _conversions(builder: Builder, operator: str, narrow: np.dtype, wide: np.dtype) -> tuple[_Conversion, _Conversion]:
    """How the data of a node is converted, and what it results in. What is compared as int32 keeps its order."""
    if (operator, narrow) not in _IN_INT32:
        return lambda x: cast(builder, x, wide), lambda x: cast(builder, x, narrow)
    if operator in _MOVE:
        return lambda x: cast(builder, x, np.int32), lambda x: cast(builder, x, narrow)

    def shifted(x: Tensor, by: str) -> Tensor:
        return elementwise(builder, by, x, like(x, 2**31))

    return lambda x: cast(builder, shifted(x, "Sub"), np.int32), lambda x: shifted(cast(builder, x, narrow), "Add")


def elementwise(
    builder: Builder, operator: str, *operands: Tensor, dtype: Any = None, since: int = 13, **attributes: Any
) -> Tensor:
    """An element-wise node, of operands whose shapes broadcast as in NumPy.

    Operands that were broadcast to the shape of the result are read as they were before. If all of them were, so is the
    result.

    Args:
      dtype: that of the result; that of the first operand if None.
    """
    dtype = np.dtype(dtype or operands[0].dtype)
    arrays = [operand.known for operand in operands if operand.known is not None]
    if operator in _FOLDED and not attributes and len(arrays) == len(operands):
        return known(_folded(_FOLDED[operator], *np.broadcast_arrays(*arrays)))
    shape = lax.broadcast_shapes(*(operand.shape for operand in operands))
    small = [builder.broadcastable(operand) for operand in operands]
    result = jax.ShapeDtypeStruct(lax.broadcast_shapes(*(operand.shape for operand in small)), dtype)
    value = computed(builder, operator, small, result, since=since, **attributes)
    return value if sizes_equal(result.shape, shape) else Tensor(dtype, tuple(shape), small=value)


def _folded(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """What a function of JAX returns for known arrays; those of 64 bits, which sizes and wide integers have, keep them."""
    with jax.enable_x64(True):
        return np.asarray(function(*arguments))


def where(builder: Builder, condition: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor:
    return elementwise(builder, "Where", condition, on_true, on_false, dtype=on_true.dtype)


def cast(builder: Builder, x: Tensor, dtype: Any) -> Tensor:
    """`x` converted to another type, as JAX converts it.

    Floats outside the range of an integer type, for which JAX leaves the result to the device, become what the engine makes
    of them.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    source = builder.origin("cast", x)
    if source is not None and kernel_types.holds(x.dtype, source.dtype):  # the first conversion changed no number
        return cast(builder, source, dtype)
    if x.known is not None:
        if set(x.dtype.kind + dtype.kind) <= set("biu"):  # for which NumPy has the same rule, and compiles nothing
            return known(x.known.astype(dtype), x.label)
        return known(_folded(lax.convert_element_type, x.known, dtype), x.label)
    if is_float(x.dtype) and str(dtype) in _NIBBLES:  # onnxruntime rounds down in this conversion, rather than to zero
        return cast(builder, cast(builder, x, np.int32), dtype)
    if str(dtype) in _LARGEST:
        x = _infinite_beyond(builder, cast(builder, x, np.float32), _LARGEST[str(dtype)])
    small = builder.broadcastable(x)

    def node() -> Tensor:
        type = jax.ShapeDtypeStruct(small.shape, dtype)
        to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        saturate = 0 if str(dtype).startswith("float8") else None  # too large a number is infinite, or else NaN
        return builder.node("Cast", [small], type, since=9, to=to, saturate=saturate)

    value = builder.once(("cast", small, dtype), node)
    if small is x:
        return builder.derived("cast", value, x)
    return Tensor(dtype, x.shape, small=value)


def _infinite_beyond(builder: Builder, x: Tensor, largest: Any) -> Tensor:
    """`x`, infinite where it would overflow: onnxruntime converts what is a little too large to the largest number."""
    too_large = elementwise(builder, "Greater", elementwise(builder, "Abs", x), like(x, largest), dtype=np.bool_)
    return elementwise(builder, "Where", too_large, elementwise(builder, "Mul", x, like(x, np.inf)), x, dtype=x.dtype)


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.floating)


def is_unsigned(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.unsignedinteger)


def reshape(builder: Builder, x: Tensor, shape: Sequence[Size]) -> Tensor:
    """`x` with other sizes."""
    shape = tuple(shape)
    if sizes_equal(shape, x.shape):
        return x
    if x.known is not None and is_static(shape):
        return known(x.known.reshape(shape), x.label)
    source = builder.origin("reshape", x)
    if source is not None:
        return reshape(builder, source, shape)
    key = ("reshape", x, str(shape))
    return builder.once(key, lambda: builder.derived("reshape", _reshaped(builder, x, shape), x))


def _reshaped(builder: Builder, x: Tensor, shape: tuple[Size, ...]) -> Tensor:
    target = builder.shape(shape)
    open_sizes = [index for index, size in enumerate(shape) if not isinstance(size, int)]
    if len(open_sizes) == 1 and 0 not in shape:  # which Reshape computes
        target = known(np.array([size if isinstance(size, int) else -1 for size in shape], np.int64))
    type = jax.ShapeDtypeStruct(shape, x.dtype)
    return computed(builder, "Reshape", [x, target], type, since=5, label="reshaped")


def transpose(builder: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    """`x` with its dimensions in another order."""
    order = tuple(order)
    if order == tuple(range(x.ndim)):
        return x
    if x.known is not None:
        return known(x.known.transpose(order), x.label)
    type = jax.ShapeDtypeStruct(tuple(x.shape[dimension] for dimension in order), x.dtype)
    return computed(builder, "Transpose", [x], type, perm=list(order), label="transposed")


def broadcast(builder: Builder, x: Tensor, shape: Sequence[Size], dimensions: Sequence[int]) -> Tensor:
    """`x` in a shape of which its own dimensions are `dimensions`; elements are repeated only where a node needs that."""
    sizes: list[Size] = [1] * len(shape)
    for dimension, size in zip(dimensions, x.shape, strict=True):
        sizes[dimension] = size
    small = reshape(builder, builder.broadcastable(x) if len(shape) == x.ndim else x, sizes)
    return small if sizes_equal(sizes, shape) else Tensor(x.dtype, tuple(shape), small=small)


def joined(builder: Builder, parts: Sequence[Tensor], dimension: int) -> Tensor:
    """Values one after the other along a dimension."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[dimension] = sum(part.shape[dimension] for part in parts)
    type = jax.ShapeDtypeStruct(tuple(shape), parts[0].dtype)
    return computed(builder, "Concat", parts, type, since=13, axis=dimension, label="joined")


def sliced(builder: Builder, x: Tensor, starts: Sequence[Any], limits: Sequence[Size], strides: Sequence[int]) -> Tensor:
    """``x[start:limit:stride, ...]``, with one of each for every dimension."""
    shape = tuple(
        (limit - start + stride - 1) // stride for start, limit, stride in zip(starts, limits, strides, strict=True)
    )
    changed = [d for d in range(x.ndim) if not sizes_equal(shape[d], x.shape[d])]
    if not changed:
        return x
    if x.known is not None and is_static(limits):
        parts = tuple(slice(int(a), int(b), int(c)) for a, b, c in zip(starts, limits, strides, strict=True))
        return known(x.known[parts], x.label)
    type = jax.ShapeDtypeStruct(shape, x.dtype)
    bounds = [builder.shape([sizes[d] for d in changed]) for sizes in (starts, limits)]
    axes, steps = (known(np.array(numbers, np.int64)) for numbers in (changed, [strides[d] for d in changed]))
    steps = steps if any(strides[d] != 1 for d in changed) else None
    return computed(builder, "Slice", [x, *bounds, axes, steps], type, since=13, label="part")


def reversed_along(builder: Builder, x: Tensor, dimensions: Sequence[int]) -> Tensor:
    """`x` from back to front."""
    if not dimensions:
        return x
    if x.known is not None:
        return known(np.flip(x.known, tuple(dimensions)), x.label)
    count = len(dimensions)
    starts, limits, steps = (known(np.full(count, number, np.int64)) for number in (-1, -_ALL, -1))
    operands = [x, starts, limits, known(np.array(dimensions, np.int64)), steps]
    return computed(builder, "Slice", operands, x.type, since=13, label="reversed")


def padded(builder: Builder, x: Tensor, number: Tensor, padding: Sequence[tuple[Size, Size]]) -> Tensor:
    """`x` with so many of a number before and after it in each dimension; negative: with so many elements less."""
    amounts = [low for low, _ in padding] + [high for _, high in padding]
    if is_static(amounts) and not any(amounts):
        return x
    shape = tuple(size + low + high for size, (low, high) in zip(x.shape, padding, strict=True))
    type = jax.ShapeDtypeStruct(shape, x.dtype)
    return computed(builder, "Pad", [x, builder.shape(amounts), number], type, since=13, label="padded")
