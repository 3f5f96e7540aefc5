"""What a person may pass for a tensor, brought to an array without changing a value."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.descriptor import require
from jquant.errors import DescriptorError, DescriptorTypeError
from jquant.kernels.packed import PackedMatrix
from jquant.modes import data_type, data_type_name

_FLOAT32 = jnp.dtype(jnp.float32)
Operand = jax.Array | np.ndarray | np.number | np.bool


def operand(operator: str, name: str, value: ArrayLike, scalar_dtype: np.dtype | None = None) -> Operand:
    """`value` as an array.

    Arrays keep their dtype: one that JAX would narrow (float64, or any 64-bit type without
    ``jax_enable_x64``) raises. A Python scalar becomes `scalar_dtype`, if it lies in its range; so does what
    a caller's `jax.jit` has made of one (JAX calls it weakly typed), for a float type, where no range is left.
    """
    if isinstance(value, jax.Array):
        is_scalar = value.weak_type and scalar_dtype is not None and jnp.issubdtype(scalar_dtype, jnp.floating)
        return value.astype(scalar_dtype) if is_scalar else value
    if isinstance(value, np.ndarray | np.generic):
        if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
            raise DescriptorTypeError(
                f"{operator}: {name} has data type {data_type_name(value.dtype)}, which JAX narrows to 32 bits unless "
                "jax_enable_x64 is set; convert it, so that the loss is yours to see, or set it"
            )
        return value
    if hasattr(value, "__jax_array__"):
        return jnp.asarray(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if scalar_dtype is None:
            raise DescriptorTypeError(
                f"{operator}: {name} is the Python scalar {value!r}; it must be an array, whose data type counts"
            )
        return _scalar(operator, name, value, scalar_dtype)
    raise DescriptorTypeError(f"{operator}: {name} must be an array or a Python scalar, not {type(value).__name__}")


def is_known(*values: Operand) -> bool:
    """Whether they are Python's or NumPy's: a `jax.Array` may be traced, and is not read back for a check."""
    return not any(isinstance(value, jax.Array) for value in values)


def optional_operand(operator: str, name: str, value: ArrayLike | None, scalar_dtype: np.dtype) -> Operand | None:
    """`operand`, where the document calls the tensor optional."""
    return None if value is None else operand(operator, name, value, scalar_dtype)


def _scalar(operator: str, name: str, value: float, dtype: np.dtype) -> Operand:
    type_name = data_type_name(dtype)
    if dtype == jnp.bool:
        return dtype.type(value)  # no operator has it, and the tensor that does is what the error names
    if jnp.issubdtype(dtype, jnp.integer):
        if not isinstance(value, int):
            raise DescriptorTypeError(f"{operator}: {name} is {value!r}, but must be an integer of type {type_name}")
        limits = jnp.iinfo(dtype)
        fits = limits.min <= value <= limits.max
    else:
        limits = jnp.finfo(dtype)
        fits = not np.isfinite(value) or abs(value) <= float(limits.max)
    if not fits:
        raise DescriptorError(f"{operator}: {name} is {value!r}, outside of {type_name}, [{limits.min}, {limits.max}]")
    return dtype.type(value)


def float_operand(operator: str, name: str, value: ArrayLike) -> Operand:
    """A tensor of FLOAT, for which the document has no other type."""
    value = operand(operator, name, value, _FLOAT32)
    given = data_type_name(value.dtype)
    require(given == "FLOAT32", f"{operator}: {name} has data type {given}, but is a FLOAT", DescriptorTypeError)
    return value


def float_scalar(operator: str, name: str, value: ArrayLike) -> Operand:
    """A FLOAT of a document: one number."""
    return require_scalar(operator, name, float_operand(operator, name, value))


def require_scalar(operator: str, name: str, value: Operand) -> Operand:
    """`value`, asserting that it has rank 0."""
    require(value.shape == (), f"{operator}: {name} has sizes {value.shape}, but is a scalar")
    return value


class Names(NamedTuple):
    """What a document calls a quantized tensor, its scale and its zero point."""

    tensor: str
    scale: str
    zero_point: str


def directml(name: str) -> Names:
    """DirectML's names."""
    return Names(f"{name}Tensor", f"{name}ScaleTensor", f"{name}ZeroPointTensor")


def onnx(name: str) -> Names:
    """ONNX's names."""
    return Names(name, f"{name}_scale", f"{name}_zero_point")


def quantized(
    operator: str,
    names: Names,
    value: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    scale_dtype: np.dtype = _FLOAT32,
) -> tuple[Operand, Operand, Operand | None]:
    """A quantized tensor: its integers, its scale (a Python scalar is of `scale_dtype`) and its zero point."""
    value = operand(operator, names.tensor, value)
    scale = operand(operator, names.scale, scale, scale_dtype)
    return value, scale, optional_operand(operator, names.zero_point, zero_point, value.dtype)


def output_quantization(
    operator: str,
    names: Names,
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    dtype: DTypeLike | str | None,
    default: np.dtype,
    scale_dtype: np.dtype = _FLOAT32,
) -> tuple[Operand, Operand | None, np.dtype]:
    """How an output is to be quantized: its scale, its zero point and its dtype, by `output_data_type`."""
    scale = operand(operator, names.scale, scale, scale_dtype)
    dtype = output_data_type(dtype, zero_point, default)
    return scale, optional_operand(operator, names.zero_point, zero_point, dtype), dtype


def output_data_type(output_dtype: DTypeLike | str | None, zero_point: ArrayLike | None, default: np.dtype) -> np.dtype:
    """The dtype of a quantized output: as told, else that of an array `zero_point`, else `default`."""
    if output_dtype is not None:
        return data_type(output_dtype)
    return getattr(zero_point, "dtype", default)


def float_data_type(*values: ArrayLike | None) -> np.dtype:
    """The dtype of the first of `values` that is an array: what the Python scalars beside it become. Else float32."""
    arrays = (value for value in values if isinstance(value, Operand) and not getattr(value, "weak_type", False))
    return next((array.dtype for array in arrays), _FLOAT32)


def broadcast_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of two operands; where there is none, `one`, for the descriptor to tell them apart."""
    try:
        return jnp.broadcast_shapes(one, other)
    except ValueError:
        return one


def weights(
    operator: str, names: Names, b: ArrayLike | PackedMatrix, zero_point: ArrayLike | None
) -> tuple[Operand | PackedMatrix, Operand | None]:
    """The matrix B and its zero point: an array and the one beside it, or packed weights, which hold theirs."""
    if not isinstance(b, PackedMatrix):
        b = operand(operator, names.tensor, b)
        return b, optional_operand(operator, names.zero_point, zero_point, b.dtype)
    if zero_point is not None:
        raise DescriptorError(f"{operator}: {names.zero_point} is given beside packed weights, which hold their own")
    return b, None


def quantized_weights(
    operator: str,
    names: Names,
    b: ArrayLike | PackedMatrix,
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    scale_dtype: np.dtype = _FLOAT32,
) -> tuple[Operand | PackedMatrix, Operand, Operand | None]:
    """`quantized`, of the matrix B or packed weights."""
    b, zero_point = weights(operator, names, b, zero_point)
    return b, operand(operator, names.scale, scale, scale_dtype), zero_point


def product_shape(a: Operand, b: Operand | PackedMatrix) -> tuple[int, ...]:
    """The shape of a matrix product."""
    return (*broadcast_shape(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
