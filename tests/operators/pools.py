"""Operands, and a check of every sum of six elements, for the tests of the two average pools."""

import numpy as np
import pytest

from jquant.cases import samples
from jquant.reference import nonlinear as reference

FLOAT32 = np.float32
every_type = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


def drawn(rng, dtype, output_dtype, sizes, per_channel):
    """Random operands; half of them have scales whose ratio makes ties."""
    shape = (1, sizes[1], *(1,) * (len(sizes) - 2)) if per_channel else ()
    x_scale = samples.scales(rng, 8)[: sizes[1] if per_channel else 1].reshape(shape)
    ratio = FLOAT32(rng.uniform(0.1, 2)) if rng.integers(0, 2) else FLOAT32(0.25)
    x = samples.integers(rng, dtype, *sizes), x_scale, samples.integers(rng, dtype, *shape)
    return *x, x_scale * ratio, samples.integers(rng, output_dtype, *shape)


def assert_every_sum_of_six(pool, dtype):
    """All 1,531 sums of a 2 x 3 window with 300 sets of parameters, half of which make ties and values next to them."""
    rng, limits = np.random.default_rng(1), np.iinfo(dtype)
    totals = np.arange(6 * 255 + 1)
    x = np.stack([(totals + index) // 6 + limits.min for index in range(6)], -1).astype(dtype).reshape(1, -1, 2, 3)
    for index, x_scale in enumerate(samples.scales(rng, 300)):
        y_scale = x_scale * FLOAT32(rng.uniform(0.1, 2) if index % 2 else 1)
        operands = x, x_scale, samples.integers(rng, dtype), y_scale, samples.integers(rng, dtype)
        np.testing.assert_array_equal(pool(*operands), reference.quantized_linear_global_average_pool(*operands))
