"""`dot_general`: beside the composition of other operators and NumPy, for any dimensions; its derivatives; what it refuses."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import assert_equal, assert_refused
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from layouts import collectives, kinds
from sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError, reference

FLOAT32, BFLOAT16, FLOAT16 = np.dtype(np.float32), jnp.dtype(jnp.bfloat16), np.dtype(np.float16)
DENSE = (((1,), (0,)), ((), ()))
# The shapes of both operands, and the dimension numbers.
PRODUCTS = {
    "dense": ((5, 32), (32, 7), DENSE),
    "dense of tokens": ((2, 3, 32), (32, 7), (((2,), (0,)), ((), ()))),
    "dense, two contracted, to heads": ((2, 3, 4, 8), (4, 8, 3, 5), (((2, 3), (0, 1)), ((), ()))),
    "dense, contracted in another order": ((2, 3, 4, 8), (8, 4, 5), (((3, 2), (0, 1)), ((), ()))),
    "queries by keys": ((2, 6, 3, 8), (2, 5, 3, 8), (((3,), (3,)), ((0, 2), (0, 2)))),
    "probabilities by values": ((2, 3, 6, 5), (2, 5, 3, 8), (((3,), (1,)), ((0, 1), (0, 2)))),
    "batch, several rows": ((4, 2, 3, 8), (4, 8, 5), (((3,), (1,)), ((0,), (0,)))),
    "batch, several columns": ((4, 3, 8), (4, 8, 5, 2), (((2,), (1,)), ((0,), (0,)))),
    "batch behind": ((3, 8, 4), (8, 5, 4), (((1,), (0,)), ((2,), (2,)))),
    "tied embedding": ((5, 32), (7, 32), (((1,), (1,)), ((), ()))),
    "first dimension": ((32, 5), (32, 7), (((0,), (0,)), ((), ()))),
    "vectors": ((32,), (32,), (((0,), (0,)), ((), ()))),
    "vector by matrix": ((32,), (32, 7), (((0,), (0,)), ((), ()))),
    "matrix by vector": ((5, 32), (32,), (((1,), (0,)), ((), ()))),
    "batch of vectors": ((4, 32), (4, 32), (((1,), (1,)), ((0,), (0,)))),
    "outer": ((5,), (7,), (((), ()), ((), ()))),
    "outer of matrices": ((5, 2), (3, 7), (((), ()), ((), ()))),
    "outer in a batch": ((4, 5), (7, 4), (((), ()), ((0,), (1,)))),
    "element by element": ((4, 5), (5, 4), (((), ()), ((0, 1), (1, 0)))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "everything contracted": ((4, 5), (5, 4), (((0, 1), (1, 0)), ((), ()))),
    "rank 9": ((1, 2, 1, 2, 1, 1, 1, 1, 6), (6, 3), (((8,), (0,)), ((), ()))),
    "no terms": ((5, 0), (0, 7), DENSE),
    "no terms in a batch": ((4, 5, 0), (4, 0, 7), (((2,), (1,)), ((0,), (0,)))),
    "no rows": ((0, 32), (32, 7), DENSE),
    "no columns": ((5, 32), (32, 0), DENSE),
    "an empty batch": ((0, 5, 8), (0, 8, 7), (((2,), (1,)), ((0,), (0,)))),
}
GRANULARITIES = list(itertools.product(("PER_CHANNEL", "PER_TENSOR"), repeat=2))
DTYPES = list(itertools.product((FLOAT32, BFLOAT16, FLOAT16), repeat=2))
every_product = pytest.mark.parametrize("name", PRODUCTS)


def drawn(name: str, lhs_dtype=FLOAT32, rhs_dtype=FLOAT32, seed: int = 0):
    """Operands whose channels differ in magnitude, and the dimension numbers."""
    lhs_shape, rhs_shape, numbers = PRODUCTS[name]
    rng = np.random.default_rng([seed, *map(ord, name)])

    def floats(shape, dtype):
        decades = np.zeros(shape)
        for dimension, size in enumerate(shape):
            decades = decades + rng.uniform(-1, 1, [size if other == dimension else 1 for other in range(len(shape))])
        return np.asarray(rng.normal(size=shape) * 10**decades).astype(dtype)

    return floats(lhs_shape, lhs_dtype), floats(rhs_shape, rhs_dtype), numbers


def options_of(lhs_scales: str, rhs_scales: str):
    """The arguments of the operator, and of its reference."""
    per_tensor = {"lhs_per_tensor": lhs_scales == "PER_TENSOR", "rhs_per_tensor": rhs_scales == "PER_TENSOR"}
    return {"lhs_scales": lhs_scales, "rhs_scales": rhs_scales}, per_tensor


def output_dtype(lhs, rhs, numbers) -> np.dtype:
    return jax.eval_shape(functools.partial(lax.dot_general, dimension_numbers=numbers), lhs, rhs).dtype


def quantized(x, contracting, scales):
    """As the docstring says it: the integers, and their scales, with a size of 1 for each contracted dimension."""
    axes = tuple(contracting) if scales == "PER_CHANNEL" else None
    largest = jnp.max(abs(x.astype(jnp.float32)), axis=axes, keepdims=True, initial=0)
    scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
    of_rank_1 = x[None], scale[None]  # which the operator has at least
    integers = jquant.quantize_linear(*of_rank_1, output_dtype="INT8", feature_level="EXTENDED")[0]
    sizes = [1 if dimension in contracting else size for dimension, size in enumerate(x.shape)]
    return integers, jnp.broadcast_to(scale, sizes)


def composed(lhs, rhs, numbers, *, lhs_scales="PER_CHANNEL", rhs_scales="PER_CHANNEL"):
    """The product by the operators that the docstring names, on arrays that NumPy could arrange."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers
    lhs_free = [one for one in range(lhs.ndim) if one not in (*lhs_contracting, *lhs_batch)]
    rhs_free = [one for one in range(rhs.ndim) if one not in (*rhs_contracting, *rhs_batch)]
    result = [*(lhs.shape[one] for one in (*lhs_batch, *lhs_free)), *(rhs.shape[one] for one in rhs_free)]

    def matrices(x, batch, rows, columns):
        sizes = [math.prod(x.shape[one] for one in group) for group in (batch, rows, columns)]
        return jnp.transpose(x, (*batch, *rows, *columns)).reshape(sizes)

    a = [matrices(x, lhs_batch, lhs_free, lhs_contracting) for x in quantized(lhs, lhs_contracting, lhs_scales)]
    b = [matrices(x, rhs_batch, rhs_contracting, rhs_free) for x in quantized(rhs, rhs_contracting, rhs_scales)]
    dtype = output_dtype(lhs, rhs, numbers)

    def multiply(a, a_scale, b, b_scale):
        operands = a, a_scale, None, b, b_scale
        return jquant.matmul_integer_to_float(*operands, output_dtype=dtype, feature_level="EXTENDED")

    return jax.vmap(multiply)(*a, *b).reshape(result)


