"""Other engines' kernels, beside which the operators are measured."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contestant import Call, Unavailable
from benchmarks.contestants import onnxruntime, tensorflow


class Engine(NamedTuple):
    """Another engine's kernel.

    Attributes:
      name: the engine's name in the tables.
      make: from the operands and the expected result to the call. Raises `Unavailable`.
    """

    name: str
    make: Callable[[tuple, np.ndarray], Call]


def tensor_indices(operands: tuple) -> list[int]:
    """The indices of the operands that are tensors, not parameters."""
    return [index for index, value in enumerate(operands) if np.size(value) >= max(map(np.size, operands)) // 2]


def onnxruntime_kernel(
    operator: str, *, tolerance: int = 0, order: Sequence[int] | None = None, **attributes: Any
) -> Engine:
    """onnxruntime's kernel, which may differ by `tolerance`, on the operands with these indices; None: on all of them."""

    def make(operands: tuple, expected: np.ndarray) -> Call:
        named = [(f"input{index}", operands[index]) for index in order or range(len(operands))]
        inputs = [f"input{index}" for index in tensor_indices(operands)]
        largest_error = np.asarray(tolerance) if tolerance else None
        return onnxruntime.run(operator, named, inputs, expected, tolerance=largest_error, **attributes)

    return Engine("onnxruntime", make)


def tensorflow_kernel(operator: str, *names: str, sizes: Sequence[int] | None = None, **attributes: Any) -> Engine:
    """TensorFlow's kernel, on operands with these names, the first one reshaped to `sizes`."""

    def make(operands: tuple, expected: np.ndarray) -> Call:
        first, *others = operands
        named = dict(zip(names, (first if sizes is None else first.reshape(sizes), *others), strict=True))
        return tensorflow.run(operator, named, expected, **attributes)

    return Engine("TensorFlow", make)


def no_kernel(reason: str = "neither onnxruntime nor TensorFlow has it") -> Engine:
    """In place of a kernel where there is none."""

    def make(operands: tuple, expected: np.ndarray) -> Call:
        raise Unavailable(reason)

    return Engine("none", make)
