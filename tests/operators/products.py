"""Random operands for products of matrices, with shapes of every class and zero points of every form."""

import functools
import itertools

import numpy as np

import jquant
from jquant.cases import samples
from jquant.reference import products as reference

FLOAT32 = np.float32
INTEGERS = (np.int8, np.uint8)
# The classes of shapes: one row, few rows, one column, tall, wide, odd sizes, batches.
SHAPES = [
    *(((), m, 64, 96) for m in (1, 2, 3, 8, 15, 16, 17)),
    *(((), m, 129, n) for m, n in ((1, 1), (1, 77), (33, 1), (2, 2), (301, 5), (5, 301), (31, 67))),
    *(((3,), m, 40, n) for m, n in ((1, 9), (7, 1), (1, 1), (7, 9))),
    ((2, 3), 5, 6, 7),
]
ZERO_POINTS = list(itertools.product((None, "tensor", "row"), (None, "tensor", "column")))


def thinned(cases, count, seed):
    """A random sample of the cases with their indices, because each is a program to compile."""
    cases = list(cases)
    chosen = np.random.default_rng(seed).choice(len(cases), count, replace=False)
    return [(int(index), cases[index]) for index in chosen]


class Problem:
    """Random operands of a product, with zero points in the shapes that the operators and the reference take."""

    def __init__(self, seed, a_dtype, b_dtype, shape, zero_points, b_batch=None):
        self.rng = rng = np.random.default_rng(seed)
        batch, self.m, k, self.n = shape
        self.a = samples.integers(rng, a_dtype, *batch, self.m, k)
        self.b = samples.integers(rng, b_dtype, *(batch if b_batch is None else b_batch), k, self.n)
        a_form, b_form = zero_points
        sizes = {"tensor": (), "row": (self.m,), "column": (self.n,)}
        self.a_zero_point = None if a_form is None else samples.integers(rng, a_dtype, *sizes[a_form])
        self.b_zero_point = None if b_form is None else samples.integers(rng, b_dtype, *sizes[b_form])
        self.a_column = 0 if a_form is None else self.a_zero_point.reshape(-1, 1)
        self.b_row = 0 if b_form is None else self.b_zero_point.reshape(1, -1)

    @functools.cached_property
    def packed(self):
        return jquant.pack_matrix(self.b, self.b_zero_point)

    @functools.cached_property
    def expected(self):
        return reference.matmul_integer(self.a, self.b, self.a_column, self.b_row)

    def scale(self, *shape):
        return self.rng.uniform(1e-3, 1e-1, shape).astype(FLOAT32)
