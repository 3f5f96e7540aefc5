"""Rotations of the operands of quantized products."""

from .arguments import ROWS, integer, like
from .call import Argument, Call
from .kinds import Integer, Tensor, ranks
from .samples import floats


def calls() -> list[Call]:
    x = Argument(floats(ROWS, 4), Tensor("float32 float16 bfloat16", ranks(1, 99), "float32"), "x input")
    return [
        Call(
            "hadamard_transform",
            {
                "x": x,
                "axis": Argument(-1, Integer(range(-2, 2)), "axis"),
                "block_size": integer("block_size", None, (1, 2, 4), optional=True),
            },
            lambda x, **_: like(x),
        ),
    ]
