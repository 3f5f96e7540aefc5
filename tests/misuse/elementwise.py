"""Element-wise operators, the softmax, the global average pool and the concatenation."""

from collections.abc import Callable
from typing import Any

import numpy as np

import jquant

from .arguments import (
    BYTES,
    COLUMNS,
    OPTIONAL_FLOAT,
    ROWS,
    abstract,
    data_type,
    dtype_of,
    integer,
    level,
    like,
    scale,
    zero_point,
)
from .call import Argument, Call
from .kinds import WRONG, Kind, Tensor, anything, exactly, one_element_or, ranks
from .samples import ints


def calls() -> list[Call]:
    q = ints("uint8", ROWS, COLUMNS)

    def unary(name: str, *, shapes: Any = anything, x: np.ndarray = q, promise: Any = like, **others: Argument) -> Call:
        return Call(
            name,
            {
                "x": Argument(x, Tensor(BYTES, shapes), "x input"),
                "x_scale": scale("x_scale"),
                "x_zero_point": zero_point("x_zero_point"),
                "output_scale": scale("output_scale"),
                "output_zero_point": zero_point("output_zero_point"),
                **others,
            },
            lambda x, **_: promise(x),
        )

    def binary(name: str, b: Any, **others: Argument) -> Call:
        broadcasts = exactly(q.shape, (1, COLUMNS), (ROWS, 1), (1, 1), ())
        if name != "quantized_linear_add":  # in DirectML, where ranks must be equal
            broadcasts = one_element_or(q.shape, (1, COLUMNS), (ROWS, 1), (COLUMNS,))

        def promise(a: Any, b: Any, output_zero_point: Any, output_dtype: Any, **_: Any) -> Any:
            dtype = output_dtype or dtype_of(output_zero_point, a.dtype)
            return abstract(np.broadcast_shapes(a.shape, b.shape), dtype)

        return Call(
            name,
            {
                "a": Argument(q, Tensor(BYTES, broadcasts), "a"),
                "a_scale": scale("a_scale"),
                "a_zero_point": zero_point("a_zero_point"),
                "b": Argument(b, Tensor(BYTES, broadcasts), "b"),
                "b_scale": scale("b_scale"),
                "b_zero_point": zero_point("b_zero_point"),
                "output_scale": scale("output_scale"),
                "output_zero_point": zero_point("output_zero_point", data_types=BYTES, scalar="uint8"),
                "output_dtype": data_type("output_dtype", None, BYTES),
                **others,
            },
            promise,
        )

    def concat(tensor: Any, scale: Any, zero_point: Any, output_scale: Any) -> Any:
        inputs = [(q, 0.5, 3), (tensor, scale, zero_point)]
        return jquant.quantized_linear_concat(inputs, output_scale, axis=-1)

    def concat_first(tensor: Any, scale: Any, zero_point: Any) -> Any:
        return jquant.quantized_linear_concat([(tensor, scale, zero_point), (q, 0.5, 3)], 0.5, axis=-1)

    def part(index: int) -> dict[str, Argument]:
        name = f"inputs[{index}]"
        return {
            "tensor": Argument(q, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[0] == ROWS), f"{name} input"),
            "scale": scale(f"{name}_scale"),
            "zero_point": zero_point(f"{name}_zero_point"),
        }

    def joined(tensor: Any, **_: Any) -> Any:
        return abstract((ROWS, COLUMNS + tensor.shape[1]), "uint8")

    image = ints("uint8", 1, 2, 4, 4)
    return [
        unary("quantized_linear_leaky_relu", alpha=Argument(None, OPTIONAL_FLOAT, "alpha")),
        unary("quantized_linear_sigmoid"),
        unary("quantized_linear_softmax", shapes=ranks(1, 99), axis=integer("axis", -1, range(-2, 2))),
        unary(
            "quantized_linear_global_average_pool",
            x=image,
            shapes=ranks(3, 99),
            promise=lambda x: abstract((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype),
        ),
        binary("quantized_linear_add", q, feature_level=level("4_0")),
        binary("quantized_linear_multiply", q),
        Call(
            "quantized_linear_concat",
            {
                "inputs": Argument([(q, 0.5, 3)], Concatenated(), "inputs inputs[0] inputs[1]", _TRIPLES),
                "output_scale": scale("output_scale"),
                "output_zero_point": zero_point("output_zero_point", data_types=BYTES, scalar="uint8"),
                "axis": integer("axis", -1, range(-2, 2)),
                "output_dtype": data_type("output_dtype", None, BYTES),
            },
            lambda output_zero_point, output_dtype, **_: like(q, output_dtype or dtype_of(output_zero_point, "uint8")),
        ),
        Call("quantized_linear_concat", {**part(1), "output_scale": scale("output_scale")}, joined, concat),
        Call(
            "quantized_linear_concat",
            part(0),
            lambda tensor, **_: abstract(joined(tensor).shape, tensor.dtype),
            concat_first,
        ),
    ]


class Concatenated(Kind):
    """The inputs of a concatenation. Elements of its triples have calls of their own; any other list of triples is wrong."""

    def canonical(self, value: object) -> object:
        return WRONG


_TRIPLES: dict[str, Callable[[], object]] = {
    "a triple of two": lambda: [(np.ones((2, 3), np.uint8), 0.5)],
    "a triple of four": lambda: [(np.ones((2, 3), np.uint8), 0.5, 3, 1)],
    "a triple that is an array": lambda: [np.ones((3, 2), np.uint8)],
    "a triple that is text": lambda: ["abc"],
    "a triple that is a set": lambda: [{1, 2, 3}],
    "triples that are a dictionary": lambda: {0: (np.ones((2, 3), np.uint8), 0.5, 3)},
    "triples that are a generator": lambda: ((np.ones((2, 3), np.uint8), 0.5, 3) for _ in range(2)),
}
