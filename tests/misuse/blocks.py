"""Packed matrices with a scale for each block, and products with such matrices."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jquant

from .arguments import BYTES, FLOATS, ROWS, abstract, data_type, dtype_of, integer, matrix_sharding, mode, scale, zero_point
from .call import Argument, Call
from .kinds import Field, Nothing, PackedDataType, Tensor, exactly, one_element, one_element_or
from .samples import ints
from .values import Like


def calls() -> list[Call]:
    a, b = ints("int8", ROWS, 4), ints("int8", 4, 3)
    scales = np.full((2, 3), 0.5, np.float32)
    packed = jquant.pack_matrix(b, 1, scale=scales)
    any_float, rows = f"{FLOATS} bfloat16", one_element_or((ROWS,), (ROWS, 1))
    implementation = mode("implementation", None, "xla")
    a_arguments = {
        "a": Argument(a, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[1] == 4), "a"),
        "a_scale": scale("a_scale", shapes=rows, data_types=any_float),
        "a_zero_point": zero_point("a_zero_point", None, rows, "int8"),
    }
    biases = Tensor(
        any_float,
        lambda shape: (one_element(shape) and len(shape) <= 2) or shape in ((3,), (1, 3)),
        "float32",
        optional=True,
    )
    others = {
        "bias": Argument(None, biases, "bias", like=Like((3,), np.dtype(np.float32))),
        "k_parts": integer("k_parts", 1, (1, 2)),
        "output_dtype": data_type("output_dtype", None, any_float),
        "implementation": implementation,
    }
    block_scales = Tensor(any_float, exactly((2, 3)))
    zero_points = Tensor("int8", one_element_or((2, 3)), "int8", optional=True)

    def product(a: Any, a_scale: Any, output_dtype: Any, **_: Any) -> Any:
        return abstract((a.shape[0], 3), output_dtype or dtype_of(a_scale, "float32"))

    def pack(b: Any, scale: Any, zero_point: Any, minimum: Any, block_size: Any) -> Any:
        if scale is None:
            return jax.eval_shape(functools.partial(jquant.pack_matrix, block_size=block_size), b, zero_point)
        zero_point = None if zero_point is None else abstract((2, 3), "int8")
        arrays = {"data": abstract((4, 3), "int8"), "scale": abstract((2, 3), scale.dtype), "zero_point": zero_point}
        arrays["minimum"] = None if minimum is None else abstract((2, 3), minimum.dtype)
        return dataclasses.replace(packed, **arrays, dtype=jnp.dtype(b.dtype))

    def unpack(data: Any, scale: Any, zero_point: Any, dtype: Any) -> Any:
        return dataclasses.replace(packed, data=data, scale=scale, zero_point=zero_point, dtype=dtype).unpack()

    def unpack_with_minimum(minimum: Any) -> Any:
        return dataclasses.replace(packed, zero_point=None, minimum=minimum).unpack()

    def sharding_for(sharding: Any) -> Any:
        return packed.sharding_for(sharding)

    def shardings(sharding: Any) -> Any:
        on_mesh = isinstance(sharding, NamedSharding)
        k, n = (*(sharding.spec if on_mesh else sharding), None, None)[:2]
        spec = PartitionSpec(k, n)
        return jax.tree.map(lambda _: NamedSharding(sharding.mesh, spec) if on_mesh else spec, packed)

    return [
        Call(
            "block_scaled_matmul",
            {
                **a_arguments,
                "b": Argument(b, Tensor(f"{BYTES} int4", exactly((4, 3))), "b"),
                "b_scale": Argument(scales, block_scales, "b_scale"),
                "b_zero_point": Argument(None, zero_points, "b_zero_point", like=Like((2, 3), np.dtype(np.int8))),
                "block_size": integer("block_size", None, (2,), optional=True),
                **others,
            },
            product,
        ),
        Call(
            "block_scaled_matmul",
            {
                **a_arguments,
                "b_scale": Argument(None, Nothing(), "b_scale"),
                "b_zero_point": Argument(None, Nothing(), "b_zero_point"),
                "block_size": integer("block_size", None, (2,), optional=True),
                **others,
            },
            product,
            functools.partial(_by_packed, packed),
        ),
        Call(
            "pack_matrix",
            {
                "b": Argument(b, Tensor(f"{BYTES} int4", exactly((4, 3))), "b"),
                "scale": Argument(scales, Tensor(any_float, exactly((2, 3)), optional=True), "scale"),
                "zero_point": Argument(None, zero_points, "zero_point", like=Like((2, 3), np.dtype(np.int8))),
                "minimum": Argument(
                    None,
                    Tensor(any_float, exactly((2, 3)), optional=True),
                    "minimum",
                    like=Like((2, 3), np.dtype(np.float32)),
                ),
                "block_size": integer("block_size", None, (2,), optional=True),
            },
            pack,
        ),
        Call(
            "PackedBlockMatrix.unpack",
            {
                "data": Argument(packed.data, Field("int8", (4, 3)), "data"),
                "scale": Argument(packed.scale, Field(any_float, (2, 3)), "scale"),
                "zero_point": Argument(packed.zero_point, Field("int8", (2, 3), optional=True), "zero_point"),
                "dtype": Argument(packed.dtype, PackedDataType(), "dtype"),
            },
            lambda **_: abstract((4, 3), "int8"),
            unpack,
        ),
        Call(
            "PackedBlockMatrix.unpack",
            {"minimum": Argument(packed.scale, Field(any_float, (2, 3), optional=True), "minimum")},
            lambda **_: abstract((4, 3), "int8"),
            unpack_with_minimum,
        ),
        Call("PackedBlockMatrix.sharding_for", {"sharding": matrix_sharding()}, shardings, sharding_for),
    ]


def _by_packed(packed: jquant.PackedBlockMatrix, *, a: Any, a_scale: Any, a_zero_point: Any, **options: Any) -> Any:
    return jquant.block_scaled_matmul(a, a_scale, a_zero_point, packed, **options)