def assert_is_the_product(name: str, lhs_dtype, rhs_dtype, granularities) -> None:
    """Eager and jitted, beside the reference and beside the operators."""
    lhs, rhs, numbers = drawn(name, lhs_dtype, rhs_dtype)
    given, of_reference = options_of(*granularities)
    expected = reference.dot_general(lhs, rhs, numbers, output_dtype(lhs, rhs, numbers), **of_reference)
    assert expected.shape == jax.eval_shape(functools.partial(lax.dot_general, dimension_numbers=numbers), lhs, rhs).shape
    multiply = functools.partial(jquant.dot_general, dimension_numbers=numbers, **given)
    assert_equal(multiply(lhs, rhs), expected)
    by_hand = functools.partial(composed, numbers=numbers, **given)
    ours, theirs = jax.jit(lambda *operands: (multiply(*operands), by_hand(*operands)))(lhs, rhs)
    assert_equal(ours, expected)
    assert_equal(theirs, expected)


@every_product
def test_every_dimension(name):
    assert_is_the_product(name, FLOAT32, FLOAT32, GRANULARITIES[0])


@one_in(7, ("name", "granularities"), itertools.product(PRODUCTS, GRANULARITIES[1:]))
def test_granularities(name, granularities):
    assert_is_the_product(name, FLOAT32, FLOAT32, granularities)


@one_in(7, ("name", "dtypes"), itertools.product(PRODUCTS, DTYPES[1:]))
def test_data_types(name, dtypes):
    assert_is_the_product(name, *dtypes, GRANULARITIES[0])
