"""TensorFlow's operators."""

from typing import Any

import numpy as np

import jquant

from .arguments import (
    BYTES,
    COLUMNS,
    OPTIONAL_FLOAT,
    ROWS,
    abstract,
    at_least,
    at_most,
    boolean,
    bound,
    data_type,
    integer,
    like,
    mode,
)
from .call import Argument, Call
from .kinds import Nothing, Tensor, anything, exactly, one_element
from .samples import floats, ints
from .values import Like


def calls() -> list[Call]:
    x, q, wide = floats(ROWS, COLUMNS), ints("uint8", ROWS, COLUMNS), ints("int32", ROWS, COLUMNS)
    per_slice = exactly((COLUMNS,))
    low, high = np.full(COLUMNS, -1, np.float32), np.full(COLUMNS, 1, np.float32)
    no_axis = integer("axis", None, (), optional=True)
    small = "int8 uint8 int32 int16 uint16"
    modes = "MIN_COMBINED MIN_FIRST SCALED"

    def bounds(names: str, per_axis: bool, **options: Any) -> dict[str, Argument]:
        first, second = names.split()
        fits = per_slice if per_axis else one_element
        return {
            first: bound(first, low if per_axis else -1.0, at_most(1), fits, **options),
            second: bound(second, high if per_axis else 1.0, at_least(-1), fits, **options),
        }

    def tensor(value: np.ndarray, data_types: str, per_axis: bool) -> Argument:
        """Of any shape, or with a slice along dimension 1 for each range."""
        shapes = (lambda s: len(s) > 1 and s[1] == COLUMNS) if per_axis else anything
        return Argument(value, Tensor(data_types, shapes, "float32" if value.dtype == np.float32 else None), "input")

    def axis(per_axis: bool) -> Argument:
        return integer("axis", 1, (1,)) if per_axis else no_axis

    def quantized(input: Any, dtype: Any, axis: Any, **_: Any) -> Any:
        ends = abstract(() if axis is None else (COLUMNS,), "float32")
        return jquant.QuantizeOutput(like(input, dtype), ends, ends)

    def requantized(input: Any, dtype: Any = "uint8", **_: Any) -> Any:
        return jquant.QuantizeOutput(like(input, dtype), abstract((), "float32"), abstract((), "float32"))

    def ranged(**_: Any) -> Any:
        return jquant.RangeOutput(abstract((), "float32"), abstract((), "float32"))

    calls = []
    for per_axis in (False, True):
        any_modes = "MIN_COMBINED SCALED" if per_axis else modes
        calls += [
            Call(
                "quantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **bounds("min_range max_range", per_axis),
                    "dtype": data_type("dtype", "qint8", small),
                    "mode": mode("mode", "MIN_COMBINED", any_modes),
                    "round_mode": mode("round_mode", "HALF_AWAY_FROM_ZERO", "HALF_AWAY_FROM_ZERO"),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                    "ensure_minimum_range": Argument(None, OPTIONAL_FLOAT, "ensure_minimum_range"),
                },
                quantized,
            ),
            Call(
                "dequantize",
                {
                    "input": tensor(q, small, per_axis),
                    **bounds("min_range max_range", per_axis),
                    "mode": mode("mode", "MIN_COMBINED", any_modes),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                    "dtype": data_type("dtype", "FLOAT32", "float32 bfloat16"),
                },
                lambda input, dtype, **_: like(input, dtype),
            ),
            Call(
                "fake_quantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **bounds("min max", per_axis),
                    "num_bits": integer("num_bits", 8, range(2, 17)),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                },
                lambda input, **_: like(input),
            ),
            Call(
                "quantize_and_dequantize",
                {
                    "input": tensor(x, "float32", per_axis),
                    **bounds("input_min input_max", per_axis),
                    "signed_input": boolean("signed_input", value=True),
                    "num_bits": integer("num_bits", 8, range(1, 62)),
                    "round_mode": mode("round_mode", "HALF_TO_EVEN", "HALF_TO_EVEN HALF_UP"),
                    "narrow_range": boolean("narrow_range"),
                    "axis": axis(per_axis),
                },
                lambda input, **_: like(input),
            ),
        ]
    requested = {
        "requested_output_min": bound("requested_output_min", -0.5, lambda low: low <= 0),
        "requested_output_max": bound("requested_output_max", 0.5, at_least(-0.5)),
    }
    by_channel = Tensor("int32", lambda shape: shape[-1:] == (COLUMNS,))
    one_range = {"input": tensor(wide, "int32", False), **bounds("input_min input_max", False)}
    ranges = {"input": Argument(wide, by_channel, "input"), **bounds("input_min input_max", True)}
    dtype = data_type("dtype", "qint8", BYTES)
    return [
        *calls,
        Call(
            "quantize_and_dequantize",
            {
                "input": tensor(x, "float32", False),
                "input_min": Argument(None, Nothing(), "input_min", like=Like((), np.dtype(np.float32))),
                "input_max": Argument(None, Nothing(), "input_max", like=Like((), np.dtype(np.float32))),
            },
            lambda input, **_: like(input),
        ),
        Call("requantization_range", one_range, ranged),
        Call("quantize_down_and_shrink_range", one_range, requantized),
        Call("requantize", {**one_range, **requested, "dtype": dtype}, requantized),
        Call(
            "requantization_range_per_channel",
            {**ranges, "clip_value_max": Argument(None, OPTIONAL_FLOAT, "clip_value_max")},
            ranged,
        ),
        Call(
            "requantize_per_channel",
            {
                **ranges,
                **requested,
                "requested_output_min": bound("requested_output_min", -0.5, lambda low: low < 0),
                "dtype": dtype,
            },
            requantized,
        ),
    ]
