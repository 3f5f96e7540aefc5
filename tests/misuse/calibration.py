"""Observers of ranges, and the loop over batches."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from jquant import calibration

from .arguments import COLUMNS, PER_COLUMN, ROWS, S, boolean, data_type, integer
from .call import Argument, Call
from .kinds import FLOAT_BATCH, AnObserver, AxisNames, Batches, FirstBatch, Function, Number, Progress, State
from .samples import floats


def calls() -> list[Call]:
    batch = floats(ROWS, COLUMNS)

    def ranged(axis: Any = None, **_: Any) -> Any:
        return calibration.Range(*[S(() if axis is None else (batch.shape[axis],), "float32")] * 2)

    def of_batches(batches: Any, **_: Any) -> Any:
        return jax.tree.map(lambda _: ranged(), batches[0])

    def uses(name: str, make: Callable[[], calibration.Observer], axis: int | None) -> list[Call]:
        """The functions of an observer."""
        observer = make()
        first, state = observer.init(batch), observer.update(observer.init(batch), batch)
        kind = FLOAT_BATCH if axis is None else PER_COLUMN

        def call(argument: Argument, function: Callable[[Any], Any], promise: Callable[..., Any]) -> Call:
            return Call(name, {"given": argument}, promise, lambda given: function(given))

        return [
            call(Argument(batch, kind, "batch input"), lambda given: observer.update(first, given), lambda given: first),
            call(Argument(state, State(), "state"), lambda given: observer.update(given, batch), lambda given: first),
            call(Argument(state, State(), "state"), observer.compute_range, lambda given: ranged(axis)),
            call(Argument(batch, FirstBatch(), "batch input"), observer.init, lambda given: first),
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
    found = []
    for short, arguments in makers.items():
        name = f"calibration.{short}"
        made = Call(name, {**arguments, "axis_name": axis_name}, lambda **_: calibration.Observer)
        found += [made, *uses(name, made, None)]
        if "axis" in arguments:
            found += uses(name, functools.partial(made, axis=1), 1)
    return [
        *found,
        Call(
            "calibration.calibrate",
            {
                "observer": Argument(calibration.min_max(), AnObserver(), "observer"),
                "batches": Argument([batch], Batches(), "batches batch"),
                "activations": Argument(lambda x: x, Function(), "activations"),
                "progress": Argument(False, Progress(), "progress"),
            },
            of_batches,
        ),
    ]
