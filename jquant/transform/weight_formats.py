"""The formats of weights: how a float matrix is quantized, in which arrays it is stored, and how it is multiplied.

A matrix has the shape (..., K, N), where K is the dimension that a product sums over. Whatever the format, it is stored as a
dict of arrays, every element in its own number of bits.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, subbyte
from jquant.errors import shown
from jquant.formulas import blocks, extremes
from jquant.kernels.packed import block_size_for
from jquant.lowering.bitcast import bitcast
from jquant.modes import FeatureLevel
from jquant.operators.block_scaled_matmul import block_scaled_matmul
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.operators.mx import mx_dequantize, mx_quantize
from jquant.operators.nvfp4 import nvfp4_dequantize, nvfp4_quantize
from jquant.operators.pack_matrix import pack_matrix
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix

Stored = dict[str, Any]
Take = Callable[[jax.Array, int], jax.Array]
"""Selects indices along a dimension of an array of rank 2: their shape comes first, and the dimension keeps a size of 1."""

_EXTENDED = FeatureLevel.EXTENDED
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


class WeightFormat(Protocol):
    """How weights are stored. Equal weights in equal formats are stored once."""

    @property
    def title(self) -> str:
        """What tables call it."""
        ...

    def pack(self, matrix: jax.Array) -> Stored:
        """The arrays that store a float matrix."""
        ...

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        """The float matrix of so many rows, (..., K, N)."""
        ...

    def columns(self, stored: Stored, take: Take) -> Stored:
        """What stores some columns, each as a matrix of its own, (..., K, 1)."""
        ...


class FilterFormat(WeightFormat, Protocol):
    """A format that filters of convolutions can have as well.

    Stored as ``values``, of the shape of the filter, and ``scale``, of shape (filters,) or ().
    """

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        """The arrays that store a filter, whose output channels lie along the dimension `channel`."""
        ...

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        """The float filter."""
        ...


@dataclasses.dataclass(frozen=True)
class Columns:
    """8-bit integers with a scale for each column or one for all: what `matmul_integer_to_float` takes.

    Stored as ``values``, a `PackedMatrix`, and ``scale``, of shape (..., N) or ().
    """

    weight_type: str
    by_column: bool
    scale_type: str
    k_parts: int = 1

    @property
    def title(self) -> str:
        return _title(self.weight_type, self.by_column, None, self.scale_type)

    def why_not_in_parts(self, rows: int) -> str | None:
        return f"{rows} rows have no {self.k_parts} equal parts" if rows % self.k_parts else None

    def pack(self, matrix: jax.Array) -> Stored:
        values, scale, zero_point = self._quantized(matrix, (matrix.ndim - 2,))
        if self.by_column:
            scale = scale.squeeze(-2)
        block_size = None if self.k_parts == 1 else block_size_for(matrix.shape[-2] // self.k_parts)
        pack = functools.partial(pack_matrix, block_size=block_size)
        if zero_point is not None:
            for _ in range(matrix.ndim - 2):  # each matrix of a batch has its own zero points
                pack = jax.vmap(pack, (0, 0 if self.by_column else None))
            zero_point = zero_point.squeeze(-2) if self.by_column else zero_point
        return {"values": pack(values, zero_point), "scale": scale}

    def _quantized(self, x: jax.Array, over: Sequence[int]) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Integers, scales and zero points, which elements along the dimensions `over` share, or all: they have shape ()."""
        over = tuple(over) if self.by_column else tuple(range(x.ndim))
        scale, zero_point = _parameters(x, over, self.weight_type)
        if not self.by_column:
            scale, zero_point = jax.tree.map(lambda parameter: parameter.reshape(()), (scale, zero_point))
        scale = scale.astype(self.scale_type.lower())
        values = quantize_linear(x, scale, zero_point, output_dtype=self.weight_type, feature_level=_EXTENDED)
        return values, scale, zero_point

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        over = _without(channel, filter)
        values, scale, _ = self._quantized(filter, over)
        return {"values": values, "scale": scale.squeeze(over) if scale.ndim else scale}

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        return _dequantized_filter(stored["values"], stored["scale"], channel, dtype)

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        values, scale, zero_point = stored["values"], stored["scale"], stored["values"].zero_point
        scale = scale[..., None, :] if scale.ndim else scale
        if zero_point is not None and not self.by_column:
            zero_point = zero_point.reshape(())
        return dequantize_linear(values.unpack(), scale, zero_point, output_dtype=dtype, feature_level=_EXTENDED)

    def columns(self, stored: Stored, take: Take) -> Stored:
        values, scale = stored["values"], stored["scale"]
        data, zero_point = take(values.data, 0), values.zero_point
        if zero_point is not None:
            zero_point = take(zero_point, 1) if self.by_column else zero_point.reshape((1,) * data.ndim)
        taken = PackedMatrix(data, take(values.block_sums, 1), zero_point, values.dtype)
        return {"values": taken, "scale": take(scale[None], 1).squeeze(-2) if scale.ndim else scale}

    def multiply(
        self, x: jax.Array, scale: jax.Array, zero_point: jax.Array | None, stored: Stored, dtype: np.dtype
    ) -> jax.Array:
        """The product of integers, as floats of `dtype`."""
        weights_scale = stored["scale"].astype(jnp.float32)
        return matmul_integer_to_float(
            x, scale, zero_point, stored["values"], weights_scale, output_dtype=dtype, feature_level=_EXTENDED
        )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Integers of 4 or 8 bits with a scale for each block of a column: what `block_scaled_matmul` and `matmul_n_bits` take.

    Without a block size, a column is one block; if there is one scale for the tensor, all columns hold it. Stored as
    ``values``, a `PackedBlockMatrix`, which holds the scales. The weights of a checkpoint, which may take their place, have
    blocks of their own, and perhaps minima and a ``permutation``: the row of the weights that each row of the matrix holds.
    """

    weight_type: str
    by_column: bool
    block_size: int | None
    scale_type: str
    k_parts: int = 1

    @property
    def title(self) -> str:
        return _title(self.weight_type, self.by_column, self.block_size, self.scale_type)

    def why_not_in_parts(self, rows: int) -> str | None:
        blocks = -(-rows // (self.block_size or rows))
        return f"{blocks} blocks have no {self.k_parts} equal parts" if blocks % self.k_parts else None

    def pack(self, matrix: jax.Array) -> Stored:
        rows = matrix.shape[-2]
        block_size = self.block_size or -(-rows // 4) * 4  # whole words of 4 integers of 4 bits
        parameters = functools.partial(_parameters, dtype=self.weight_type)
        scale, zero_point = _of_blocks(parameters, matrix, block_size, self.by_column)
        scale = scale.astype(self.scale_type.lower())
        keywords = {"axis": -2, "block_size": block_size, "output_dtype": self.weight_type, "feature_level": _EXTENDED}
        values = quantize_linear(matrix, scale, zero_point, **keywords)
        return {"values": pack_matrix(values, zero_point, scale=scale, block_size=block_size)}

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        matrix: PackedBlockMatrix = stored["values"]
        zero_point = None if matrix.zero_point is None else matrix.zero_point.astype(matrix.dtype)
        keywords = {"axis": -2, "block_size": matrix.block_size, "feature_level": _EXTENDED}
        keywords["output_dtype"] = dtype if matrix.minimum is None else jnp.float32
        weights = dequantize_linear(matrix.unpack(), matrix.scale, zero_point, **keywords)
        if matrix.minimum is not None:  # of a checkpoint's weights
            minimum = blocks.repeat(exact.widen(matrix.minimum), matrix.ndim - 2, matrix.block_size, rows)
            weights = exact.narrow(exact.sum(weights, minimum), dtype)
        if "permutation" in stored:
            weights = jnp.take(weights, jnp.argsort(stored["permutation"]), axis=-2)
        return weights

    def columns(self, stored: Stored, take: Take) -> Stored:
        return {**stored, "values": jax.tree.map(lambda array: take(array, 1), stored["values"])}

    def multiply(
        self, x: jax.Array, scale: jax.Array, zero_point: jax.Array | None, stored: Stored, dtype: np.dtype
    ) -> jax.Array:
        """The product of integers, as floats of `dtype`."""
        x = _permuted(x, stored)
        return block_scaled_matmul(x, scale, zero_point, stored["values"], k_parts=self.k_parts, output_dtype=dtype)

    def multiply_floats(self, x: jax.Array, stored: Stored) -> jax.Array:
        """The product of floats and weights, in the dtype of `x`."""
        x = _permuted(x, stored)
        return matmul_n_bits(x, stored["values"], compute_dtype="BFLOAT16" if x.dtype == jnp.bfloat16 else None)


@dataclasses.dataclass(frozen=True)
class TwoBits:
    """Integers from -1 to 1 in 2 bits, with a scale for each block of a column: what `matmul_n_bits` takes.

    Stored in its layout: ``values``, uint8, of shape (..., N, G, block size / 4), and ``scale``, of shape (..., N, G).
    """

    block_size: int
    scale_type: str

    @property
    def title(self) -> str:
        return _title("INT2", True, self.block_size, self.scale_type)

    def pack(self, matrix: jax.Array) -> Stored:
        parameters = functools.partial(_parameters, dtype="INT2")
        scale = _of_blocks(parameters, matrix, self.block_size, True)[0].astype(self.scale_type.lower())
        keywords = {"axis": -2, "block_size": self.block_size, "output_dtype": "INT2", "feature_level": _EXTENDED}
        codes = quantize_linear(matrix, scale, **keywords).astype(jnp.int8) + np.int8(2)
        missing = scale.shape[-2] * self.block_size - matrix.shape[-2]
        codes = jnp.pad(codes, [(0, 0)] * (matrix.ndim - 2) + [(0, missing), (0, 0)], constant_values=2)
        codes = jnp.swapaxes(codes, -1, -2).reshape(*codes.shape[:-2], codes.shape[-1], scale.shape[-2], self.block_size)
        return {"values": subbyte.packed(codes.astype(jnp.uint8), 2, -1), "scale": jnp.swapaxes(scale, -1, -2)}

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        codes = subbyte.unpacked(stored["values"], 2)
        codes = codes.reshape(*codes.shape[:-2], -1)[..., :rows].astype(jnp.int8) - np.int8(2)
        scale = jnp.swapaxes(stored["scale"], -1, -2)
        keywords = {"axis": -2, "block_size": self.block_size, "output_dtype": dtype, "feature_level": _EXTENDED}
        return dequantize_linear(jnp.swapaxes(codes, -1, -2), scale, **keywords)

    def columns(self, stored: Stored, take: Take) -> Stored:
        values = stored["values"]
        taken = take(values.reshape(values.shape[0], -1), 0)
        return {"values": taken.reshape(*taken.shape[:-1], *values.shape[1:]), "scale": take(stored["scale"], 0)}

    def multiply_floats(self, x: jax.Array, stored: Stored) -> jax.Array:
        """The product of floats and weights, in the dtype of `x`."""
        compute_dtype = "BFLOAT16" if x.dtype == jnp.bfloat16 else None
        return matmul_n_bits(x, stored["values"], stored["scale"].astype(x.dtype), bits=2, compute_dtype=compute_dtype)


def _permuted(x: jax.Array, stored: Stored) -> jax.Array:
    """The columns of `x` in the order of the rows of a checkpoint's weights."""
    return jnp.take(x, stored["permutation"], axis=-1) if "permutation" in stored else x


