"""Convolutions and average pools."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from .arguments import BYTES, FLOATS, abstract, boolean, data_type, dtype_of, integer, level, scale, zero_point
from .call import Argument, Call
from .kinds import (
    DimensionNumbers,
    Integers,
    Padding,
    Tensor,
    exactly,
    one_element_or,
)
from .samples import floats, ints


def calls() -> list[Call]:
    x, w = ints("uint8", 1, 2, 4, 4), ints("int8", 2, 2, 2, 2)
    large: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            (2**70, 1),
            (1, 2**40),
            (-1, 1),
            (True, 1),
            (1.0, 1),
            (None, 1),
            (np.uint64(2**63), 1),
            (1, 9),
            "11",
            {1: 1, 2: 2},
        )
    }
    paddings: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            *("valid", "same", ["SAME"], [(1, 1), (1, -1)], [1, 1, 1, 1], [1, 1, 1, -1], [(1, 1, 1), (1, 1, 1)]),
            *([(2**70, 0), (0, 0)], [(2**31, 0), (0, 0)], [(1, 1), [1, 1]], [(True, 1), (1, 1)], {0: (1, 1), 1: (1, 1)}),
            *(np.ones((2, 2), np.int32), np.ones((2, 2)), np.ones((2, 2, 1), np.int32), np.ones(4, np.int32)),
        )
    }
    layouts: dict[str, Callable[[], object]] = {
        repr(value): lambda value=value: value
        for value in (
            *(("NCHW", "OIHW", "NCHW"), ["NCHW", "OIHW", "NCHW"], ("NCHW", "OIHW"), ("NCHW", "OIHW", "NCHX"), "NCHW"),
            *(("NNNN", "OIHW", "NCHW"), ("NCHW", "OIHW", 1), ("NCH", "OIH", "NCH"), ("", "", ""), ("NC", "OI", "NC")),
            *(("NCHW", "OIHW", "NCWZ"), ("NCHWW", "OIHW", "NCHW"), ("nchw", "oihw", "nchw"), (("N", "C"), "OIHW", "NCHW")),
        )
    } | {
        f"ConvDimensionNumbers{fields!r}": lambda fields=fields: lax.ConvDimensionNumbers(*fields)
        for fields in (
            ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2, 9), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2, 3), (0, 1, 2, 9), (0, 1, 2, 3)),
            ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 9)),
            ((0, 1, 1, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
            ((0, 1, 2), (0, 1, 2), (0, 1, 2)),
            (None, None, None),
            ("NCHW", "OIHW", "NCHW"),
        )
    }

    def arrays(*shapes: tuple[int, ...]) -> dict[str, Callable[[], object]]:
        return {f"shape {shape}": lambda shape=shape: np.ones(shape, np.int8) for shape in shapes}

    misfits = arrays((1, 3, 4, 4), (1, 2, 1, 1), (1, 2, 4), (1, 2, 4, 4, 4))
    image = Argument(x, Tensor(BYTES, lambda shape: shape[1:] == x.shape[1:]), "input", misfits)

    def sizes(sizes: Any, strides: Any, dilations: Any, padding: Any) -> list[int]:
        reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations or (1, 1), strict=True)]
        if isinstance(padding, str):
            same = padding.removesuffix("_UPPER").removesuffix("_LOWER") == "SAME"
            steps = zip(reach, strides or (1, 1), strict=True)
            return [-(-4 // stride) if same else (4 - window) // stride + 1 for window, stride in steps]
        return [
            (4 + low + high - window) // stride + 1
            for window, stride, (low, high) in zip(reach, strides or (1, 1), padding, strict=True)
        ]

    spatial = {
        "strides": Argument((1, 1), Integers(2), "strides", large),
        "padding": Argument("VALID", Padding(2), "padding", paddings),
        "dilations": Argument((1, 1), Integers(2, 3), "dilations", large),
    }
    convolves = {
        **spatial,
        "groups": integer("groups", 1, (1,)),
        "dimension_numbers": Argument(None, DimensionNumbers(), "dimension_numbers", layouts),
    }
    misfits = arrays((2, 3, 2, 2), (2, 2, 0, 2), (2, 2, 5, 5), (0, 2, 2, 2), (2, 2, 2), (2, 2, 2, 2, 2))
    filters = Argument(w, Tensor(BYTES, exactly(w.shape)), "filter filters", misfits)
    zeros = zero_point("filter_zero_point", 1, one_element_or((2,), (1, 2), (1, 2, 1), (1, 2, 1, 1)), "int8")
    filter_scales = one_element_or((2,), (1, 2), (1, 2, 1), (1, 2, 1, 1))
    optional_floats = Tensor(FLOATS, filter_scales, "float32", optional=True)

    def convolved(input: Any, strides: Any, dilations: Any, padding: Any, output_dtype: Any, **_: Any) -> Any:
        return abstract((input.shape[0], 2, *sizes((2, 2), strides, dilations, padding)), output_dtype)

    def quantized(input: Any, output_zero_point: Any, output_dtype: Any, **options: Any) -> Any:
        dtype = output_dtype or dtype_of(output_zero_point, input.dtype)
        return convolved(input, output_dtype=dtype, **options)

    def to_float(input_scale: Any, filter_scale: Any, bias: Any, output_dtype: Any, **options: Any) -> Any:
        dtypes = [x.dtype for x in (input_scale, filter_scale, bias) if hasattr(x, "dtype")]
        return convolved(output_dtype=output_dtype or (dtypes or ["float32"])[0], **options)

    def to_floats(input_scale: Argument, filter_scale: Argument, bias: Argument) -> Call:
        return Call(
            "convolution_integer_to_float",
            {
                "input": image,
                "input_scale": input_scale,
                "input_zero_point": zero_point("input_zero_point"),
                "filter": filters,
                "filter_scale": filter_scale,
                "filter_zero_point": zeros,
                "bias": bias,
                "output_dtype": data_type("output_dtype", None, "float32"),
                **convolves,
                "feature_level": level("6_2"),
            },
            to_float,
        )

    def pooled(input: Any, output_zero_point: Any, output_dtype: Any, window_sizes: Any, **options: Any) -> Any:
        counts = sizes(window_sizes, options["strides"], options["dilations"], options["padding"])
        return abstract((*input.shape[:2], *counts), output_dtype or dtype_of(output_zero_point, input.dtype))

    per_channel = one_element_or((1, 2, 1, 1))
    output = {
        "output_zero_point": zero_point("output_zero_point", data_types=BYTES, scalar="uint8"),
        "output_dtype": data_type("output_dtype", None, BYTES),
    }
    return [
        Call(
            "convolution_integer",
            {
                "input": image,
                "filter": filters,
                "input_zero_point": zero_point("input_zero_point"),
                "filter_zero_point": zeros,
                **convolves,
                "feature_level": level("2_1"),
            },
            functools.partial(convolved, output_dtype="int32"),
        ),
        to_floats(  # Python scalars, which take the dtype of an array that is substituted for one of them
            scale("input_scale", data_types=FLOATS),
            scale("filter_scale", 0.5, filter_scales, FLOATS),
            Argument(None, optional_floats, "bias"),
        ),
        to_floats(
            scale("input_scale", np.float32(0.5)),
            scale("filter_scale", np.full(2, 0.5, np.float32), filter_scales),
            Argument(floats(2), dataclasses.replace(optional_floats, data_types="float32"), "bias"),
        ),
        Call(
            "quantized_linear_convolution",
            {
                "input": image,
                "input_scale": scale("input_scale"),
                "input_zero_point": zero_point("input_zero_point"),
                "filter": filters,
                "filter_scale": scale("filter_scale", 0.5, filter_scales),
                "filter_zero_point": zeros,
                "output_scale": scale("output_scale"),
                "bias": Argument(
                    ints("int32", 1, 2, 1, 1), Tensor("int32", exactly((1, 2, 1, 1)), None, optional=True), "bias"
                ),
                **output,
                **convolves,
                "feature_level": level("2_1"),
            },
            quantized,
        ),
        Call(
            "quantized_linear_average_pool",
            {
                "input": Argument(x, Tensor(BYTES, lambda shape: len(shape) == 4 and shape[2:] == (4, 4)), "input"),
                "input_scale": scale("input_scale", 0.5, per_channel),
                "input_zero_point": zero_point("input_zero_point", 3, per_channel),
                "output_scale": scale("output_scale", 0.5, per_channel),
                **output,
                "window_sizes": Argument((2, 2), Integers(2, 4, optional=False), "window_sizes", large),
                **spatial,
                "include_padding": boolean("include_padding"),
                "feature_level": level("6_2"),
            },
            pooled,
        ),
    ]
