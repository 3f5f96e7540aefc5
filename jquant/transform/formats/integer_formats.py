"""Weights that are integers, with scales for columns or for blocks of them."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jquant.arithmetic import exact, rounding, subbyte
from jquant.formulas import blocks, extremes
from jquant.kernels.packed import block_size_for
from jquant.modes import FeatureLevel
from jquant.operators.block_scaled_matmul import block_scaled_matmul
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.operators.pack_matrix import pack_matrix
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
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


@dataclasses.dataclass(frozen=True)
class Columns:
    """8-bit integers with a scale for each column or one for all: what `matmul_integer_to_float` takes.

    Stored as ``values``, a `PackedMatrix`, and ``scale``, of shape (..., N) or ().
    """

    weight_type: str
    by_column: bool
    scale_type: str
    k_parts: int = 1

    shares: ClassVar[Sequence[float]] = SHARES

    @property
    def title(self) -> str:
        return title_of(self.weight_type, self.by_column, None, self.scale_type)

    @property
    def smallest_range(self) -> float:
        return smallest_scale(self.scale_type) * _steps(self.weight_type) / 4  # steps would be more than four times as long

    def why_not_in_parts(self, rows: int) -> str | None:
        return f"{rows} rows have no {self.k_parts} equal parts" if rows % self.k_parts else None

    def rows_of_a_block(self, rows: int) -> int:
        return rows

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        return self._parameters(matrix, (matrix.ndim - 2,), share)

    def _parameters(self, x: jax.Array, over: Sequence[int], share: jax.Array | None = None) -> BlockParameters:
        """What elements along the dimensions `over` share, which keep a size of 1, or all: then it has shape ()."""
        over = tuple(over) if self.by_column else tuple(range(x.ndim))
        parameters = _parameters(x, over, self.weight_type, self.scale_type, share)
        return parameters if self.by_column else jax.tree.map(lambda each: each.reshape(()), parameters)

    def _quantized(self, x: jax.Array, parameters: BlockParameters) -> jax.Array:
        return quantize_linear(x, *_affine(parameters), output_dtype=self.weight_type, feature_level=_EXTENDED)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        values = self._quantized(matrix, parameters)
        return dequantize_linear(values, *_affine(parameters), output_dtype=jnp.float32, feature_level=_EXTENDED)

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        values = self._quantized(matrix, parameters)
        scale, zero_point = _affine(parameters)
        if self.by_column:
            scale = scale.squeeze(-2)
        block_size = None if self.k_parts == 1 else block_size_for(matrix.shape[-2] // self.k_parts)
        pack = functools.partial(pack_matrix, block_size=block_size)
        if zero_point is not None:
            for _ in range(matrix.ndim - 2):  # each matrix of a batch has its own zero points
                pack = jax.vmap(pack, (0, 0 if self.by_column else None))
            zero_point = zero_point.squeeze(-2) if self.by_column else zero_point
        return {"values": pack(values, zero_point), "scale": scale}

    def pack_filter(self, filter: jax.Array, channel: int) -> Stored:
        over = without(channel, filter)
        parameters = self._parameters(filter, over)
        values, scale = self._quantized(filter, parameters), parameters["scale"]
        return {"values": values, "scale": scale.squeeze(over) if scale.ndim else scale}

    def dequantize_filter(self, stored: Stored, channel: int, dtype: np.dtype) -> jax.Array:
        return dequantized_filter(stored["values"], stored["scale"], channel, dtype)

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        values, scale, zero_point = stored["values"], stored["scale"], stored["values"].zero_point
        scale = scale[..., None, :] if scale.ndim else scale
        if zero_point is not None and not self.by_column:
            zero_point = zero_point.reshape(-1)[0]  # that of all matrices of a batch
        return dequantize_linear(values.unpack(), scale, zero_point, output_dtype=dtype, feature_level=_EXTENDED)

    def columns(self, stored: Stored, take: Take) -> Stored:
        values, scale = stored["values"], stored["scale"]
        data, zero_point = take(values.data, 0), values.zero_point
        if zero_point is not None:
            zero_point = take(zero_point, 1) if self.by_column else zero_point.reshape((1,) * data.ndim)
        taken = PackedMatrix(data, take(values.block_sums, 1), zero_point, values.dtype)
        return {"values": taken, "scale": take(scale[None], 1).squeeze(-2) if scale.ndim else scale}

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        values = stored["values"].sharding_for(PartitionSpec(*batch, rows, columns))
        return {"values": values, "scale": PartitionSpec(*batch, columns) if self.by_column else PartitionSpec()}

    def why_not_split(self, rows: int, parts: int) -> str | None:
        blocks = rows // block_size_for(rows // self.k_parts)
        if blocks % parts == 0:
            return None
        return f"{parts} devices would split the blocks of column sums of its {rows} rows: pass k_parts={parts}"

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

    shares: ClassVar[Sequence[float]] = SHARES

    @property
    def title(self) -> str:
        return title_of(self.weight_type, self.by_column, self.block_size, self.scale_type)

    @property
    def smallest_range(self) -> float:
        return smallest_scale(self.scale_type) * _steps(self.weight_type) / 4  # steps would be more than four times as long

    def why_not_in_parts(self, rows: int) -> str | None:
        blocks = -(-rows // (self.block_size or rows))
        return f"{blocks} blocks have no {self.k_parts} equal parts" if blocks % self.k_parts else None

    def rows_of_a_block(self, rows: int) -> int:
        return self.block_size or -(-rows // 4) * 4  # whole words of 4 integers of 4 bits

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        block_size = self.rows_of_a_block(matrix.shape[-2])
        return _parameters_of_blocks(matrix, block_size, self.by_column, self.weight_type, self.scale_type, share)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        return _rounded_in_blocks(matrix, parameters, self.rows_of_a_block(matrix.shape[-2]), self.weight_type)

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        block_size = self.rows_of_a_block(matrix.shape[-2])
        values = _quantized_in_blocks(matrix, parameters, block_size, self.weight_type)
        scale, zero_point = _affine(parameters)
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

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        return {"values": stored["values"].sharding_for(PartitionSpec(*batch, rows, columns))}

    def why_not_split(self, rows: int, parts: int) -> str | None:
        return why_no_whole_blocks(rows, parts, self.block_size or rows)

    def multiply(
        self, x: jax.Array, scale: jax.Array, zero_point: jax.Array | None, stored: Stored, dtype: np.dtype
    ) -> jax.Array:
        """The product of integers, as floats of `dtype`."""
        x, matrix = _permuted(x, stored), stored["values"]
        k_parts = math.gcd(self.k_parts, matrix.scale.shape[-2])  # inside `shard_map`, a device may have fewer blocks
        return block_scaled_matmul(x, scale, zero_point, matrix, k_parts=k_parts, output_dtype=dtype)

    def multiply_floats(self, x: jax.Array, stored: Stored) -> jax.Array:
        """The product of floats and weights, in the dtype of `x`."""
        x = _permuted(x, stored)
        return matmul_n_bits(x, stored["values"], compute_dtype="BFLOAT16" if x.dtype == jnp.bfloat16 else None)


@dataclasses.dataclass(frozen=True)
class TwoBits:
    """Integers of 2 bits with a scale for each block of a column: what `matmul_n_bits` takes.

    They reach from -1 to 1, and with a searched range to -2 as well. Stored in its layout: ``values``, uint8, of shape
    (..., N, G, block size / 4), and ``scale``, of shape (..., N, G).
    """

    block_size: int
    scale_type: str

    shares: ClassVar[Sequence[float]] = *SHARES, *(-share for share in SHARES)  # by a negative scale, -2 is above

    @property
    def title(self) -> str:
        return title_of("INT2", True, self.block_size, self.scale_type)

    @property
    def smallest_range(self) -> float:
        return smallest_scale(self.scale_type) * _steps("INT2") / 4  # steps would be more than four times as long

    def rows_of_a_block(self, rows: int) -> int:
        return self.block_size

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        return _parameters_of_blocks(matrix, self.block_size, True, "INT2", self.scale_type, share)

    def rounded(self, matrix: jax.Array, parameters: BlockParameters) -> jax.Array:
        return _rounded_in_blocks(matrix, parameters, self.block_size, "INT2")

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        scale = parameters["scale"]
        codes = _quantized_in_blocks(matrix, parameters, self.block_size, "INT2").astype(jnp.int8) + np.int8(2)
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

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        spec = PartitionSpec(*batch, columns, rows)
        return {"values": spec, "scale": spec}

    def why_not_split(self, rows: int, parts: int) -> str | None:
        return why_no_whole_blocks(rows, parts, self.block_size)

    def multiply_floats(self, x: jax.Array, stored: Stored) -> jax.Array:
        """The product of floats and weights, in the dtype of `x`."""
        compute_dtype = "BFLOAT16" if x.dtype == jnp.bfloat16 else None
        return matmul_n_bits(x, stored["values"], stored["scale"].astype(x.dtype), bits=2, compute_dtype=compute_dtype)


def _permuted(x: jax.Array, stored: Stored) -> jax.Array:
    """The columns of `x` in the order of the rows of a checkpoint's weights."""
    return jnp.take(x, stored["permutation"], axis=-1) if "permutation" in stored else x


