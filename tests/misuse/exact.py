"""The exact arithmetic of `jquant.exact`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .arguments import COLUMNS, ROWS, abstract, data_type, dtype_of
from .call import Argument, Call
from .kinds import Tensor, exactly
from .samples import floats


def calls() -> list[Call]:
    x = floats(ROWS, COLUMNS)
    fits = exactly((), (1,), (COLUMNS,), (ROWS, 1), (1, COLUMNS), x.shape, (1,) * 9)
    operand = Tensor("float32", fits, "float32")
    any_float = Tensor("float32 float16 bfloat16", scalar="float32")
    only_float32 = Tensor("float32", scalar="float32")

    def broadcast(a: Any, b: Any) -> Any:
        return abstract(np.broadcast_shapes(jnp.shape(a), jnp.shape(b)), "float32")

    def unary(name: str, kind: Tensor, promise: Callable[..., Any], **others: Argument) -> Call:
        return Call(f"exact.{name}", {"x": Argument(x, kind, "x"), **others}, promise)

    return [
        *(
            Call(f"exact.{name}", {"a": Argument(x, operand, "a"), "b": Argument(x, operand, "b")}, broadcast)
            for name in ("product", "sum", "difference", "quotient")
        ),
        *(
            unary(name, only_float32, lambda x: abstract(jnp.shape(x), "float32"))
            for name in ("reciprocal", "round_half_even", "round_half_away", "round_half_up")
        ),
        unary("seal", any_float, lambda x: abstract(jnp.shape(x), dtype_of(x, "float32"))),
        unary("widen", any_float, lambda x: abstract(jnp.shape(x), "float32")),
        unary(
            "narrow",
            only_float32,
            lambda x, dtype: abstract(jnp.shape(x), dtype),
            dtype=data_type("dtype", "FLOAT16", "float32 float16 bfloat16"),
        ),
    ]
