"""`matmul_n_bits`: stored and packed weights, within the error bound of the sums, and bit for bit for single terms."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.programs import together
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.kernels.weight_only import dense
from jquant.reference import weight_only as reference

FLOAT32 = np.float32
EPSILON = 2.0**-23
FLOATS = np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)


class Problem:
    """Random operands in ONNX Runtime's format, with zero points that are packed ("u"), floats ("f") or absent (None)."""

    def __init__(self, seed, m, k, n, *, bits=4, block=32, zero_points: str | None = "u", dtype=FLOATS[0], bias=False):
        self.rng = rng = np.random.default_rng(seed)
        self.blocks, self.bits, self.block, self.k = -(-k // block), bits, block, k
        self.a = (rng.normal(size=(m, k)) * 10 ** rng.uniform(-2, 2, (m, 1))).astype(dtype)
        self.b = samples.integers(rng, np.uint8, n, self.blocks, block * bits // 8)
        self.scales = rng.uniform(1e-3, 1e-1, (n, self.blocks)).astype(dtype)
        self.zero_points = None
        if zero_points == "u":
            self.zero_points = samples.integers(rng, np.uint8, n, -(-self.blocks * bits // 8))
        elif zero_points == "f":
            self.zero_points = rng.uniform(0, 2**bits, (n, self.blocks)).astype(dtype)
        self.bias = rng.normal(size=n).astype(dtype) if bias else None

    @functools.cached_property
    def weights(self):
        return reference.block_weights(self.b, self.scales, self.zero_points, self.k, self.bits)

    @functools.cached_property
    def packed(self):
        """The packed weights; without zero points, unsigned integers become signed ones."""
        values = reference.unpack_bytes(self.b, self.bits).reshape(len(self.b), -1)[:, : self.k].T
        if self.zero_points is None:
            values = (values.astype(np.int16) - 2 ** (self.bits - 1)).astype(jnp.int4 if self.bits == 4 else np.int8)
            return jquant.pack_matrix(values, scale=self.scales.T, block_size=self.block)
        dtype = jnp.uint4 if self.bits == 4 else np.uint8
        zero_point = reference.unpack_bytes(self.zero_points, self.bits)[:, : self.blocks].T.astype(dtype)
        return jquant.pack_matrix(values.astype(dtype), zero_point, scale=self.scales.T, block_size=self.block)

    def stored(self, a=None):
        return (self.a if a is None else a), self.b, self.scales, self.zero_points, None, self.bias

    def assert_within_the_bound(self, result, more=0.0):
        """Asserts the error bounds of the sum, of the addition of the bias, and of rounding to 16 bits.

        The sums of these tests are within 3 units of rounding, whatever K is, which is far inside the documented bound.
        """
        result, a = np.asarray(result), self.a.astype(np.float64)
        assert result.dtype == self.a.dtype
        exact, size = a @ self.weights.astype(np.float64), abs(a) @ abs(self.weights.astype(np.float64))
        bound = (min(self.k + 2, 3) * EPSILON + more) * size
        if self.bias is not None:
            exact = exact + self.bias.astype(np.float64)
            bound = bound + EPSILON * abs(exact)
        bound = bound + float(jnp.finfo(result.dtype).eps) * abs(exact) * (result.dtype != np.float32)
        error = abs(result.astype(np.float64) - exact)
        assert np.all(error <= bound), (error / bound).max()


# Different numbers of rows, block sizes and forms of zero points; kernels use panels of 128 columns and chunks of 256 rows.
PROBLEMS = [
    Problem(0, 1, 96, 300, bias=True),
    Problem(1, 1, 130, 256, zero_points=None),
    Problem(2, 3, 80, 261, bits=8, block=16),
    Problem(3, 2, 64, 20, bits=2, block=16, zero_points="f"),
    Problem(4, 5, 600, 30, zero_points=None, dtype=FLOATS[1], bias=True),
    Problem(5, 1, 100, 270, bits=2, dtype=FLOATS[2]),
    Problem(6, 17, 1000, 9, bits=8, block=64, zero_points=None, bias=True),
    Problem(7, 4, 300, 8, block=128, dtype=FLOATS[2], bias=True),
    Problem(8, 9, 48, 700, bits=4, block=16, zero_points="f"),
]


def test_every_form_is_within_the_bound():
    multiply = [functools.partial(jquant.matmul_n_bits, bits=p.bits) for p in PROBLEMS]
    results = together([(function, p.stored()) for function, p in zip(multiply, PROBLEMS, strict=True)])
    for p, result in zip(PROBLEMS, results, strict=True):
        p.assert_within_the_bound(result)


@pytest.mark.gate
def test_packed_weights_are_within_the_bound():
    packable = [p for p in PROBLEMS if p.bits > 2 and (p.zero_points is None or p.zero_points.dtype == np.uint8)]

    def multiply(a, b, bias):
        return jquant.matmul_n_bits(a, b, bias=bias)

    results = together([(multiply, (p.a, p.packed, p.bias)) for p in packable])
    for p, result in zip(packable, results, strict=True):
        p.assert_within_the_bound(result)


class WithMinimum:
    """Packed weights with a minimum. Every other column has one integer in each block, whose weights nearly cancel out."""

    def __init__(self, m, k, n, block, *, dtype=jnp.uint4, floats=FLOATS[0]):
        rng = np.random.default_rng(23)
        self.rows = np.arange(k) // block
        self.a = (rng.normal(size=(m, k)) * 10 ** rng.uniform(-2, 2, (m, 1))).astype(FLOAT32)
        self.b, self.scale = samples.integers(rng, dtype, k, n), rng.uniform(1e-3, 1e-1, (-(-k // block), n)).astype(FLOAT32)
        first = self.b[::block]  # of each block
        self.b[:, ::2] = first[self.rows, ::2]
        self.minimum = (-self.scale * first.astype(FLOAT32)).astype(floats)
        self.packed = jquant.pack_matrix(self.b, scale=self.scale, minimum=self.minimum, block_size=block)

    @property
    def weights(self):
        with np.errstate(all="ignore"):
            return self.b.astype(FLOAT32) * self.scale[self.rows] + self.minimum.astype(FLOAT32)[self.rows]


MINIMA = list(itertools.product((1, 4, 5, 40), (jnp.uint4, np.int8), ((96, 32), (90, 32), (600, 16), (1000, 512))))


@one_in(7, ("m", "dtype", "sizes"), MINIMA)
def test_a_minimum_is_within_the_bound(m, dtype, sizes):
    k, block = sizes
    p = WithMinimum(m, k, 40, block, dtype=dtype, floats=FLOATS[1])
    exact, size = p.a @ p.weights.astype(np.float64), abs(p.a) @ abs(p.weights.astype(np.float64))
    error = abs(np.asarray(jquant.matmul_n_bits(p.a, p.packed)).astype(np.float64) - exact)
    assert np.all(error <= 3 * EPSILON * size), (error / (EPSILON * size)).max()


@pytest.mark.parametrize("m", [1, 7])
def test_one_term_with_a_minimum(m):
    """The weight is rounded after its product with the scale, and again after its sum with the minimum."""
    p = WithMinimum(m, 70, 150, 32)
    for row, number in zip((0, 1, 31, 32, 33, 68, 69), FLOAT32([1, 0.3, -7, 1e-3, 1, 2.7, -1]), strict=True):
        a = np.zeros_like(p.a)
        a[-1, row] = number
        np.testing.assert_array_equal(jquant.matmul_n_bits(a, p.packed)[-1], number * p.weights[row])


@pytest.mark.parametrize("m", [1, 6])
def test_a_weight_of_its_minimum_is_0(m):
    """However large the numbers are that the weight is multiplied by."""
    scale = np.full((2, 3), 0.3, FLOAT32)
    packed = jquant.pack_matrix(np.full((64, 3), 9, jnp.uint4), scale=scale, minimum=-(9 * scale))
    assert_equal(jquant.matmul_n_bits(np.full((m, 64), 1e30, FLOAT32), packed), np.zeros((m, 3), FLOAT32))


@pytest.mark.parametrize("m", [2, 8])
def test_minima_that_are_not_finite(m):
    """They show only in the results of their blocks, and the padding of the last block adds no NaN."""
    p = WithMinimum(m, 289, 6, 32)
    p.a = abs(p.a)
    scale, minimum = p.packed.scale.at[-1, 1].set(np.inf), p.packed.minimum.at[-1, 3].set(-np.inf).at[0, 2].set(np.nan)
    p.b[-1] = 3
    p.scale, p.minimum = np.asarray(scale), np.asarray(minimum)
    packed = jquant.pack_matrix(p.b, scale=scale, minimum=minimum, block_size=32)
    expected = p.a @ p.weights
    assert np.isinf(expected).any(0).tolist() == [False, True, False, True, False, False]
    result = np.asarray(jquant.matmul_n_bits(p.a, packed))
    for predicate in (np.isnan, np.isinf):
        np.testing.assert_array_equal(predicate(result), predicate(expected))


def test_the_derivative_in_minima():
    p = WithMinimum(3, 70, 5, 32)
    cotangent = np.random.default_rng(0).normal(size=(3, 5)).astype(FLOAT32)

    def total(scale, minimum):
        return (jquant.matmul_n_bits(p.a, dataclasses.replace(p.packed, scale=scale, minimum=minimum)) * cotangent).sum()

    by_scale, by_minimum = jax.grad(total, (0, 1))(p.scale, p.minimum)
    by_weight = p.a.T @ cotangent
    for gradient, terms in ((by_scale, by_weight * p.b.astype(FLOAT32)), (by_minimum, by_weight)):
        expected = np.add.reduceat(terms, [0, 32, 64])
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())  # floats in any order


@one_in(3, "dtype", [jnp.int4, np.uint8], ids=str)
def test_the_order_of_packed_weights_makes_no_difference(dtype):
    rng = np.random.default_rng(11)
    a, b, scale = rng.normal(size=(2, 64)), samples.integers(rng, dtype, 64, 3), rng.uniform(0.1, 1, (2, 3))
    results = together(
        (
            jquant.matmul_n_bits,
            (a.astype(np.float32), jquant.pack_matrix(b, scale=scale.astype(np.float32), k_major=k_major)),
        )
        for k_major in (False, True)
    )
    np.testing.assert_array_equal(*results)


@pytest.mark.gate
@one_in(3, "m", [1, 6])
def test_products_of_bfloat16(m):
    """Both operands are rounded to bfloat16, so that the result differs from that of float32."""
    p = Problem(10, m, 320, 260)
    for b in (p.stored()[1:], (p.packed,)):
        exact, inexact = (jquant.matmul_n_bits(p.a, *b, compute_dtype=dtype) for dtype in (None, "bfloat16"))
        p.assert_within_the_bound(inexact, more=2.0**-6.99)
        assert not np.array_equal(exact, inexact)
        expected = p.a.astype(jnp.bfloat16).astype(np.float64) @ p.weights.astype(jnp.bfloat16).astype(np.float64)
        np.testing.assert_allclose(inexact, expected, atol=1e-4 * abs(expected).max())


def test_the_precision_of_matrix_units():
    """On TPUs and GPUs, whose matrix units may round operands, products have the highest precision."""
    p = Problem(21, 2, 64, 6)
    for operands in (p.stored()[1:4], (p.packed,)):
        text = jax.jit(jquant.matmul_n_bits).trace(p.a, *operands).lower(lowering_platforms=("tpu", "cuda")).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line and "precision" in line]
        assert products
        assert all("[HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_one_term_is_rounded_as_the_formula_says(bits):
    """A row with one nonzero number: the weight, rounded twice, is multiplied and rounded, and zeros are added."""
    p = Problem(11, 7, 70, 150, bits=bits, zero_points="f", dtype=FLOATS[0])
    a = np.zeros_like(p.a)
    a[range(7), [0, 1, 31, 32, 33, 68, 69]] = FLOAT32([1, 0.3, -7, 1e-3, 1, 2.7, -1])
    result = jquant.matmul_n_bits(*p.stored(a), bits=bits)
    np.testing.assert_array_equal(result, (a[:, :, None] * p.weights[None]).sum(1))


def test_a_weight_of_its_zero_point_is_0():
    """However large the numbers are that the weight is multiplied by."""
    b = np.full((3, 2, 16), 0x99, np.uint8)
    a, scales, zero_points = np.full((1, 64), 1e30, FLOAT32), np.full((3, 2), 0.3, FLOAT32), np.full((3, 1), 0x99, np.uint8)
    packed = jquant.pack_matrix(np.full((64, 3), 9, jnp.uint4), np.array(9, jnp.uint4), scale=scales.T)
    for operands in ((b, scales, zero_points), (packed,)):
        assert_equal(jquant.matmul_n_bits(a, *operands), np.zeros((1, 3), FLOAT32))


@pytest.mark.parametrize("zero_points", [None, "u", "f"])
def test_groups(zero_points):
    """`g_idx` names the block whose scale and zero point a row of the weights has."""
    p = Problem(12, 3, 70, 140, zero_points=zero_points)
    g_idx = p.rng.permutation(np.arange(70) // 32).astype(np.int32)
    p.weights = reference.block_weights(p.b, p.scales, p.zero_points, 70, 4, g_idx)
    p.assert_within_the_bound(jquant.matmul_n_bits(p.a, p.b, p.scales, p.zero_points, g_idx))
    ordered = np.arange(70, dtype=np.int32) // 32
    same = jquant.matmul_n_bits(p.a, p.b, p.scales, p.zero_points, ordered)
    np.testing.assert_allclose(same, jquant.matmul_n_bits(p.a, p.b, p.scales, p.zero_points), rtol=1e-4, atol=1e-4)


def test_flat_scales_and_zero_points():
    p = Problem(13, 2, 64, 6)
    flat = jquant.matmul_n_bits(p.a, p.b, p.scales.reshape(-1), p.zero_points.reshape(-1))
    assert_equal(flat, jquant.matmul_n_bits(p.a, p.b, p.scales, p.zero_points))


def test_ranks():
    """A vector is one row; leading dimensions are a batch, also of packed weights."""
    p = Problem(14, 6, 64, 5)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), p.packed)
    batch = jquant.matmul_n_bits(*p.stored(p.a.reshape(3, 1, 2, 64)))
    paired = jquant.matmul_n_bits(p.a.reshape(2, 3, 64), both)
    broadcast = jquant.matmul_n_bits(p.a, both)
    vector = jquant.matmul_n_bits(*p.stored(p.a[0]))
    assert [x.shape for x in (batch, paired, broadcast, vector)] == [(3, 1, 2, 5), (2, 3, 5), (2, 6, 5), (5,)]
    for result in (batch.reshape(6, 5), paired.reshape(6, 5), *broadcast):
        p.assert_within_the_bound(result)
    p.a = p.a[0]
    p.assert_within_the_bound(vector)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 32, 3), (2, 0, 3), (2, 32, 0), (0, 0, 0)])
def test_empty(m, k, n):
    blocks = k // 32
    a, b = np.ones((m, k), FLOAT32), np.ones((n, blocks, 16), np.uint8)
    bias = np.ones(n, FLOAT32)
    result = jquant.matmul_n_bits(a, b, np.ones((n, blocks), FLOAT32), None, None, bias)
    assert result.shape == (m, n)
    assert k or np.all(np.asarray(result) == 1)


def test_scales_that_are_not_finite():
    """They show only in the results of their blocks, and the padding of the last block adds no NaN."""
    p = Problem(15, 2, 289, 6, zero_points="u")
    p.scales[1, -1], p.scales[2, 0] = np.inf, np.nan
    many = np.concatenate([p.a] * 4)
    with np.errstate(invalid="ignore"):
        expected = p.a.astype(np.float64) @ p.weights.astype(np.float64)
    for a, copies in ((p.a, 1), (many, 4)):
        for operands in (p.stored()[1:], (p.packed,)):
            result = np.asarray(jquant.matmul_n_bits(a, *operands))
            for predicate in (np.isnan, np.isinf):
                np.testing.assert_array_equal(predicate(result), predicate(np.concatenate([expected] * copies)))


@one_in(5, ("packed", "argument"), itertools.product([False, True], ["a", "scales", "bias"]), first=1)
def test_derivatives(packed, argument):
    p = Problem(16, 3, 70, 6, bias=True)
    values = {"a": p.a, "scales": p.packed.scale if packed else p.scales, "bias": p.bias}
    cotangent = p.rng.normal(size=(3, 6)).astype(FLOAT32)

    def total(value):
        x = {**values, argument: value}
        if packed:
            y = jquant.matmul_n_bits(x["a"], dataclasses.replace(p.packed, scale=x["scales"]), bias=x["bias"])
        else:
            y = jquant.matmul_n_bits(x["a"], p.b, x["scales"], p.zero_points, None, x["bias"])
        return (y * cotangent).sum()

    gradient = np.asarray(jax.grad(total)(values[argument]))
    weight_gradient = p.a.astype(np.float64).T @ cotangent
    terms = (weight_gradient * (p.weights / np.repeat(p.scales, 32, 1)[:, :70].T)).T
    scale_gradient = np.stack([terms[:, start : start + 32].sum(1) for start in (0, 32, 64)], axis=1)
    expected = {
        "a": cotangent @ p.weights.T.astype(np.float64),
        "scales": scale_gradient.T if packed else scale_gradient,
        "bias": cotangent.sum(0),
    }[argument]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())  # floats in any order


def test_the_derivative_in_zero_points():
    p = Problem(17, 2, 64, 5, zero_points="f")
    gradient = jax.grad(lambda zero_points: jquant.matmul_n_bits(p.a, p.b, p.scales, zero_points).sum())(p.zero_points)
    block_sums = p.a.sum(0).reshape(2, 32).sum(1)
    np.testing.assert_allclose(gradient, -p.scales * block_sums, rtol=1e-3, atol=1e-4 * abs(block_sums).max())


@pytest.mark.parametrize("m", [1, 64])
@pytest.mark.parametrize("packed", [False, True])
def test_no_more_than_a_part_of_the_weights_is_floats(packed, m):
    p = Problem(18, m, 2048, 1024)
    operands = (p.packed,) if packed else p.stored()[1:4]
    compiled = jax.jit(jquant.matmul_n_bits).lower(p.a, *operands).compile()
    allowed = {(False, 1): 5 * 2**18, (True, 1): 2**15, (False, 64): 3 * 2**19, (True, 64): 2**21}[packed, m]
    assert compiled.memory_analysis().temp_size_in_bytes <= allowed + 2 * m * 4 * 2048  # of 8 MiB
    whole = jax.jit(functools.partial(dense.matmul, dtype=FLOATS[0])).lower(p.a, p.packed).compile()
    assert whole.memory_analysis().temp_size_in_bytes >= 2**23


def packed_types(k, n, block_size):
    weights, scale = np.zeros((k, n), jnp.int4), np.ones((-(-k // block_size), n), FLOAT32)
    return jax.eval_shape(lambda: jquant.pack_matrix(weights, scale=scale, block_size=block_size))


def test_no_more_than_a_part_of_a_long_block_is_floats():
    a = jax.ShapeDtypeStruct((16, 2048), FLOAT32)
    compiled = jax.jit(jquant.matmul_n_bits).lower(a, packed_types(2048, 1024, 2048)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 2**21  # of 8 MiB


@one_in(3, ("m", "block"), [(2, 1012), (6, 300), (6, 1012), (6, 1009)])
def test_long_blocks(m, block):
    """Block sizes that are no powers of two, and one that is prime, with numbers whose sums are exact."""
    rng = np.random.default_rng(22)
    k = 2 * block - 5
    a, b = rng.integers(-8, 8, (m, k)).astype(FLOAT32), samples.integers(rng, jnp.uint4, k, 3)
    scale, zero_point = 2 ** rng.integers(-1, 2, (2, 3)).astype(FLOAT32), samples.integers(rng, jnp.uint4, 2, 3)
    minimum = rng.integers(-8, 8, (2, 3)).astype(FLOAT32)
    zero_points, scales, minima = (np.repeat(x.astype(FLOAT32), block, axis=0)[:k] for x in (zero_point, scale, minimum))
    result = jquant.matmul_n_bits(a, jquant.pack_matrix(b, zero_point, scale=scale, block_size=block))
    assert_equal(result, a @ ((b.astype(FLOAT32) - zero_points) * scales))
    result = jquant.matmul_n_bits(a, jquant.pack_matrix(b, scale=scale, minimum=minimum, block_size=block))
    assert_equal(result, a @ (b.astype(FLOAT32) * scales + minima))


@pytest.mark.parametrize("block", [32, 1012])
def test_few_rows_of_a_block_are_unrolled(block):
    """The size of the program does not depend on the block size."""
    a = jax.ShapeDtypeStruct((1, 2 * block), FLOAT32)
    program = jax.jit(jquant.matmul_n_bits).lower(a, packed_types(2 * block, 8, block))
    assert len(program.as_text().splitlines()) < 1000


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", ["64", "32*k"])
def test_symbolic_sizes(packed, rows):
    m, k, n = export.symbolic_shape(f"m, {rows}, n")
    a = jax.ShapeDtypeStruct((m, k), FLOAT32)
    b = jax.ShapeDtypeStruct((k, n) if packed else (n, k // 32, 16), jnp.int4 if packed else np.uint8)
    scales = jax.ShapeDtypeStruct((k // 32, n) if packed else (n, k // 32), FLOAT32)

    @jax.jit
    def multiply(a, b, scales):
        if packed:
            return jquant.matmul_n_bits(a, jquant.pack_matrix(b, scale=scales, block_size=32))
        return jquant.matmul_n_bits(a, b, scales)

    assert export.export(multiply)(a, b, scales).out_avals[0].shape == (m, n)


@pytest.mark.gate
@one_in(3, "spec", [P(None, "x"), P("x", None)], ids=["columns", "rows"])
def test_on_a_mesh(spec):
    """A split of the columns moves nothing; a split of the weights' rows needs one sum over the devices."""
    p = Problem(19, 3, 512, 16)
    mesh = jax.make_mesh((8,), ("x",))
    packed = jax.device_put(p.packed, p.packed.sharding_for(NamedSharding(mesh, spec)))
    a = jax.device_put(p.a, NamedSharding(mesh, P(None, spec[0])))
    program = jax.jit(jquant.matmul_n_bits).lower(a, packed).compile()
    p.assert_within_the_bound(program(a, packed))
    assert [operation.kind for operation in collectives(program.as_text())] == (["all-reduce"] if spec[0] else [])


def raises(message, error=DescriptorError):
    return pytest.raises(error, match=message)


def test_errors():
    p = Problem(20, 2, 64, 6)
    with raises(
        r"matmul_n_bits: b has shape \(6, 2, 16\), which with bits=8 means blocks of 16; K, which is 64 in a, makes 4"
    ):
        jquant.matmul_n_bits(*p.stored(), bits=8)
    with raises("bits is 3; it must be 2, 4 or 8, or None"):
        jquant.matmul_n_bits(*p.stored(), bits=3)
    with raises("means blocks of 8; the block size must be a power of two, 16 or more"):
        jquant.matmul_n_bits(p.a[:, :16], p.b[:, :, :4], p.scales)
    with raises("scales is None, but the operator requires it"):
        jquant.matmul_n_bits(p.a, p.b, None)
    with raises(r"scales has shape \(13,\); its size must be a multiple of N, which is 6 in b"):
        jquant.matmul_n_bits(p.a, p.b, np.ones(13, FLOAT32))
    with raises("scales has data type FLOAT16; it must match the data type of a, FLOAT32", DescriptorTypeError):
        jquant.matmul_n_bits(p.a, p.b, p.scales.astype(np.float16))
    with raises("zero_points has data type FLOAT16; it must be UINT8 or match that of a, FLOAT32", DescriptorTypeError):
        jquant.matmul_n_bits(p.a, p.b, p.scales, p.scales.astype(np.float16))
    with raises(r"zero_points has shape \(6, 2\); it must have 1 per column, bytes for 2 blocks of 4 bits"):
        jquant.matmul_n_bits(p.a, p.b, p.scales, np.zeros((6, 2), np.uint8))
    with raises("scales is given with packed weights, which hold their own"):
        jquant.matmul_n_bits(p.a, p.packed, p.scales)
    with raises("bits is 8; the packed weights have 4"):
        jquant.matmul_n_bits(p.a, p.packed, bits=8)
    with raises("compute_dtype is FLOAT16; it must be one of FLOAT32, BFLOAT16", DescriptorTypeError):
        jquant.matmul_n_bits(p.a, p.packed, compute_dtype="FLOAT16")
    with raises(r"b has shape \(64, 6\); dimension 0 must be 32: K is 32 in a"):
        jquant.matmul_n_bits(p.a[:, :32], p.packed)