def _parameters(
    x: jax.Array, over: Sequence[int], weight_type: str, scale_type: str, share: jax.Array | None = None
) -> BlockParameters:
    """The scale and, for an unsigned type, the zero point that `x` shares along `over`, which keep a size of 1."""
    if weight_type in ("INT8", "INT2"):
        of_magnitude = None if share is None else lax.abs(share)
        scale, _ = scale_of(share_of(largest(x, over), of_magnitude), _steps(weight_type), scale_type)
        return {"scale": scale if share is None else jnp.where(share < 0, -scale, scale)}
    low, high = extremes.range_with_zero(exact.numerator(x), tuple(over))
    if weight_type == "INT4":  # the number that is the farthest from 0 becomes -8, by a negative scale if it is positive
        scale, _ = scale_of(share_of(lax.max(-low, high), share), _steps(weight_type) + 1, scale_type)
        return {"scale": jnp.where(high > -low, -scale, scale)}
    low, high = share_of(low, share), share_of(high, share)
    scale, is_limited = scale_of(high - low, _steps(weight_type), scale_type)
    zero_point = scale_and_zero_point(low, high, weight_type).zero_point
    assert zero_point is not None
    of_limited = rounding.nearest_integer(exact.quotient(-low, exact.widen(scale)), None, zero_point.dtype)
    return {"scale": scale, "zero_point": jnp.where(is_limited, of_limited, zero_point)}


