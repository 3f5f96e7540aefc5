"""TensorFlow, on the CPU."""

import functools
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import numpy as np

from benchmarks.contestant import Call, Unavailable, require

_STORED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}


def run(
    operator: str,
    operands: Mapping[str, np.ndarray],
    expected: np.ndarray,
    tolerance: np.ndarray | None = None,
    quantized: str | None = None,
    result: int | None = 0,
    **attributes: Any,
) -> Call:
    """A call of a raw operator, with oneDNN off: its kernels compute something else.

    Args:
      operator: its name in `tf.raw_ops`.
      operands: its named operands.
      expected: the right result.
      tolerance: as in `Call`.
      quantized: the quantized type that the first operand is bitcast to, or None.
      result: the index of the result that is compared; None compares all results, stacked.
      **attributes: of the operator; quantized types may be given by name.
    """
    if jax.default_backend() != "cpu":
        raise Unavailable("its quantized kernels run on a CPU")
    tensorflow = _tensorflow()
    tensors = {name: tensorflow.constant(value) for name, value in operands.items()}
    if quantized is not None:
        first = next(iter(tensors))
        tensors[first] = tensorflow.bitcast(tensors[first], getattr(tensorflow, quantized))
    attributes = {name: getattr(tensorflow, value) if value in _STORED else value for name, value in attributes.items()}
    call = functools.partial(getattr(tensorflow.raw_ops, operator), **tensors, **attributes)

    def to_numpy(tensor: Any) -> np.ndarray:
        stored = _STORED.get(tensor.dtype.name)
        return (tensor if stored is None else tensorflow.bitcast(tensor, getattr(tensorflow, stored))).numpy()

    def fetch(results: Any) -> np.ndarray:
        arrays = [to_numpy(tensor) for tensor in ([results] if isinstance(results, tensorflow.Tensor) else results)]
        array = np.stack(arrays) if result is None else arrays[result]
        return array.reshape(-1, *expected.shape[1:]) if expected.ndim else array

    return Call(call, expected, tolerance, fetch)


def _tensorflow() -> ModuleType:
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # read when TensorFlow is imported
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return require("tensorflow")