class _Codes:
    """Narrow floats, stored as the codes of elements and scales, with scales for blocks along K: all arrays end with N."""

    def columns(self, stored: Stored, take: Take) -> Stored:
        return {name: take(array, 1) if array.ndim > 1 else array for name, array in stored.items()}


@dataclasses.dataclass(frozen=True)
class Float8(_Codes):
    """8-bit floats with a scale for each block of a column, for each column, or for all.

    The scale is ``max|x| / 448`` for FLOAT8E4M3FN, and ``max|x| / 57344`` for FLOAT8E5M2. Stored as ``values``, the codes in
    uint8, of shape (..., K, N), and ``scale``, of shape (..., G, N).
    """

    weight_type: str
    by_column: bool
    block_size: int | None
    scale_type: str

    LARGEST: ClassVar = {"FLOAT8E4M3FN": np.float32(448), "FLOAT8E5M2": np.float32(57344)}

    @property
    def title(self) -> str:
        return _title(self.weight_type, self.by_column, self.block_size, self.scale_type)

    def pack(self, matrix: jax.Array) -> Stored:
        block_size = self.block_size or matrix.shape[-2]
        scale = self._scale(_of_blocks(_largest, matrix, block_size, self.by_column))
        keywords = {"axis": -2, "block_size": block_size, "output_dtype": self.weight_type, "feature_level": _EXTENDED}
        return {"values": bitcast(quantize_linear(matrix, scale, **keywords), jnp.uint8), "scale": scale}

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        over = _without(channel, filter)
        scale = self._scale(_largest(filter, over if self.by_column else range(filter.ndim)))
        scale = scale if self.by_column else scale.reshape(())
        values = quantize_linear(filter, scale, output_dtype=self.weight_type, feature_level=_EXTENDED)
        return {"values": bitcast(values, jnp.uint8), "scale": scale.squeeze(over) if scale.ndim else scale}

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        return _dequantized_filter(self._numbers(stored["values"]), stored["scale"], channel, dtype)

    def _scale(self, largest: jax.Array) -> jax.Array:
        scale = exact.quotient(largest, self.LARGEST[self.weight_type])
        return jnp.where(scale < _SMALLEST_NORMAL, np.float32(1), scale).astype(self.scale_type.lower())

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        keywords = {"axis": -2, "block_size": self.block_size or rows, "output_dtype": dtype, "feature_level": _EXTENDED}
        return dequantize_linear(self._numbers(stored["values"]), stored["scale"], **keywords)

    def _numbers(self, codes: jax.Array) -> jax.Array:
        """The 8-bit floats of their codes."""
        return bitcast(codes, {"FLOAT8E4M3FN": jnp.float8_e4m3fn, "FLOAT8E5M2": jnp.float8_e5m2}[self.weight_type])