def _steps(weight_type: str) -> int:
    """The largest integer of a type."""
    return int(jnp.iinfo(weight_type.lower()).max)


def _affine(parameters: BlockParameters) -> tuple[jax.Array, jax.Array | None]:
    """The scale, and the zero point or None."""
    return parameters["scale"], parameters.get("zero_point")


def _parameters_of_blocks(
    matrix: jax.Array, block_size: int, by_column: bool, weight_type: str, scale_type: str, share: jax.Array | None
) -> BlockParameters:
    """`_parameters` of each block, or of the whole matrix, in shape (..., G, N)."""
    share = None if share is None else jnp.expand_dims(share, -2)
    parameters = functools.partial(_parameters, weight_type=weight_type, scale_type=scale_type, share=share)
    return of_blocks(parameters, matrix, block_size, by_column)


def _quantized_in_blocks(matrix: jax.Array, parameters: BlockParameters, block_size: int, weight_type: str) -> jax.Array:
    keywords = {"axis": -2, "block_size": block_size, "output_dtype": weight_type, "feature_level": _EXTENDED}
    return quantize_linear(matrix, *_affine(parameters), **keywords)


def _rounded_in_blocks(matrix: jax.Array, parameters: BlockParameters, block_size: int, weight_type: str) -> jax.Array:
    values = _quantized_in_blocks(matrix, parameters, block_size, weight_type)
    keywords = {"axis": -2, "block_size": block_size, "feature_level": _EXTENDED}
    return dequantize_linear(values, *_affine(parameters), **keywords, output_dtype=jnp.float32)
