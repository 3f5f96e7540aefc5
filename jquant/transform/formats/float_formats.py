"""Weights that are narrow floats, or integers with scales that are powers of two, stored as codes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jquant.arithmetic import exact, float_bits, subbyte
from jquant.formulas import blocks, mx, nvfp4
from jquant.lowering.bitcast import bitcast
from jquant.modes import FeatureLevel
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.mx import mx_dequantize
from jquant.operators.nvfp4 import nvfp4_dequantize
from jquant.operators.quantize_linear import quantize_linear
from jquant.transform.formats.stored_weights import (
    SHARES,
    BlockParameters,
    Stored,
    Take,
    dequantized_filter,
    largest,
    of_blocks,
    scale_of,
    share_of,
    smallest_scale,
    title_of,
    why_no_whole_blocks,
    without,
)

_EXTENDED = FeatureLevel.EXTENDED


class Codes:
    """Narrow floats, stored as the codes of elements and scales, with scales for blocks along K: all arrays end with N."""

    shares: ClassVar[Sequence[float]] = SHARES

    def rows_of_a_block(self, rows: int) -> int:
        raise NotImplementedError

    def columns(self, stored: Stored, take: Take) -> Stored:
        return {name: take(array, 1) if array.ndim > 1 else array for name, array in stored.items()}

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        spec = PartitionSpec(*batch, rows, columns)
        rank = stored["values"].ndim  # a scale of the tensor has the dimensions of layers alone
        return {name: spec if array.ndim == rank else PartitionSpec() for name, array in stored.items()}

    def why_not_split(self, rows: int, parts: int) -> str | None:
        return why_no_whole_blocks(rows, parts, self.rows_of_a_block(rows))


@dataclasses.dataclass(frozen=True)
class Float8(Codes):
    """8-bit floats with a scale for each block of a column, for each column, or for all.

    The scale is ``max|x| / 448`` for FLOAT8E4M3FN, and ``max|x| / 57344`` for FLOAT8E5M2. Stored as ``values``, the codes in
    uint8, of shape (..., K, N), and ``scale``, of shape (..., G, N).
    """

    weight_type: str
    by_column: bool
    block_size: int | None
    scale_type: str

    LARGEST: ClassVar = {"FLOAT8E4M3FN": np.float32(448), "FLOAT8E5M2": np.float32(57344)}
    STEPS: ClassVar = {"FLOAT8E4M3FN": 14, "FLOAT8E5M2": 7}  # of the length of those below the largest number
    _SMALLEST_NORMAL: ClassVar = {"FLOAT8E4M3FN": 2.0**-6, "FLOAT8E5M2": 2.0**-14}

    @property
    def title(self) -> str:
        return title_of(self.weight_type, self.by_column, self.block_size, self.scale_type)

    @property
    def smallest_range(self) -> float:
        return smallest_scale(self.scale_type) * self._SMALLEST_NORMAL[self.weight_type]

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        bound = of_blocks(largest, matrix, self.rows_of_a_block(matrix.shape[-2]), self.by_column)
        return {"scale": self._scale(share_of(bound, share))}

    def _quantized(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        keywords = {"axis": -2, "block_size": self.rows_of_a_block(matrix.shape[-2]), "feature_level": _EXTENDED}
        return quantize_linear(matrix, parameters["scale"], output_dtype=self.weight_type, **keywords)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        keywords = {"axis": -2, "block_size": self.rows_of_a_block(matrix.shape[-2]), "feature_level": _EXTENDED}
        return dequantize_linear(
            self._quantized(matrix, parameters), parameters["scale"], **keywords, output_dtype=jnp.float32
        )

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        return {"values": bitcast(self._quantized(matrix, parameters), jnp.uint8), "scale": parameters["scale"]}

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        over = without(channel, filter)
        scale = self._scale(largest(filter, over if self.by_column else range(filter.ndim)))
        scale = scale if self.by_column else scale.reshape(())
        values = quantize_linear(filter, scale, output_dtype=self.weight_type, feature_level=_EXTENDED)
        return {"values": bitcast(values, jnp.uint8), "scale": scale.squeeze(over) if scale.ndim else scale}

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        return dequantized_filter(self._numbers(stored["values"]), stored["scale"], channel, dtype)

    def rows_of_a_block(self, rows: int) -> int:
        return self.block_size or rows

    def _scale(self, bound: jax.Array) -> jax.Array:
        return scale_of(bound, float(self.LARGEST[self.weight_type]), self.scale_type, self.STEPS[self.weight_type])[0]

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        keywords = {"axis": -2, "block_size": self.block_size or rows, "output_dtype": dtype, "feature_level": _EXTENDED}
        return dequantize_linear(self._numbers(stored["values"]), stored["scale"], **keywords)

    def _numbers(self, codes: jax.Array) -> jax.Array:
        """The 8-bit floats of their codes."""
        return bitcast(codes, {"FLOAT8E4M3FN": jnp.float8_e4m3fn, "FLOAT8E5M2": jnp.float8_e5m2}[self.weight_type])


@dataclasses.dataclass(frozen=True)
class Microscaling(Codes):
    """A format of the OCP Microscaling specification: what `mx_quantize` computes along K.

    Stored as ``values``, uint8, of shape (..., K * bits / 8, N): the codes, of which those of 4 and 6 bits follow one
    another in the bits of bytes, the first in the lowest; and ``scale``, the codes of powers of two in uint8, of shape
    (..., G, N).
    """

    weight_type: str
    block_size: int

    shares: ClassVar[Sequence[float]] = (
        1.0,
        2.0,
        0.5,
    )  # scales are powers of two, and the largest element may lie beyond the numbers
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

    @property
    def smallest_range(self) -> float:
        return 0.0  # powers of two reach as far down as float32

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        bound = of_blocks(largest, matrix, self.block_size, True)
        return {"scale": mx.scale_code(float_bits.bits(share_of(bound, share)), jnp.dtype(self._element))}

    @property
    def _element(self) -> Any:
        return self.ELEMENTS[self.weight_type][0]

    def _quantized(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        return mx.elements(exact.numerator(matrix), self._codes(matrix, parameters), jnp.dtype(self._element))

    def _codes(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        """The code of the scale of each element."""
        axis = matrix.ndim - 2
        return blocks.repeat(parameters["scale"], axis, self.block_size, matrix.shape[axis]).astype(jnp.int32)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        values = self._quantized(matrix, parameters)
        return mx.numbers(values, self._codes(matrix, parameters), jnp.dtype(self._element))

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        bits = self.ELEMENTS[self.weight_type][1]
        return {"values": _bytes(self._quantized(matrix, parameters), bits), "scale": parameters["scale"]}

    def rows_of_a_block(self, rows: int) -> int:
        return self.block_size

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        element, bits = self.ELEMENTS[self.weight_type]
        codes = subbyte.unpacked_along(stored["values"], bits, -2, rows)
        values = codes if bits < 8 else bitcast(codes, jnp.dtype(element))
        scale = bitcast(stored["scale"], jnp.float8_e8m0fnu)
        return mx_dequantize(values, scale, element_type=element, axis=-2, block_size=self.block_size, output_dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Nvfp4(Codes):
    """4-bit floats in blocks of 16: what `nvfp4_quantize` computes along K.

    Stored as ``values``, uint8, of shape (..., K / 2, N), with two codes in each byte, the first in the lower bits;
    ``scale``, the codes of 8-bit floats in uint8, of shape (..., G, N); and ``tensor_scale``, float32, of shape ().
    """

    BLOCK_SIZE: ClassVar = nvfp4.BLOCK_SIZE
    shares: ClassVar[Sequence[float]] = *SHARES, 1.5  # of which the largest element becomes 4 in place of 6

    @property
    def title(self) -> str:
        return f"nvfp4 in blocks of {self.BLOCK_SIZE}"

    @property
    def smallest_range(self) -> float:
        return 2.0**-110  # a tensor scale of 2**-100 times the smallest of blocks, 2**-9, times 2

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        tensor_scale = nvfp4.tensor_scale_of(exact.numerator(matrix), is_clipped=True)
        whole = of_blocks(largest, matrix, self.BLOCK_SIZE, True)
        bound = jnp.minimum(share_of(whole, share), whole.max(initial=0))  # the scales hold no more than the largest of all
        scale = nvfp4.scale_of(float_bits.bits(bound), tensor_scale)
        return {"scale": bitcast(scale, jnp.uint8), "tensor_scale": tensor_scale}

    def _quantized(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        scale = bitcast(parameters["scale"], jnp.float8_e4m3fn)
        return nvfp4.elements(exact.numerator(matrix), scale, parameters["tensor_scale"], matrix.ndim - 2)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        scale = bitcast(parameters["scale"], jnp.float8_e4m3fn)
        return nvfp4.numbers(self._quantized(matrix, parameters), scale, parameters["tensor_scale"], matrix.ndim - 2)

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        return {"values": _bytes(self._quantized(matrix, parameters), 4), **parameters}

    def rows_of_a_block(self, rows: int) -> int:
        return self.BLOCK_SIZE

    def why_not_split(self, rows: int, parts: int) -> str | None:
        return why_no_whole_blocks(rows, parts, self.BLOCK_SIZE, "NVFP4 has no other: split its columns")

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        codes = subbyte.unpacked_along(stored["values"], 4, -2, rows)
        scale = bitcast(stored["scale"], jnp.float8_e4m3fn)
        return nvfp4_dequantize(codes, scale, stored["tensor_scale"], axis=-2, output_dtype=dtype)


def _bytes(values: jax.Array, bits: int) -> jax.Array:
    """The codes of `values` in bytes, along K."""
    codes = bitcast(values, jnp.uint4).astype(jnp.uint8) if bits == 4 else bitcast(values, jnp.uint8)
    return subbyte.packed(codes, bits, -2)
