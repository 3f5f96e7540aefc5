"""The module `tensorflow` with oneDNN off, and helpers of the tests that compare with its raw operators."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

# oneDNN's kernels compute other results. TensorFlow reads the variable when it is imported.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed (extra: oracle)", allow_module_level=True)


class _TensorFlow:
    """The module, imported where a test first uses it and not in every process that collects tests: it takes seconds."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pytest looks for in every object of a module
            raise AttributeError(name)
        return getattr(importlib.import_module("tensorflow"), name)


tensorflow = _TensorFlow()

TYPES = {"qint8": np.int8, "quint8": np.uint8, "qint16": np.int16, "quint16": np.uint16, "qint32": np.int32}
RANGES = [
    *[(-6, 6), (0, 6), (2, 4), (-4, -2), (-10, 9), (0, 255), (-128, 127), (0, 1), (-1, 1), (0, 0), (-7, 0), (-1, 254)],
    *[(-1, 1e-3), (-3e-4, 2e5), (0, 1 / 255)],
]


def ranges(rng: np.random.Generator, count: int, others: Sequence[tuple[float, float]]) -> np.ndarray:
    """Lower and upper bounds in rows of two: `RANGES`, `others` and `count` random ones."""
    random = np.sort(rng.normal(size=(count, 2)) * 10.0 ** rng.integers(-5, 6, (count, 1)), axis=-1)
    return np.float32([*RANGES, *others, *random])


def plain(tensor) -> np.ndarray:
    """A tensor as a NumPy array; quantized types as the integers that store them."""
    stored = {getattr(tensorflow, name): tensorflow.dtypes.as_dtype(dtype) for name, dtype in TYPES.items()}
    return (tensorflow.bitcast(tensor, stored[tensor.dtype]) if tensor.dtype in stored else tensor).numpy()
