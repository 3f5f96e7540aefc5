"""The clip operators and their gradients."""

from typing import Any

import numpy as np

import jquant

from .arguments import COLUMNS, FLOAT, FLOATS, OPTIONAL_FLOAT, ROWS, WIDE, level, like
from .call import Argument, Call, public
from .kinds import Nothing, ScaleAndBias, Tensor, exactly, one_element, ranks
from .samples import floats, ints


def calls() -> list[Call]:
    x, small = floats(ROWS, COLUMNS), ints("int8", ROWS, COLUMNS)
    inputs, int8_bound = Tensor(f"{FLOATS} {WIDE}", ranks(0, 8)), Tensor("int8", one_element, "int8")
    scale_bias = Argument(None, ScaleAndBias(), "scale_bias")

    def like_input(input: Any, **_: Any) -> Any:
        return like(input)

    def with_scale_bias(name: str) -> Call:
        """A call whose arguments are the parts of its scale and bias."""
        parts = {"scale": Argument(2.0, FLOAT, "scale_bias.scale"), "bias": Argument(1.0, FLOAT, "scale_bias.bias")}
        function = public(name)
        return Call(
            name, parts, lambda **_: like(x), lambda **parts: function(x, 0, 6, scale_bias=jquant.ScaleBias(**parts))
        )

    def gradients(name: str, first: str) -> list[Call]:
        bounds = {"min": Argument(0, FLOAT, "min"), "max": Argument(6, FLOAT, "max"), "feature_level": level(first)}
        same = exactly(x.shape)
        broadcast = exactly(x.shape, (1, COLUMNS), (ROWS, 1), (1, 1), ())
        return [
            Call(
                name,
                {
                    "input": Argument(x, Tensor("float32", shapes), "input"),
                    "input_gradient": Argument(gradient, Tensor("float32", broadcast), "input_gradient"),
                    **bounds,
                },
                like_input,
            )
            for gradient, shapes in ((x, same), (np.float32(1), ranks(0, 8)))
        ]

    return [
        Call(
            "clip",
            {
                "input": Argument(x, inputs, "input"),
                "min": Argument(0, OPTIONAL_FLOAT, "min"),
                "max": Argument(6, OPTIONAL_FLOAT, "max"),
                "scale_bias": scale_bias,
                "feature_level": level("3_0"),
            },
            like_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(x, inputs, "input"),
                "min": Argument(0, FLOAT, "min"),
                "max": Argument(6, FLOAT, "max"),
                "scale_bias": scale_bias,
                "feature_level": level("5_0"),
            },
            like_input,
        ),
        Call(
            "clip1",
            {
                "input": Argument(small, inputs, "input"),
                "min": Argument(0, int8_bound, "min"),
                "max": Argument(6, int8_bound, "max"),
                "scale_bias": Argument(None, Nothing(), "scale_bias"),
            },
            like_input,
        ),
        *map(with_scale_bias, ("clip", "clip1")),
        *gradients("clip_gradient", "3_1"),
        *gradients("clip_gradient1", "5_0"),
    ]
