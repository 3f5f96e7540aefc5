"""Clipping and its gradient."""

from typing import Any

import numpy as np

import jquant

from .arguments import COLUMNS, FLOAT, FLOATS, OPTIONAL_FLOAT, ROWS, WIDE, level, like
from .call import Argument, Call, public
from .kinds import Nothing, ScaleAndBias, Tensor, exactly, one, ranks
from .samples import floats, ints


def calls() -> list[Call]:
    x, small = floats(ROWS, COLUMNS), ints("int8", ROWS, COLUMNS)
    inputs, of_int8 = Tensor(f"{FLOATS} {WIDE}", ranks(0, 8)), Tensor("int8", one, "int8")
    scale_bias = Argument(None, ScaleAndBias(), "scale_bias ScaleBias")

    def of_input(input: Any, **_: Any) -> Any:
        return like(input)

    def of_parts(name: str) -> Call:
        parts = {"scale": Argument(2.0, FLOAT, "ScaleBias.Scale"), "bias": Argument(1.0, FLOAT, "ScaleBias.Bias")}
        function = public(name)
        return Call(
            name, parts, lambda **_: like(x), lambda **given: function(x, 0, 6, scale_bias=jquant.ScaleBias(**given))
        )

    def gradients(name: str, first: str) -> list[Call]:
        bounds = {"min": Argument(0, FLOAT, "Min"), "max": Argument(6, FLOAT, "Max"), "feature_level": level(first)}
        same = exactly(x.shape)
        broadcast = exactly(x.shape, (1, COLUMNS), (ROWS, 1), (1, 1), ())
        return [
            Call(
                name,
                {
                    "input": Argument(x, Tensor("float32", shapes), "InputTensor"),
                    "input_gradient": Argument(gradient, Tensor("float32", broadcast), "InputGradientTensor"),
                    **bounds,
                },
                of_input,
            )
            for gradient, shapes in ((x, same), (np.float32(1), ranks(0, 8)))
        ]

    return [
        Call(
            "clip",
            {
                "input": Argument(x, inputs, "InputTensor"),
                "min": Argument(0, OPTIONAL_FLOAT, "Min"),
                "max": Argument(6, OPTIONAL_FLOAT, "Max"),
                "scale_bias": scale_bias,
                "feature_level": level("3_0"),
            },
            of_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(x, inputs, "InputTensor"),
                "min": Argument(0, FLOAT, "Min"),
                "max": Argument(6, FLOAT, "Max"),
                "scale_bias": scale_bias,
                "feature_level": level("5_0"),
            },
            of_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(small, inputs, "InputTensor"),
                "min": Argument(0, of_int8, "Min"),
                "max": Argument(6, of_int8, "Max"),
                "scale_bias": Argument(None, Nothing(), "scale_bias ScaleBias"),
            },
            of_input,
        ),
        *map(of_parts, ("clip", "clip1")),
        *gradients("clip_gradient", "3_1"),
        *gradients("clip_gradient1", "5_0"),
    ]
