"""Observers of ranges, and `calibrate`."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from jquant import calibration

from .arguments import COLUMNS, PER_COLUMN, ROWS, abstract, boolean, data_type, integer
from .call import Argument, Call
from .kinds import FLOAT_BATCH, AxisNames, Batches, FirstBatch, Function, Number, Observer, Progress, State
from .samples import floats


def calls() -> list[Call]:
    batch = floats(ROWS, COLUMNS)

    def range_along(axis: Any = None, **_: Any) -> Any:
        return calibration.Range(*[abstract(() if axis is None else (batch.shape[axis],), "float32")] * 2)

    def ranges(batches: Any, **_: Any) -> Any:
        return jax.tree.map(lambda _: range_along(), batches[0])

    def observer_calls(name: str, make: Callable[[], calibration.Observer], axis: int | None) -> list[Call]:
        """Calls of the functions of an observer, whose first argument is named `operand` here."""
        observer = make()
        first, state = observer.init(batch), observer.update(observer.init(batch), batch)
        kind = FLOAT_BATCH if axis is None else PER_COLUMN

        def call(argument: Argument, function: Callable[[Any], Any], promise: Callable[..., Any]) -> Call:
            return Call(name, {"operand": argument}, promise, lambda operand: function(operand))

        return [
            call(Argument(batch, kind, "batch input"), lambda batch: observer.update(first, batch), lambda operand: first),
            call(Argument(state, State(), "state"), lambda state: observer.update(state, batch), lambda operand: first),
            call(Argument(state, State(), "state"), observer.compute_range, lambda operand: range_along(axis)),
            call(Argument(batch, FirstBatch(), "batch input"), observer.init, lambda operand: first),
        ]

    bins = integer("num_bins", 128, [2**bits for bits in range(2, 17)])
    axis_name = Argument(None, AxisNames(), "axis_name")
    axis = {"axis": integer("axis", None, range(-(2**30), 2**30), optional=True)}
    makers = {
        "entropy": {"num_bins": bins, "num_quantized_bins": integer("num_quantized_bins", 2, range(2, 129, 2))},
        "mean_squared_error": {
            "dtype": data_type("dtype", "INT8", "int8 uint8 int16 uint16 int4 uint4 int2 uint2"),
            "symmetric": boolean("symmetric"),
            "narrow_range": boolean("narrow_range"),
            "num_bins": bins,
        },
        "percentile": {
            "percentile": Argument(99.9, Number(0, 100), "percentile"),
            "symmetric": boolean("symmetric"),
            "num_bins": bins,
        },
        "min_max": axis,
        "moving_average": {"averaging_constant": Argument(0.01, Number(0, 1), "averaging_constant"), **axis},
    }
    calls = []
    for short, arguments in makers.items():
        name = f"calibration.{short}"
        make = Call(name, {**arguments, "axis_name": axis_name}, lambda **_: calibration.Observer)
        calls += [make, *observer_calls(name, make, None)]
        if "axis" in arguments:
            calls += observer_calls(name, functools.partial(make, axis=1), 1)
    return [
        *calls,
        Call(
            "calibration.calibrate",
            {
                "observer": Argument(calibration.min_max(), Observer(), "observer"),
                "batches": Argument([batch], Batches(), "batches batch"),
                "activations": Argument(lambda x: x, Function(), "activations"),
                "progress": Argument(False, Progress(), "progress"),
            },
            ranges,
        ),
    ]
