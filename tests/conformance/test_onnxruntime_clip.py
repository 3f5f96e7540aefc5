"""`clip` compared with onnxruntime's Clip, bit for bit.

onnxruntime has no kernels for 16-bit integers: `tests/operators/` compares these with NumPy.
"""

import numpy as np
import pytest

import jquant
from jquant.cases import samples

from .graph import run


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int32])
def test_clip(dtype):
    """For bounds in order; otherwise, onnxruntime returns the upper one, and jquant the lower one."""
    rng = np.random.default_rng(5)
    if np.issubdtype(dtype, np.floating):
        with np.errstate(over="ignore"):
            x = samples.wide_floats(rng, 10_000).astype(dtype)
        bounds = [(-1.5, 2.25), (0, 6), (-np.inf, 3), (1, 1)]
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, 10_000, dtype, endpoint=True)
        bounds = [(3, 100), (limits.min, 7), (0, 0), (limits.min, limits.max)]
    for low, high in bounds:
        theirs = run("Clip", x, np.asarray(low, dtype), np.asarray(high, dtype))
        np.testing.assert_array_equal(jquant.clip(x, low, high), theirs)