@dataclasses.dataclass(frozen=True)
class Microscaling(_Codes):
    """A format of the OCP Microscaling specification: what `mx_quantize` computes along K.

    Stored as ``values``, uint8, of shape (..., K * bits / 8, N): the codes, of which those of 4 and 6 bits follow one
    another in the bits of bytes, the first in the lowest; and ``scale``, the codes of powers of two in uint8, of shape
    (..., G, N).
    """

    weight_type: str
    block_size: int

    ELEMENTS: ClassVar = {
        "MXFP8E4M3FN": ("float8_e4m3fn", 8),
        "MXFP8E5M2": ("float8_e5m2", 8),
        "MXFP6E2M3FN": ("float6_e2m3fn", 6),
        "MXFP6E3M2FN": ("float6_e3m2fn", 6),
        "MXFP4": ("float4_e2m1fn", 4),
        "MXINT8": ("int8", 8),
    }

    @property
    def title(self) -> str:
        return f"{self.weight_type.lower()} in blocks of {self.block_size}"

    def pack(self, matrix: jax.Array) -> Stored:
        element, bits = self.ELEMENTS[self.weight_type]
        values, scale = mx_quantize(matrix, element, axis=-2, block_size=self.block_size)
        return {"values": _bytes(values, bits), "scale": bitcast(scale, jnp.uint8)}

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        element, bits = self.ELEMENTS[self.weight_type]
        codes = subbyte.unpacked_along(stored["values"], bits, -2, rows)
        values = codes if bits < 8 else bitcast(codes, jnp.dtype(element))
        scale = bitcast(stored["scale"], jnp.float8_e8m0fnu)
        return mx_dequantize(values, scale, element_type=element, axis=-2, block_size=self.block_size, output_dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Nvfp4(_Codes):
    """4-bit floats in blocks of 16: what `nvfp4_quantize` computes along K.

    Stored as ``values``, uint8, of shape (..., K / 2, N), with two codes in each byte, the first in the lower bits;
    ``scale``, the codes of 8-bit floats in uint8, of shape (..., G, N); and ``tensor_scale``, float32, of shape ().
    """

    BLOCK_SIZE: ClassVar = 16

    @property
    def title(self) -> str:
        return f"nvfp4 in blocks of {self.BLOCK_SIZE}"

    def pack(self, matrix: jax.Array) -> Stored:
        values, scale, tensor_scale = nvfp4_quantize(matrix, axis=-2)
        return {"values": _bytes(values, 4), "scale": bitcast(scale, jnp.uint8), "tensor_scale": tensor_scale}

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        codes = subbyte.unpacked_along(stored["values"], 4, -2, rows)
        scale = bitcast(stored["scale"], jnp.float8_e4m3fn)
        return nvfp4_dequantize(codes, scale, stored["tensor_scale"], axis=-2, output_dtype=dtype)


def _without(channel: int, filter: jax.Array) -> tuple[int, ...]:
    return tuple(dimension for dimension in range(filter.ndim) if dimension != channel)


def _dequantized_filter(values: jax.Array, scale: jax.Array, channel: int, dtype: np.dtype) -> jax.Array:
    axis = channel if scale.ndim else None
    return dequantize_linear(values, scale, axis=axis, output_dtype=dtype, feature_level=_EXTENDED)


def _bytes(values: jax.Array, bits: int) -> jax.Array:
    """The codes of `values` in bytes, along K."""
    codes = bitcast(values, jnp.uint4).astype(jnp.uint8) if bits == 4 else bitcast(values, jnp.uint8)
    return subbyte.packed(codes, bits, -2)


def _largest(x: jax.Array, over: Sequence[int]) -> jax.Array:
    """``max|x|`` along `over`, which keep a size of 1."""
    return extremes.largest_magnitude(exact.numerator(x), tuple(over))


def _parameters(x: jax.Array, over: Sequence[int], dtype: str) -> tuple[jax.Array, jax.Array | None]:
    """The scale and the zero point, None for a signed type, that `x` shares along `over`, which keep a size of 1."""
    if not dtype.startswith("U"):
        largest = _largest(x, over)
        return scale_and_zero_point(-largest, largest, dtype, symmetric=True, narrow_range=True).scale, None
    scale, zero_point = scale_and_zero_point(*extremes.range_with_zero(exact.numerator(x), tuple(over)), dtype)
    return scale, zero_point


def _of_blocks(
    function: Callable[[jax.Array, Sequence[int]], Any], matrix: jax.Array, block_size: int, by_column: bool
) -> Any:
    """What `function` computes along dimensions for each block, or for the whole matrix, in shape (..., G, N)."""
    in_blocks = blocks.in_blocks(matrix, matrix.ndim - 2, block_size)
    over = (in_blocks.ndim - 2,) if by_column else tuple(range(in_blocks.ndim))
    sizes = *in_blocks.shape[:-2], 1, in_blocks.shape[-1]
    return jax.tree.map(lambda each: jnp.broadcast_to(each, sizes).squeeze(-2), function(in_blocks, over))


def _title(weight_type: str, by_column: bool, block_size: int | None, scale_type: str) -> str:
    scales = f"in blocks of {block_size}" if block_size else f"by {'channel' if by_column else 'tensor'}"
    return f"{weight_type.lower()} {scales}" + ("" if scale_type == "FLOAT32" else f", {scale_type.lower()} scales")


def why_not_stored(format: WeightFormat, stored: Any, shape: Sequence[int]) -> str | None:
    """Why `stored` cannot be the weights of a matrix of this shape in a format; None if it can, or is not packed."""
    wanted = {Columns: PackedMatrix, Blocks: PackedBlockMatrix}.get(type(format))
    if wanted is None:
        return None
    fields = {"values", "scale"} if wanted is PackedMatrix else {"values"}
    if not isinstance(stored, Mapping) or not fields <= set(stored) <= {*fields, "permutation"}:
        return f"they must be a dict with {' and '.join(sorted(fields))}"
    values = stored["values"]
    if not isinstance(values, wanted):
        return f"values is {shown(values)}; it must be a {wanted.__name__}"
    if values.shape != tuple(shape):
        return f"values is {values}, of shape {values.shape}; it must have shape {tuple(shape)}"
    return None


_FLOATS_OF_8_BITS = tuple(Float8.LARGEST)
INTEGER_PRODUCTS = "INT8", "UINT8", "INT4", "UINT4"
"""The types of weights that are multiplied by quantized inputs."""
WITH_OWN_SCALES = *Microscaling.ELEMENTS, "NVFP4"
"""The types whose scales have a type of their own."""
WEIGHT_TYPES = *INTEGER_PRODUCTS, "INT2", *_FLOATS_OF_8_BITS, *WITH_OWN_SCALES


def create(
    weight_type: str,
    by_column: bool,
    block_size: int | None,
    scale_type: str,
    k_parts: int,
    *,
    is_multiplied_by_floats: bool,
) -> WeightFormat:
    """The format of a matrix."""
    if weight_type == "NVFP4":
        return Nvfp4()
    if weight_type in Microscaling.ELEMENTS:
        return Microscaling(weight_type, block_size or 32)
    if weight_type in _FLOATS_OF_8_BITS:
        return Float8(weight_type, by_column, block_size, scale_type)
    if weight_type == "INT2":
        assert block_size is not None
        return TwoBits(block_size, scale_type)
    if weight_type.endswith("INT8") and block_size is None and not is_multiplied_by_floats:
        return Columns(weight_type, by_column, scale_type, k_parts)
    return Blocks(weight_type, by_column, block_size, scale_type, k_parts)


def create_for_filter(weight_type: str, by_channel: bool, scale_type: str) -> FilterFormat | None:
    """The format of a convolution's filter; None if convolutions do not take the type."""
    if weight_type in _FLOATS_OF_8_BITS:
        return Float8(weight_type, by_channel, None, scale_type)
    return Columns(weight_type, by_channel, scale_type) if weight_type == "INT8" else None
