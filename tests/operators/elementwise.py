"""Sets of scales and zero points for operators that are tested on all 256 values of a type."""

import numpy as np

from jquant.cases import samples

FLOAT32 = np.float32
INTEGERS = np.int8, np.uint8
COUNT = 4096  # sets of parameters in one program
FACTOR = np.float32(0.1)


def values(dtype):
    return np.arange(256).astype(dtype)


def parameters(rng, *types):
    """`COUNT` scales and zero points for each type; a quarter of the scales are powers of two, and some sets share one."""
    scales = [samples.scales(rng, COUNT) for _ in types]
    scales[-1] = np.where(np.arange(COUNT) % 3 == 0, scales[0], scales[-1])
    return [
        operand
        for scale, dtype in zip(scales, types, strict=True)
        for operand in (scale, samples.integers(rng, dtype, COUNT))
    ]


def columns(operands):
    """The operands as columns, which broadcast against a row of values."""
    return [operand[:, None] for operand in operands]


def parameter_sets(rng, dtype, count):
    """Scales and zero points of the input and the output, with small and large steps, half of them powers of two."""
    x_scale, y_scale = samples.scales(rng, count), (10 ** rng.uniform(-4, 0, count)).astype(FLOAT32)
    x_scale[1::8] = 0
    x_scale[3::8] *= -1
    y_scale[::2] = np.ldexp(FLOAT32(1), rng.integers(-12, -2, count))[::2]
    return x_scale, samples.integers(rng, dtype, count), y_scale, samples.integers(rng, dtype, count)
