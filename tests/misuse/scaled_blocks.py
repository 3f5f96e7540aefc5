"""Quantization to the Microscaling formats and NVFP4, in blocks that share a scale."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant

from .arguments import COLUMNS, FLOAT, OPTIONAL_FLOAT, ROWS, abstract, data_type, integer
from .call import Argument, Call
from .kinds import (
    Integer,
    Tensor,
    exactly,
    ranks,
)
from .samples import floats, ints


def calls() -> list[Call]:
    """Each row is one block."""
    x = Argument(floats(ROWS, COLUMNS), Tensor("float32 float16 bfloat16", ranks(1, 99), "float32"), "x input")
    axis = Argument(-1, Integer(range(-2, 2)), "axis")
    elements = "float8_e4m3fn float8_e5m2 float4_e2m1fn float6_e2m3fn float6_e3m2fn int8"
    values = np.ones((ROWS, COLUMNS), np.int8)
    nvfp4_values = np.ones((ROWS, COLUMNS), jnp.float4_e2m1fn)
    scales = np.ones((ROWS, 1), jnp.float8_e8m0fnu)
    nvfp4_scales = np.ones((ROWS, 1), jnp.float8_e4m3fn)

    def blocks(x: Any, axis: int, size: int) -> list[int]:
        sizes = list(x.shape)
        sizes[axis] = -(-sizes[axis] // size)
        return sizes

    def stored(element: Any) -> Any:
        return "uint8" if "6" in jnp.dtype(element).name[5:6] else element

    def mx(x: Any, element_type: Any, axis: int, block_size: int) -> Any:
        scale = abstract(blocks(x, axis, block_size), "float8_e8m0fnu")
        return jquant.MxQuantizeOutput(abstract(x.shape, stored(element_type)), scale)

    def nvfp4(x: Any, axis: int, **_: Any) -> Any:
        scale = abstract(blocks(x, axis, 16), "float8_e4m3fn")
        return jquant.Nvfp4QuantizeOutput(abstract(x.shape, "float4_e2m1fn"), scale, abstract((), "float32"))

    output = data_type("output_dtype", "float32", "float32 float16 bfloat16")
    last = dataclasses.replace(axis, kind=Integer((-1, 1)))
    return [
        Call(
            "mx_quantize",
            {
                "x": x,
                "element_type": data_type("element_type", "float8_e4m3fn", elements),
                "axis": axis,
                "block_size": integer("block_size", 32, range(1, 2**62)),
            },
            mx,
        ),
        Call(
            "mx_dequantize",
            {
                "values": Argument(
                    values, Tensor("int8 float8_e4m3fn float8_e5m2 float4_e2m1fn", exactly(values.shape)), "values axis"
                ),
                "scale": Argument(scales, Tensor("float8_e8m0fnu", exactly(scales.shape)), "scale"),
                "axis": last,
                "block_size": integer("block_size", 32, range(3, 2**62)),
                "output_dtype": output,
            },
            lambda values, output_dtype, **_: abstract(values.shape, output_dtype),
        ),
        Call(
            "mx_dequantize",
            {
                "values": Argument(ints("uint8", ROWS, COLUMNS), Tensor("uint8", exactly(values.shape)), "values axis"),
                "scale": Argument(scales, Tensor("float8_e8m0fnu", exactly(scales.shape)), "scale"),
                "element_type": data_type("element_type", "float6_e2m3fn", "float6_e2m3fn float6_e3m2fn"),
            },
            lambda values, **_: abstract(values.shape, "float32"),
        ),
        Call(
            "nvfp4_quantize",
            {"x": x, "tensor_scale": Argument(None, OPTIONAL_FLOAT, "tensor_scale"), "axis": axis},
            nvfp4,
        ),
        Call(
            "nvfp4_dequantize",
            {
                "values": Argument(nvfp4_values, Tensor("float4_e2m1fn uint8", exactly(values.shape)), "values axis"),
                "scale": Argument(nvfp4_scales, Tensor("float8_e4m3fn", exactly(scales.shape)), "scale"),
                "tensor_scale": Argument(1.0, FLOAT, "tensor_scale"),
                "axis": last,
                "output_dtype": output,
            },
            lambda values, output_dtype, **_: abstract(values.shape, output_dtype),
        ),
    ]
