"""Narrow floats that quantized inputs are multiplied by: as integers, a power of two larger, with smaller scales.

Twice a float of 4 bits is an integer of at most 12, eight times one of 6 bits (e2m3) of at most 60, and 64 times an element
of MXINT8 of at most 127. So products with integers are those of `block_scaled_matmul`, exact in each block.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jquant.arithmetic import e8m0, exact, four_bit_floats, narrow_floats, packed_int4
from jquant.kernels.packed import pack_blocks, pack_codes
from jquant.lowering.bitcast import bitcast
from jquant.operators.block_scaled_matmul import block_scaled_matmul
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.transform.formats.float_formats import Codes, Microscaling, Nvfp4
from jquant.transform.formats.stored_weights import BlockParameters, Stored, Take

_DOUBLED = 1  # the power of two by which floats of 4 bits are larger as integers
_POWERS = {"MXFP4": _DOUBLED, "MXFP6E2M3FN": 3, "MXINT8": 6}
WEIGHT_TYPES = *_POWERS, "NVFP4"
_TENSOR_SCALE = "tensor_scale"


class AsIntegers(Codes):
    """Stored as ``values``, a `PackedBlockMatrix` of int8, which holds the scales; those of 4 bits take 4 bits."""

    k_parts: int

    def why_not_in_parts(self, rows: int) -> str | None:
        blocks = -(-rows // self.rows_of_a_block(rows))
        return f"{blocks} blocks have no {self.k_parts} equal parts" if blocks % self.k_parts else None

    def dequantize(self, stored: Stored, rows: int, dtype: np.dtype) -> jax.Array:
        matrix: PackedBlockMatrix = stored["values"]
        keywords = {"axis": -2, "block_size": matrix.block_size, "output_dtype": jnp.float32, "feature_level": "EXTENDED"}
        weights = dequantize_linear(matrix.unpack(), matrix.scale, **keywords)
        if _TENSOR_SCALE in stored:
            weights = exact.product(weights, stored[_TENSOR_SCALE])
        return exact.narrow(weights, dtype)

    def columns(self, stored: Stored, take: Take) -> Stored:
        return {**stored, "values": jax.tree.map(lambda array: take(array, 1), stored["values"])}

    def specs(self, stored: Stored, batch: Sequence[Any], rows: Any, columns: Any) -> Stored:
        others = {name: PartitionSpec() for name in stored if name != "values"}
        return {"values": stored["values"].sharding_for(PartitionSpec(*batch, rows, columns)), **others}

    def multiply(
        self, x: jax.Array, scale: jax.Array, zero_point: jax.Array | None, stored: Stored, dtype: np.dtype
    ) -> jax.Array:
        """The product of integers, as floats of `dtype`."""
        if _TENSOR_SCALE in stored:
            scale = exact.product(scale, stored[_TENSOR_SCALE])
        matrix = stored["values"]
        k_parts = math.gcd(self.k_parts, matrix.scale.shape[-2])  # inside `shard_map`, a device may have fewer blocks
        return block_scaled_matmul(x, scale, zero_point, matrix, k_parts=k_parts, output_dtype=dtype)


@dataclasses.dataclass(frozen=True)
class MicroscalingIntegers(AsIntegers, Microscaling):
    """A Microscaling format as integers, with scales in bfloat16, which holds the smaller powers of two.

    Scales are not so small that they would be subnormal as those of integers.
    """

    k_parts: int = 1

    @property
    def _power(self) -> int:
        return _POWERS[self.weight_type]

    @property
    def smallest_range(self) -> float:
        return 2.0 ** (self._power - 126)

    def parameters(self, matrix: jax.Array, share: jax.Array | None = None) -> BlockParameters:
        code = super().parameters(matrix, share)["scale"]
        return {"scale": jnp.maximum(code, np.uint8(self._power + 1))}

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        values, scale = self._quantized(matrix, parameters), _smaller_power(parameters["scale"], self._power)
        if self.weight_type == "MXFP4":
            return {"values": _packed_codes(values, scale, self.block_size)}
        if self.weight_type != "MXINT8":  # codes: a whole number of units is a float times a power of two
            floats = narrow_floats.decode(values, narrow_floats.FLOATS_OF_6_BITS[jnp.dtype(self._element)])
            values = exact.product(floats, jnp.float32(2.0**self._power)).astype(jnp.int8)
        return {"values": pack_blocks(values, scale, None, None, self.block_size)}


@dataclasses.dataclass(frozen=True)
class Nvfp4Integers(AsIntegers, Nvfp4):
    """NVFP4 as integers, with half of the scales in bfloat16; by ``tensor_scale``, the input's scales are multiplied."""

    k_parts: int = 1

    def store(self, matrix: jax.Array, parameters: BlockParameters) -> Stored:
        scale = bitcast(parameters["scale"], jnp.float8_e4m3fn).astype(jnp.bfloat16) * jnp.bfloat16(0.5)
        values = _packed_codes(self._quantized(matrix, parameters), scale, self.BLOCK_SIZE)
        return {"values": values, _TENSOR_SCALE: parameters[_TENSOR_SCALE]}


def _smaller_power(code: jax.Array, power: int) -> jax.Array:
    """The powers of two of these codes over ``2**power``, in bfloat16."""
    exponent = code.astype(jnp.uint16) - np.uint16(power)
    bits = lax.select(code == e8m0.NAN, jnp.full_like(exponent, 0x7FC0), exponent << np.uint16(7))
    return bitcast(bits, jnp.bfloat16)


def _packed_codes(values: jax.Array, scale: jax.Array, block_size: int) -> PackedBlockMatrix:
    """Twice the floats of 4 bits, in 4 bits where whole words of them fill a block."""
    codes = bitcast(values, jnp.uint4).astype(jnp.uint8)
    if block_size % packed_int4.PER_WORD == 0:
        return pack_codes(codes, scale, block_size)
    return pack_blocks(four_bit_floats.doubled(codes.astype(jnp.int8)), scale, None, None, block_size)
