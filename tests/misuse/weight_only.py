"""Products with weights of 4 bits, and look-ups in embeddings of 4 bits."""

from typing import Any

import numpy as np

import jquant

from .arguments import abstract, data_type, integer
from .call import Argument, Call
from .kinds import WRONG, Integer, Kind, Nothing, Tensor, exactly, ranks
from .samples import floats, ints
from .values import Like


class BlockMatrix(Kind):
    """Packed weights in blocks, of one shape; an array would need scales."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def canonical(self, value: object) -> object:
        return value if isinstance(value, jquant.PackedBlockMatrix) and value.shape == self.shape else WRONG


def calls() -> list[Call]:
    """Weights in two blocks of 32 rows, and an embedding in blocks of 16 columns."""
    compute = data_type("compute_dtype", None, "float32 bfloat16")
    bits = integer("bits", 4, (4,), optional=True)
    a = Argument(floats(2, 64), Tensor("float32", lambda shape: 0 < len(shape) <= 8 and shape[-1] == 64), "a")
    bias = Argument(floats(3), Tensor("float32", exactly((3,)), optional=True), "bias")
    packed = jquant.pack_matrix(ints("uint4", 64, 3), scale=floats(2, 3))

    def product(a: Any, **_: Any) -> Any:
        return abstract((*a.shape[:-1], 3), a.dtype)

    def gathered(indices: Any, scales: Any, **_: Any) -> Any:
        return abstract((*indices.shape, 32), scales.dtype)

    return [
        Call(
            "matmul_n_bits",
            {
                "a": a,
                "b": Argument(ints("uint8", 3, 2, 16), Tensor("uint8", exactly((3, 2, 16))), "b"),
                "scales": Argument(floats(3, 2), Tensor("float32", exactly((3, 2), (6,))), "scales"),
                "zero_points": Argument(
                    ints("uint8", 3, 1), Tensor("uint8", exactly((3, 1), (3,)), optional=True), "zero_points"
                ),
                "g_idx": Argument(np.zeros(64, np.int32), Tensor("int32", exactly((64,)), optional=True), "g_idx"),
                "bias": bias,
                "bits": bits,
                "compute_dtype": compute,
            },
            product,
        ),
        Call(
            "matmul_n_bits",
            {
                "a": a,
                "b": Argument(packed, BlockMatrix((64, 3)), "b scales", like=Like((64, 3), np.dtype(np.int8))),
                **{name: Argument(None, Nothing(), name) for name in ("scales", "zero_points", "g_idx")},
                "bias": bias,
                "bits": bits,
                "compute_dtype": compute,
            },
            product,
        ),
        Call(
            "gather_block_quantized",
            {
                "data": Argument(ints("uint8", 3, 16), Tensor("uint8", exactly((3, 16))), "data quantize_axis"),
                "indices": Argument(ints("int32", 2), Tensor("int32 int64", ranks(0, 8)), "indices"),
                "scales": Argument(floats(3, 2), Tensor("float32 float16 bfloat16", exactly((3, 2))), "scales"),
                "zero_points": Argument(ints("uint8", 3, 1), Tensor("uint8", exactly((3, 1)), optional=True), "zero_points"),
                "gather_axis": integer("gather_axis", 0, (0, -2)),
                "quantize_axis": integer("quantize_axis", 1, (1, -1)),
                "block_size": Argument(16, Integer((16,)), "block_size scales"),
                "bits": Argument(4, Integer((4,)), "bits scales"),
            },
            gathered,
        ),
    ]
