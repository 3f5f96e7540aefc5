"""`jquant.arithmetic.fused` against exact fractions."""

from fractions import Fraction

import jax
import numpy as np

from jquant.arithmetic import fused


def test_multiply_add():
    """Addends of any size: near the negative product, far smaller, and such that the product decides a tie."""
    rng = np.random.default_rng(0)
    a, b = ((rng.normal(size=40_000) * 10.0 ** rng.integers(-3, 4, 40_000)).astype(np.float32) for _ in range(2))
    c = (rng.normal(size=40_000) * 10.0 ** rng.integers(-8, 9, 40_000)).astype(np.float32)
    c[:10_000] = -(a * b)[:10_000] * (1 + rng.integers(-2, 3, 10_000) * np.float32(2.0**-23))
    c[10_000:20_000] = 2.0 ** (24 + rng.integers(-2, 3, 10_000)) * 2.0 ** np.floor(np.log2(abs(a * b)[10_000:20_000]))
    a[20_000:30_000] = rng.integers(-255, 256, 10_000)
    ours = np.asarray(jax.jit(fused.multiply_add)(a, b, c))
    for index, value in enumerate(ours):
        exact = Fraction(float(a[index])) * Fraction(float(b[index])) + Fraction(float(c[index]))
        error = abs(exact - Fraction(float(value)))
        neighbours = (np.nextafter(value, np.float32(side)) for side in (np.inf, -np.inf))
        other_errors = [abs(exact - Fraction(float(neighbour))) for neighbour in neighbours]
        is_even = int(value.view(np.int32)) & 1 == 0
        assert error < min(other_errors) or (error == min(other_errors) and is_even), (a[index], b[index], c[index])
