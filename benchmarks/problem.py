"""The operands of one shape, and the results that contestants must match."""

import functools

import numpy as np

from benchmarks.shapes import Product


class Problem:
    """Uniform random operands over the whole range of each type, uint8 x int8 with both zero points.

    The scales are powers of two. Then ``float32(product) * scale`` is the same in whatever order an implementation
    multiplies the scales, and every contestant that scales can be compared for equality.
    """

    a_zero_point, b_zero_point, output_zero_point = np.uint8(121), np.int8(-3), np.uint8(128)
    a_scale, b_scale = np.float32(2**-7), np.float32(2**-8)

    def __init__(self, shape: Product, seed: int = 0) -> None:
        self.shape = shape
        batch = (shape.batch,) if shape.batch > 1 else ()
        a, b = (*batch, shape.m, shape.k), (*batch, shape.k, shape.n)
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.integers(0, 256, a, np.uint8), rng.integers(-128, 128, b, np.int8)
        self.a_int8 = self.a.view(np.int8)  # for those that have no uint8
        self.a_float, self.b_float = (rng.uniform(-1, 1, size).astype(np.float32) for size in (a, b))
        # The ends of uint8 are about three standard deviations of the product away.
        reach = 3 * 256**2 / 12 * shape.k**0.5 * float(self.a_scale * self.b_scale)
        self.output_scale = np.float32(2 ** np.ceil(np.log2(reach / 128)))

    def integer_product(self, a: np.ndarray, b: np.ndarray, a_zero_point: int = 0, b_zero_point: int = 0) -> np.ndarray:
        """The naive formula. float64 represents each of its integers exactly, and is what NumPy multiplies fast."""
        shifted_a, shifted_b = a.astype(np.float64) - float(a_zero_point), b.astype(np.float64) - float(b_zero_point)
        return (shifted_a @ shifted_b).astype(np.int32)

    @functools.cached_property
    def product(self) -> np.ndarray:
        """int32, for uint8 x int8 with both zero points: the standard case."""
        return self.integer_product(self.a, self.b, self.a_zero_point, self.b_zero_point)

    @functools.cached_property
    def int8_product(self) -> np.ndarray:
        """int32, for int8 x int8 without zero points."""
        return self.integer_product(self.a_int8, self.b)

    @functools.cached_property
    def dequantized(self) -> np.ndarray:
        """float32, for the standard case."""
        return self.product.astype(np.float32) * (self.a_scale * self.b_scale)

    @functools.cached_property
    def requantized(self) -> np.ndarray:
        """uint8, for the standard case."""
        value = np.rint(self.dequantized / self.output_scale) + np.float32(self.output_zero_point)
        return value.clip(0, 255).astype(np.uint8)

    @functools.cached_property
    def float_product(self) -> np.ndarray:
        """float64, for the float operands."""
        return self.a_float.astype(np.float64) @ self.b_float.astype(np.float64)

    @functools.cached_property
    def float_magnitude(self) -> np.ndarray:
        """``|a| @ |b|``, to which the rounding errors of a float product are proportional."""
        return abs(self.a_float).astype(np.float64) @ abs(self.b_float).astype(np.float64)
