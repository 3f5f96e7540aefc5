"""Packed matrices without scales for blocks."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jquant

from .arguments import BYTES, abstract, integer, matrix_sharding, zero_point
from .call import Argument, Call
from .kinds import Boolean, Field, PackedDataType, Tensor, one_element, one_element_or
from .samples import ints


def calls() -> list[Call]:
    b = ints("int8", 4, 3)
    packed = jquant.pack_matrix(b, 1)

    def pack(b: Any, zero_point: Any, block_size: Any, k_major: Any) -> Any:
        *batch, k, n = b.shape
        blocks = 1 if block_size is None else k // block_size
        if zero_point is not None:
            columns = 1 if one_element(jnp.shape(zero_point)) else n
            zero_point = abstract((*batch, 1, columns), b.dtype)
        return jquant.PackedMatrix(
            abstract((*batch, n, k), "int8"), abstract((*batch, blocks, n), "int32"), zero_point, jnp.dtype(b.dtype)
        )

    def unpack(data: Any, block_sums: Any, zero_point: Any, dtype: Any) -> Any:
        return jquant.PackedMatrix(data, block_sums, zero_point, dtype).unpack()

    def sharding_for(sharding: Any) -> Any:
        return packed.sharding_for(sharding)

    def shardings(sharding: Any) -> Any:
        on_mesh = isinstance(sharding, NamedSharding)
        k, n = (*(sharding.spec if on_mesh else sharding), None, None)[:2]
        specs = (PartitionSpec(*entries) for entries in ((n, k), (k, n), (None, None)))
        places = (NamedSharding(sharding.mesh, spec) if on_mesh else spec for spec in specs)
        return jquant.PackedMatrix(*places, np.dtype(np.int8))

    return [
        Call(
            "pack_matrix",
            {
                "b": Argument(b, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[0] % 2 == 0), "b"),
                "zero_point": zero_point("zero_point", 1, one_element_or((3,), (1, 3)), "int8"),
                "block_size": integer("block_size", 2, (1, 2, 4), optional=True),
                "k_major": Argument(False, Boolean((False,)), "k_major"),
            },
            pack,
        ),
        Call(
            "PackedMatrix.unpack",
            {
                "data": Argument(packed.data, Field("int8", (3, 4)), "data"),
                "block_sums": Argument(packed.block_sums, Field("int32", (1, 3)), "block_sums"),
                "zero_point": Argument(packed.zero_point, Field("int8", (1, 1), optional=True), "zero_point"),
                "dtype": Argument(packed.dtype, PackedDataType(), "dtype"),
            },
            lambda **_: abstract((4, 3), "int8"),
            unpack,
        ),
        Call("PackedMatrix.sharding_for", {"sharding": matrix_sharding()}, shardings, sharding_for),
    ]
