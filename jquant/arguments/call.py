"""The arguments of an operator that has a table: converted to arrays one after another, then checked together."""

from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments import constraints
from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.descriptor import Descriptor, Shaped, Signature
from jquant.arguments.naming import argument, message
from jquant.arguments.operands import FLOAT32, Operand, operand, without_dimensions
from jquant.errors import DescriptorTypeError
from jquant.modes import FeatureLevel, data_type, data_type_name, resolved_level
from jquant.packed.matrix import PackedMatrix
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


class Call:
    """One call of an operator.

    Args:
      descriptor: the operator's table.
      feature_level: as the caller names it; ignored if the specification has only one table.
    """

    def __init__(self, descriptor: Descriptor, feature_level: FeatureLevel | str | None = None):
        self.descriptor = descriptor
        self.operator = descriptor.operator
        self.level = resolved_level(feature_level) if descriptor.levels else None
        self._tensors: dict[str, Shaped | None] = {}

    def tensor(self, name: str, value: ArrayLike, scalar_dtype: np.dtype | None = None) -> jax.Array:
        """The tensor that the table calls `name`, as an array: a JAX one, or a NumPy one that a jitted function accepts."""
        array: Any = operand(self.operator, name, value, scalar_dtype)
        self._tensors[name] = array
        return array

    def optional_tensor(self, name: str, value: ArrayLike | None, scalar_dtype: np.dtype) -> jax.Array | None:
        """Like `tensor`, for one that the table calls optional, which may be None."""
        if value is None:
            self._tensors[name] = None
            return None
        return self.tensor(name, value, scalar_dtype)

    def one_or_more(self, name: str, value: ArrayLike, scalar_dtype: np.dtype | None) -> jax.Array:
        """Like `tensor`, but one element becomes a scalar: it may be given in any rank."""
        array: Any = without_dimensions(operand(self.operator, name, value, scalar_dtype))
        self._tensors[name] = array
        return array

    def optional_one_or_more(self, name: str, value: ArrayLike | None, scalar_dtype: np.dtype) -> jax.Array | None:
        """Like `one_or_more`, for one that may be None."""
        if value is None:
            self._tensors[name] = None
            return None
        return self.one_or_more(name, value, scalar_dtype)

    def packed(self, tensor: str, matrix: PackedMatrix) -> PackedMatrix:
        """Packed weights, which hold their zero point, as a tensor of the table."""
        names = self.descriptor.names(tensor)
        self._tensors[names.tensor], self._tensors[names.zero_point] = matrix, None
        return matrix

    def scale(self, tensor: str, value: ArrayLike, scalar_dtype: np.dtype = FLOAT32) -> jax.Array:
        """The scale of a tensor; one element becomes a scalar."""
        return self.one_or_more(self.descriptor.names(tensor).scale, value, scalar_dtype)

    def zero_point(self, tensor: str, value: ArrayLike | None, dtype: np.dtype) -> jax.Array | None:
        """The zero point of a tensor of `dtype`, or None; one element becomes a scalar."""
        return self.optional_one_or_more(self.descriptor.names(tensor).zero_point, value, dtype)

    def quantized(
        self,
        tensor: str,
        values: ArrayLike,
        scale: ArrayLike,
        zero_point: ArrayLike | None,
        scale_dtype: np.dtype = FLOAT32,
    ) -> Quantized:
        """A quantized tensor: its integers, its scale (a Python scalar is of `scale_dtype`) and its zero point."""
        names = self.descriptor.names(tensor)
        array = self.tensor(names.tensor, values)
        its_scale = self.one_or_more(names.scale, scale, scale_dtype)
        return Quantized(array, its_scale, self.optional_one_or_more(names.zero_point, zero_point, array.dtype))

    def output(
        self,
        tensor: str,
        scale: ArrayLike,
        zero_point: ArrayLike | None,
        dtype: DTypeLike | str | None,
        *,
        default: np.dtype,
        scale_dtype: np.dtype = FLOAT32,
    ) -> tuple[ScaleZeroPoint, np.dtype]:
        """How an output is quantized, and its dtype: the given one, else that of an array `zero_point`, else `default`."""
        names = self.descriptor.names(tensor)
        its_scale = self.one_or_more(names.scale, scale, scale_dtype)
        output_dtype = output_data_type(dtype, zero_point, default)
        if dtype is not None:
            constraints.check_data_type(self.descriptor, self.level, names.tensor, output_dtype)
        its_zero_point = self.optional_one_or_more(names.zero_point, zero_point, output_dtype)
        return ScaleZeroPoint(its_scale, its_zero_point), output_dtype

    def check(self, shape: tuple[int, ...], dtype: np.dtype, **others: Shaped | None) -> None:
        """Asserts that the tensors, an output of `shape` and `dtype`, and `others`, by name, satisfy the table."""
        tensors = self._tensors
        tensors.update(others)
        tensors[self.descriptor.output] = Signature(shape, dtype)
        constraints.check(self.descriptor, self.level, tensors)

    def require_output_data_type(self, dtype: np.dtype, name: str, wanted: np.dtype) -> None:
        """Asserts that the output has the data type of the tensor `name`. At jquant's own level, any data type will do."""
        _require_output_data_type(self.descriptor, self.level, dtype, name, wanted)

    def float_data_type(self, name: str, *values: ArrayLike | None) -> np.dtype:
        """The dtype of the first array in `values` whose dtype the tensor `name` may have; else float32.

        Python scalars beside the array become that dtype.
        """
        dtypes = (value.dtype for value in values if isinstance(value, Operand) and not _is_weak_scalar(value))
        numeric = (dtype for dtype in dtypes if isinstance(dtype, np.dtype))
        return next((dtype for dtype in numeric if self.descriptor.allows_data_type(self.level, name, dtype)), FLOAT32)


@once_for_each_signature
def _require_output_data_type(
    descriptor: Descriptor, level: FeatureLevel | None, dtype: np.dtype, name: str, wanted: np.dtype
) -> None:
    model = f"the data type of {argument(descriptor.operator, name)}, {data_type_name(wanted)}"
    text = f"is {data_type_name(dtype)}; below FeatureLevel.EXTENDED it must match {model}"
    told = message(descriptor.operator, "output_dtype", text, descriptor.output, name)
    require(dtype == wanted or level == FeatureLevel.EXTENDED, told, DescriptorTypeError)


def output_data_type(output_dtype: DTypeLike | str | None, zero_point: ArrayLike | None, default: np.dtype) -> np.dtype:
    """The dtype of a quantized output: the given one, else that of an array `zero_point`, else `default`."""
    if output_dtype is not None:
        return data_type("output_dtype", output_dtype)
    if isinstance(zero_point, Operand | np.generic) and not _is_weak_scalar(zero_point):  # np.generic: ml_dtypes' scalars
        return zero_point.dtype
    return default


def _is_weak_scalar(value: Operand | np.generic) -> bool:
    """Whether it may be a Python scalar that was passed through a caller's `jax.jit`."""
    return isinstance(value, jax.Array) and getattr(value, "weak_type", False) and value.ndim == 0
