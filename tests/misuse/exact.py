"""Exact arithmetic."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .arguments import COLUMNS, ROWS, S, data_type, dtype_of
from .call import Argument, Call
from .kinds import Tensor, exactly
from .samples import floats


def calls() -> list[Call]:
    x = floats(ROWS, COLUMNS)
    fits = exactly((), (1,), (COLUMNS,), (ROWS, 1), (1, COLUMNS), x.shape, (1,) * 9)
    operand = Tensor("float32", fits, "float32")
    any_float = Tensor("float32 float16 bfloat16", scalar="float32")
    only_float32 = Tensor("float32", scalar="float32")

    def of_two(a: Any, b: Any) -> Any:
        return S(np.broadcast_shapes(jnp.shape(a), jnp.shape(b)), "float32")

    def of_one(name: str, kind: Tensor, promise: Callable[..., Any], **others: Argument) -> Call:
        return Call(f"exact.{name}", {"x": Argument(x, kind, "x"), **others}, promise)

    return [
        *(
            Call(f"exact.{name}", {"a": Argument(x, operand, "a"), "b": Argument(x, operand, "b")}, of_two)
            for name in ("product", "sum", "difference", "quotient")
        ),
        *(
            of_one(name, only_float32, lambda x: S(jnp.shape(x), "float32"))
            for name in ("reciprocal", "round_half_even", "round_half_away", "round_half_up")
        ),
        of_one("seal", any_float, lambda x: S(jnp.shape(x), dtype_of(x, "float32"))),
        of_one("widen", any_float, lambda x: S(jnp.shape(x), "float32")),
        of_one(
            "narrow",
            only_float32,
            lambda x, dtype: S(jnp.shape(x), dtype),
            dtype=data_type("dtype", "FLOAT16", "float32 float16 bfloat16"),
        ),
    ]
