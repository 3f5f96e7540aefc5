"""`block_scaled_matmul`: its formula for every type and shape, the order of its sums, errors, compiled programs, meshes."""

import dataclasses
import functools
import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import Collective, collectives
from support.comparison import assert_equal, refusals
from support.layouts import kinds
from support.sampling import one_in

import jquant
from jquant.cases import samples
from jquant.cases.blocks import packed, unpacked
from jquant.kernels import block_dot, blocks_on_cpu, implementations, xla_blocks
from jquant.reference import blocks as reference

FLOAT32 = np.float32
NARROW, BYTES = (jnp.int4, jnp.uint4), (np.int8, np.uint8)


class Problem:
    """Random operands, and the expected results."""

    def __init__(self, seed, sizes, block_size, *, a_dtype=np.int8, b_dtype=jnp.int4, a_batch=(), b_batch=(), **options):
        """`options` are the reference's; `with_zero_points`, which says whether A and B have zero points; `with_minimum`."""
        self.rng = rng = np.random.default_rng(seed)
        m, k, n = sizes
        a_has_zero_point, b_has_zero_point = options.pop("with_zero_points", (False, False))
        has_minimum = options.pop("with_minimum", False)
        self.block_size, self.k_parts = block_size, options.get("k_parts", 1)
        self.a, self.b = samples.integers(rng, a_dtype, *a_batch, m, k), samples.integers(rng, b_dtype, *b_batch, k, n)
        self.b_scale = samples.small_scales(rng, *b_batch, -(-k // block_size), n)
        self.a_scale = samples.small_scales(rng, m, 1)
        self.a_zero_point = samples.integers(rng, a_dtype, m, 1) if a_has_zero_point else None
        self.b_zero_point = samples.integers(rng, b_dtype, *self.b_scale.shape) if b_has_zero_point else None
        self.minimum = rng.normal(size=self.b_scale.shape).astype(FLOAT32) if has_minimum else None
        self.bias = rng.normal(size=n).astype(FLOAT32)
        self.options = options

    @property
    def a_operands(self):
        return self.a, self.a_scale, self.a_zero_point

    def packed(self):
        """The packed matrix, made with NumPy, which compiles nothing."""
        return packed(self.b, self.b_zero_point, self.b_scale, self.block_size, self.minimum)

    def expected(self):
        b_operands = self.b, self.b_scale, self.b_zero_point
        options = {"minimum": self.minimum, "block_size": self.block_size, **self.options}
        return reference.block_scaled_matmul(*self.a_operands, *b_operands, self.bias, **options)

    def outputs(self):
        """The results for B, which may be packed; it must be if it has a minimum."""
        b_operands = self.b, self.b_scale, self.b_zero_point, self.bias
        if self.minimum is None:
            yield jquant.block_scaled_matmul(*self.a_operands, *b_operands, block_size=self.block_size, k_parts=self.k_parts)
        yield jquant.block_scaled_matmul(*self.a_operands, self.packed(), bias=self.bias, k_parts=self.k_parts)

    def check(self):
        expected = self.expected()
        for output in self.outputs():
            assert_equal(output, expected)


def extremes(problem: Problem, a, b, b_zero_point=None) -> Problem:
    """Fills the matrices of a problem with one integer each."""
    problem.a[:], problem.b[:] = a, b
    if b_zero_point is not None:
        problem.b_zero_point[:] = b_zero_point
    return problem


EVERY_TYPE = list(itertools.product((1, 9), (*NARROW, *BYTES), BYTES, (False, True), (False, True)))


@one_in(19, ("rows", "b_dtype", "a_dtype", "a_has_zero_point", "b_has_zero_point"), EVERY_TYPE, gate=7)
def test_types_and_zero_points(rows, b_dtype, a_dtype, a_has_zero_point, b_has_zero_point):
    """One row and many rows, and words of 4 bits and bytes, have different implementations."""
    options = {"a_dtype": a_dtype, "b_dtype": b_dtype, "with_zero_points": (a_has_zero_point, b_has_zero_point)}
    Problem(0, (rows, 90, 7), 32, **options).check()


WITH_A_MINIMUM = list(itertools.product((1, 9), (*NARROW, *BYTES), BYTES, (False, True), (32, 20, 7, 90)))


@one_in(11, ("rows", "b_dtype", "a_dtype", "a_has_zero_point", "block_size"), WITH_A_MINIMUM, gate=7)
def test_a_minimum(rows, b_dtype, a_dtype, a_has_zero_point, block_size):
    """Of whole blocks, and of a last block that is partial: its padding adds nothing."""
    options = {"a_dtype": a_dtype, "b_dtype": b_dtype, "with_zero_points": (a_has_zero_point, False)}
    Problem(0, (rows, 90, 7), block_size, with_minimum=True, **options).check()


@pytest.mark.parametrize("rows", [1, 9])
def test_the_roundings_of_a_minimum(rows):
    """A sum of activations is exact, is rounded by its product with the minimum alone, and is added to its own block."""
    a, b = np.ones((rows, 4), np.int8), np.zeros((4, 1), jnp.uint4)
    b[0] = b[2] = 1
    scale = np.array([[2**24], [-(2**24)]], FLOAT32)
    minimum = np.array([[0.5], [1]], FLOAT32)
    packed_b = jquant.pack_matrix(b, scale=scale, minimum=minimum)
    # fl(2**24 + 1) + (-2**24 + 2), where a sum of all minima would give 3
    assert_equal(jquant.block_scaled_matmul(a, FLOAT32(1), None, packed_b), np.full((rows, 1), 2, FLOAT32))
    third = np.full((2, 1), 1 / 3, FLOAT32)
    packed_b = jquant.pack_matrix(np.zeros((4, 1), jnp.uint4), scale=scale, minimum=third, block_size=3)
    expected = FLOAT32(3) * third[:1] + third[:1]  # the second block has one row, and two of padding
    assert_equal(jquant.block_scaled_matmul(a, FLOAT32(1), None, packed_b), np.repeat(expected, rows, axis=0))


SHAPES = [
    *(((1, 256, 5), block_size) for block_size in (3, 4, 12, 16, 20, 31, 44, 64, 128, 256, 300)),
    *(((m, 64, n), 32) for m, n in ((2, 1), (8, 3), (9, 33))),
    *(((m, 7 * 32, 3), 32) for m in (1, 8)),
    ((3, 1, 1), 1),
    ((1, 512, 2), 8),
]


@one_in(
    9, ("sizes", "block_size", "b_dtype"), [(*shape, b_dtype) for b_dtype in (jnp.int4, np.int8) for shape in SHAPES], gate=2
)
def test_shapes(sizes, block_size, b_dtype):
    Problem(0, sizes, block_size, b_dtype=b_dtype, with_zero_points=(False, True)).check()


BATCHES = [((3,), ()), ((2, 1), (1, 3)), ((), (2,)), ((3,), (3,)), ((2,), (1,)), ((1, 2), (2,))]


@one_in(7, ("batches", "rows"), itertools.product(BATCHES, (1, 9)))
def test_batches(batches, rows):
    a_batch, b_batch = batches
    Problem(0, (rows, 64, 6), 32, a_batch=a_batch, b_batch=b_batch, with_zero_points=(True, True)).check()


EVERY_LEAF = list(itertools.product((1, 2, 20), (jnp.uint4, np.int8), (64, 90), (False, True)))


@pytest.mark.gate
@one_in(9, ("rows", "b_dtype", "k", "has_minimum"), EVERY_LEAF, gate=5)
def test_each_operand_mapped_alone(rows, b_dtype, k, has_minimum):
    options = {"with_zero_points": (True, not has_minimum), "with_minimum": has_minimum}
    p = Problem(0, (rows, k, 3), 32, a_dtype=np.uint8, b_dtype=b_dtype, **options)
    operands = p.a, p.a_zero_point, p.packed()
    leaves, tree = jax.tree.flatten(operands)

    def multiply(*leaves):
        a, a_zero_point, b = tree.unflatten(leaves)
        return jquant.block_scaled_matmul(a, p.a_scale, a_zero_point, b)

    def map_each(*leaves):
        for position, leaf in enumerate(leaves):
            axes = [0 if other == position else None for other in range(len(leaves))]
            mapped = jnp.stack([leaf, leaf[::-1]])  # the rows of A, or the rows or blocks of B, in reverse
            yield jax.vmap(multiply, axes)(*leaves[:position], mapped, *leaves[position + 1 :])

    outputs = jax.jit(lambda *leaves: [*map_each(*leaves)])(*leaves)
    for position, (leaf, output) in enumerate(zip(leaves, outputs, strict=True)):
        for values, actual in zip((leaf, leaf[::-1]), output, strict=True):
            a, a_zero_point, b = tree.unflatten([*leaves[:position], values, *leaves[position + 1 :]])
            integers, zero_point = unpacked(b)
            operands = a, p.a_scale, a_zero_point, integers, b.scale, zero_point
            assert_equal(actual, reference.block_scaled_matmul(*operands, minimum=b.minimum, block_size=32))


@pytest.mark.parametrize("sizes", [(0, 64, 3), (2, 64, 0), (2, 0, 3)], ids=str)
def test_empty(sizes):
    Problem(0, sizes, 32).check()


@one_in(5, ("block_size", "bits"), itertools.product((32, 16, 128, 1), (4, 8)))
def test_the_largest_sums(block_size, bits):
    """The largest sums that are computed in 16 bits just fit into int16."""
    signed, unsigned = (jnp.int4, jnp.uint4) if bits == 4 else (np.int8, np.uint8)
    for a, b in itertools.product((-128, 127), (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)):
        extremes(Problem(0, (1, 256, 3), block_size, b_dtype=signed), a, b).check()
    largest = 2**bits - 1
    for a, b, zero_point in ((255, largest, 0), (255, 0, largest), (0, 0, largest), (0, largest, 0)):
        options = {"a_dtype": np.uint8, "b_dtype": unsigned, "with_zero_points": (True, True)}
        for a_zero_point in (0, 255):
            problem = extremes(Problem(0, (1, 256, 3), block_size, **options), a, b, zero_point)
            problem.a_zero_point[:] = a_zero_point
            problem.check()


def test_the_order_of_the_blocks():
    """In float32, 2**24 + 1 is 2**24, so that the order of the additions shows in the result."""
    a, b = np.ones((1, 4), np.int8), np.ones((4, 1), np.int8)
    scale = np.array([[2**24], [1], [1], [-(2**24)]], FLOAT32)
    product = functools.partial(jquant.block_scaled_matmul, a, FLOAT32(1), None, b)
    for k_parts, expected in ((1, 0), (2, 1), (4, 1)):
        assert_equal(product(scale, k_parts=k_parts), np.full((1, 1), expected, FLOAT32))
    scale = np.array([[1], [2**24], [1], [1]], FLOAT32)
    for k_parts, expected in ((1, 2**24), (2, 2**24 + 2)):
        assert_equal(product(scale, k_parts=k_parts), np.full((1, 1), expected, FLOAT32))


@pytest.mark.gate
def test_a_first_term_of_minus_zero():
    for m, k in ((1, 64), (9, 64)):
        for dtype in (jnp.int4, np.int8):
            b = jquant.pack_matrix(np.zeros((k, 3), dtype), scale=np.full((2, 3), -1, FLOAT32))
            output = jquant.block_scaled_matmul(np.ones((m, k), np.int8), FLOAT32(1), None, b)
            assert_equal(output, np.full((m, 3), -0.0, FLOAT32))


@pytest.mark.gate
@one_in(5, ("k_parts", "rows", "b_dtype"), [(2, 9, jnp.uint4), (4, 1, jnp.int4), (8, 1, np.uint8)])
def test_parts_of_k(k_parts, rows, b_dtype):
    Problem(0, (rows, 250, 5), 16, b_dtype=b_dtype, k_parts=k_parts, with_zero_points=(True, True)).check()


@pytest.mark.parametrize("rows", [1, 9])
def test_parts_of_k_with_a_minimum(rows):
    Problem(0, (rows, 250, 5), 16, b_dtype=jnp.uint4, k_parts=4, with_minimum=True, with_zero_points=(True, False)).check()


def test_the_sum_of_many_parts_is_a_short_program():
    """Doubling the number of parts adds one step."""
    a, b, scale = np.ones((2, 256), np.int8), np.ones((256, 3), np.int8), np.ones((128, 3), FLOAT32)

    def lines(k_parts):
        multiply = functools.partial(jquant.block_scaled_matmul, block_size=2, k_parts=k_parts)
        return len(jax.jit(multiply).lower(a, FLOAT32(1), None, b, scale).as_text().splitlines())

    four, eight, thirty_two = map(lines, (4, 8, 32))
    assert thirty_two - eight == 2 * (eight - four) > 0


def test_floats():
    """Scales, the bias and the output of 16 bits; the output is rounded once."""
    half, brain = np.float16, jnp.bfloat16
    for a_dtype, b_dtype, output_dtype in ((half, brain, FLOAT32), (brain, FLOAT32, half), (FLOAT32, half, brain)):
        p = Problem(0, (3, 64, 5), 32, dtype=output_dtype)
        p.a_scale, p.b_scale, p.bias = p.a_scale.astype(a_dtype), p.b_scale.astype(b_dtype), p.bias.astype(b_dtype)
        output = jquant.block_scaled_matmul(*p.a_operands, p.packed(), bias=p.bias, output_dtype=output_dtype)
        assert_equal(output, p.expected())
    scale = jax.ShapeDtypeStruct((3,), np.float16)
    output = jax.eval_shape(lambda scale: jquant.block_scaled_matmul(p.a, scale, None, p.packed()), scale)
    assert output.dtype == np.float16


@one_in(5, "shape", [(), (1,), (3,), (3, 1), (1, 1), (2, 3, 1), (2, 1, 1)], ids=str)
def test_scales_of_rows(shape):
    p = Problem(0, (3, 64, 5), 32, a_batch=(2,))
    scale, zero_point = samples.small_scales(p.rng, *shape), samples.integers(p.rng, np.int8, *shape)
    output = jquant.block_scaled_matmul(p.a, scale, zero_point, p.packed())
    rows = (x.reshape(-1, 1) if shape == (3,) else x for x in (scale, zero_point))
    assert_equal(output, reference.block_scaled_matmul(p.a, *rows, p.b, p.b_scale))


def test_python_scalars():
    a, b, scale = np.ones((2, 4), np.uint8), np.ones((4, 3), jnp.uint4), np.ones((2, 3), FLOAT32)
    expected = reference.block_scaled_matmul(a, FLOAT32(0.5), 3, b, scale, 7, 1)
    assert_equal(jquant.block_scaled_matmul(a, 0.5, 3, b, scale, 7, 1), expected)
    assert_equal(jquant.block_scaled_matmul(a, 0.5, 3, jquant.pack_matrix(b, 7, scale=scale), bias=1.0), expected)


_A, _B, _SCALE = np.ones((2, 64), np.int8), np.ones((64, 3), jnp.int4), np.ones((2, 3), np.float32)


_WITHOUT_SCALES = "block_scaled_matmul: b was packed without scales: pack_matrix(b, scale=...)"


def _call(*arguments, a=_A, a_scale=1.0, a_zero_point=None, b=_B, **options):
    arguments = arguments or (_SCALE,)
    return lambda: jquant.block_scaled_matmul(a, a_scale, a_zero_point, b, *arguments, **options)


def _packed(*arguments, **options):
    return _call(*(arguments or (None,)), b=jquant.pack_matrix(_B, scale=_SCALE), **options)


@refusals(
    [
        (_call(None), "block_scaled_matmul: b_scale is None; only packed weights hold their own"),
        (_call(_SCALE[0]), "b_scale has rank 1 (shape (3,)); the operator allows 2 to 8"),
        (
            _call(np.ones((3, 3), FLOAT32)),
            "block_size is None, but K, which is 64 in b, is not a multiple of the 3 blocks of b_s",
        ),
        (_call(_SCALE, block_size=16), "b_scale has 2 blocks; K, which is 64 in b, makes 4 blocks of block_size 16"),
        (_call(_SCALE, block_size=0), "block_size is 0; it must be an integer from 1 to 32768"),
        (_call(_SCALE, k_parts=4), "k_parts is 4; it must be a power of two that divides the number of blocks, which is 2"),
        (
            _call(np.ones((0, 3), FLOAT32), a=_A[:, :0], b=_B[:0], block_size=32, k_parts=4),
            "k_parts is 4; it must be 1, without any blocks",
        ),
        (_call(_SCALE, k_parts=0), "k_parts is 0; it must be a power of two"),
        (
            _call(_SCALE, np.ones((1, 3), jnp.int4)),
            "b_zero_point has shape (1, 3); dimension 0 must be 2: BlockCount is 2",
        ),
        (_call(np.ones((2, 4), FLOAT32)), "b_scale has shape (2, 4); dimension 1 must be 3: N is 3 in b"),
        (_call(a=_A[:, :32]), "b has shape (64, 3); dimension 0 must be 32: K is 32 in a"),
        (_call(a_scale=np.ones(3, FLOAT32)), "must be 1 or 2: AScaleCount is 1 or M, which is 2 in a"),
        (_call(a_scale=np.ones((3, 2, 1), FLOAT32)), "a_scale has shape (3, 2, 1), a has (2, 64): each batch size must"),
        (
            _call(np.ones((2, 2, 3), FLOAT32), b=_B[None]),
            "b_scale has shape (2, 2, 3), b has (1, 64, 3): the batch dimensions must",
        ),
        (_packed(_SCALE), "b_scale is given with packed weights, which hold their own: pass None"),
        (_packed(b_zero_point=1), "b_zero_point is given with packed weights, which hold their own: pass None"),
        (_packed(block_size=16), "block_size is 16; it must be None, or 32, the block size of the packed b"),
        (_call(implementation="mosaic"), "unknown implementation 'mosaic'"),
    ],
    [
        (_call(a=_A.astype(np.int16)), "a has data type INT16; the operator allows INT8, UINT8"),
        (_call(b=np.ones((64, 3), jnp.int2)), "b has data type INT2; the operator allows INT4, UINT4, INT8, UINT8"),
        (
            _call(_SCALE, np.ones((2, 3), jnp.uint4)),
            "b_zero_point has data type UINT4; it must match the data type of b, INT4",
        ),
        (_call(a_zero_point=np.uint8(1)), "a_zero_point has data type UINT8; it must match the data type of a, INT8"),
        (_call(b=jquant.pack_matrix(np.ones((64, 3), np.int8))), _WITHOUT_SCALES),
        (_call(None, b=jquant.pack_matrix(np.ones((64, 3), np.int8))), _WITHOUT_SCALES),
        (
            _call(None, b=SimpleNamespace(matrix=jquant.pack_matrix(_B, scale=_SCALE))),
            "b is of type SimpleNamespace, which holds packed weights: pass its attribute matrix",
        ),
        (_call(_SCALE, output_dtype="int8"), "output_dtype is INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16"),
    ],
)
def test_refuses(call, message, error):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_implementations():
    p = Problem(0, (2, 64, 5), 32)
    assert_equal(jquant.block_scaled_matmul(*p.a_operands, p.packed(), bias=p.bias, implementation="xla"), p.expected())
    for implementation in (jquant.Implementation.MOSAIC_TPU, jquant.Implementation.MOSAIC_GPU):
        with pytest.raises(NotImplementedError, match=f"implementation {implementation} "):
            jquant.block_scaled_matmul(*p.a_operands, p.packed(), implementation=implementation)
    for platform, module in (("cpu", blocks_on_cpu), ("cuda", xla_blocks)):
        function = block_dot.function_for(platform, jquant.Implementation.XLA)
        assert function.__wrapped__ is module.block_dot


@pytest.mark.parametrize("batch", [(), (2,)])
def test_derivatives(batch):
    """In scales and minima, together and each alone: products and sums of integers, times the scale of A."""
    p = Problem(0, (3, 90, 5), 32, a_dtype=np.uint8, b_batch=batch, with_zero_points=(True, False), with_minimum=True)
    p.a_scale = 2.0 ** p.rng.integers(-2, 3, (3, 1)).astype(FLOAT32)
    cotangent = p.rng.integers(-2, 3, (*batch, 3, 5)).astype(FLOAT32)  # sums of these sizes are exact in any order

    def total(scale, minimum):
        b = dataclasses.replace(p.packed(), scale=scale, minimum=minimum)
        return (jquant.block_scaled_matmul(*p.a_operands, b) * cotangent).sum()

    a = np.pad(p.a.astype(int) - p.a_zero_point, ((0, 0), (0, 6))).reshape(3, 3, 32)
    b = np.pad(p.b.astype(int), (*((0, 0),) * len(batch), (0, 6), (0, 0))).reshape(*batch, 3, 32, 5)
    by_output = np.swapaxes(cotangent * p.a_scale, -1, -2)
    by_scale = np.einsum("mgk,...gkn,...nm->...gn", a, b, by_output).astype(FLOAT32)
    by_minimum = np.einsum("mgk,...nm->...gn", a, by_output).astype(FLOAT32)
    for both in (jax.grad, lambda f, argnums: jax.jit(jax.jacfwd(f, argnums))):
        assert_equal(both(total, (0, 1))(p.b_scale, p.minimum), (by_scale, by_minimum))
    assert_equal(jax.grad(total, 0)(p.b_scale, p.minimum), by_scale)
    assert_equal(jax.grad(total, 1)(p.b_scale, p.minimum), by_minimum)


@pytest.mark.gate
def test_memory_of_derivatives():
    """Only the derivative in the scales of B stores the products of all blocks."""
    m, k, n, blocks = 64, 256, 64, 16
    p = Problem(0, (m, k, n), k // blocks, with_minimum=True)

    def temporaries(scale, multiply):
        program = jax.jit(lambda x: jax.jvp(multiply, (x,), (jnp.ones_like(x),))).lower(scale).compile()
        return program.memory_analysis().temp_size_in_bytes

    b = p.packed()
    a_bytes = temporaries(p.a_scale, lambda scale: jquant.block_scaled_matmul(p.a, scale, None, b))
    b_bytes = temporaries(
        p.b_scale, lambda scale: jquant.block_scaled_matmul(p.a, 0.5, None, dataclasses.replace(b, scale=scale))
    )
    minimum_bytes = temporaries(
        p.minimum, lambda minimum: jquant.block_scaled_matmul(p.a, 0.5, None, dataclasses.replace(b, minimum=minimum))
    )
    assert max(a_bytes, minimum_bytes) < 4 * blocks * m * n <= b_bytes


@pytest.mark.parametrize("has_minimum", [False, True])
def test_scan_over_layers(has_minimum):
    """Each iteration slices its layer out of a stack of packed matrices."""
    problems = [Problem(seed, (1, 64, 64), 16, with_minimum=has_minimum) for seed in range(3)]
    layers = jax.tree.map(lambda *x: jnp.stack(x), *(p.packed() for p in problems))
    a = problems[0].a

    @jax.jit
    def outputs(layers):
        return lax.scan(lambda _, layer: (None, jquant.block_scaled_matmul(a, 0.5, None, layer)), None, layers)[1]

    expected = [reference.block_scaled_matmul(a, FLOAT32(0.5), None, p.b, p.b_scale, minimum=p.minimum) for p in problems]
    assert_equal(outputs(layers), np.stack(expected))


@pytest.mark.gate
@one_in(5, ("block_size", "b_dtype"), itertools.product((32, 64, 128, 256), (jnp.int4, jnp.int8)))
def test_temporaries_of_one_row(block_size, b_dtype):
    """At most one float32 for each scale and minimum of a block is stored: the weights are not unpacked in memory."""
    k, n = 4096, 1024
    # Sums of bytes have 32 bits, so that activations and outputs need memory besides.
    most = 4 * n * k // block_size + (0 if b_dtype == jnp.int4 else 2 * k + 4 * n)
    shapes = jax.ShapeDtypeStruct((k, n), b_dtype), jax.ShapeDtypeStruct((k // block_size, n), jnp.float32)
    packed_shapes = jax.eval_shape(lambda b, scale: jquant.pack_matrix(b, scale=scale), *shapes)
    with_minimum = jax.eval_shape(lambda b, scale: jquant.pack_matrix(b, scale=scale, minimum=scale), *shapes)
    for a_dtype, a_zero_point in ((jnp.int8, None), (jnp.uint8, 3)):
        multiply = jax.jit(lambda a, b, a_zero_point=a_zero_point: jquant.block_scaled_matmul(a, 0.5, a_zero_point, b))
        for packed_b, scales in ((packed_shapes, 1), (with_minimum, 2)):
            program = multiply.lower(jax.ShapeDtypeStruct((1, k), a_dtype), packed_b).compile()
            assert program.memory_analysis().temp_size_in_bytes <= 1.05 * scales * most


@pytest.mark.usefixtures("xla_by_default")
@one_in(5, ("rows", "k", "block_size", "b_dtype"), [(8, 512, 128, jnp.int4), (1, 896, 128, jnp.int4), (1, 224, 32, np.int8)])
def test_sums_of_few_rows_are_stored(rows, k, block_size, b_dtype):
    """Also of one block at a time; fused with the scales, XLA would compute them a hundred times as slowly."""
    p = Problem(0, (rows, k, 40), block_size, b_dtype=b_dtype)
    program = jax.jit(lambda a, b: jquant.block_scaled_matmul(a, 0.5, None, b)).lower(p.a, p.packed()).compile()
    sums = rf"= s(16|32)\[1,{rows},(\d+),40\]\S* fusion\("
    assert len(re.findall(sums, program.as_text())) == 1


@one_in(5, ("k", "b_dtype"), itertools.product((2**14, 4 * 1009), (jnp.int4, np.int8)))
def test_a_scale_for_each_column(k, b_dtype):
    """The size of the program does not depend on the block size, not even where a block has a prime number of words."""

    def lowered(k):
        p = Problem(0, (1, k, 3), k, a_dtype=np.uint8, b_dtype=b_dtype, with_zero_points=(True, True))
        return jax.jit(jquant.block_scaled_matmul).lower(*p.a_operands, p.packed(), bias=p.bias), p

    shorter, _ = lowered(2**13)
    program, p = lowered(k)
    assert len(program.as_text().splitlines()) <= len(shorter.as_text().splitlines()) < 3000
    assert_equal(program.compile()(*p.a_operands, p.packed(), bias=p.bias), p.expected())


@pytest.mark.gate
@kinds
@pytest.mark.parametrize("layout", ["N", "K"])
def test_a_mesh(layout, kind):
    """A split of N moves nothing, and a split of K one array of integers; both give the bits of one device."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=jax.devices()[:4])
    parts = 4
    k_axis, n_axis = ("x", None) if layout == "K" else (None, "x")
    for (rows, b_dtype), has_minimum in itertools.product(((1, jnp.uint4), (9, np.uint8)), (False, True)):
        options = {"with_zero_points": (True, not has_minimum), "with_minimum": has_minimum}
        p = Problem(0, (rows, 256, 16), 32, b_dtype=b_dtype, k_parts=parts, **options)
        p.bias = None
        with jax.set_mesh(mesh):
            a = jax.device_put(p.a, NamedSharding(mesh, P(None, k_axis)))
            b = p.packed()
            b = jax.device_put(b, b.sharding_for(NamedSharding(mesh, P(k_axis, n_axis))))
            multiply = jax.jit(lambda a, b, p=p: jquant.block_scaled_matmul(a, p.a_scale, p.a_zero_point, b, k_parts=parts))
            program = multiply.lower(a, b).compile()
            output = program(a, b)
        assert_equal(output, p.expected())
        assert_equal(jquant.block_scaled_matmul(*p.a_operands, p.packed(), k_parts=parts), p.expected())
        expected = [Collective("all-reduce", {"s32"}, parts * rows * 16)] if layout == "K" else []
        assert collectives(program.as_text()) == expected


def test_a_split_of_k_without_parts():
    """The result is the same, but XLA gathers the blocks, which are added in order."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    p = Problem(0, (2, 256, 16), 32, with_minimum=True)
    b = jax.device_put(p.packed(), p.packed().sharding_for(NamedSharding(mesh, P("x", None))))
    output = jax.jit(lambda a, b: jquant.block_scaled_matmul(a, p.a_scale, None, b, bias=p.bias))(p.a, b)
    assert_equal(output, p.expected())


@pytest.mark.gate
def test_sweep(full):
    """Random types, shapes and options: a sample, or 10 million outputs in the full run."""
    rng, count = np.random.default_rng(0), 0
    while count < (10_000_000 if full else 10_000):
        block_size = int(rng.choice([4, 16, 20, 32, 64, 128, 256, 7]))
        blocks, m, n = int(rng.choice([1, 2, 4, 8, 12])), int(rng.choice([1, 2, 8, 9, 40])), int(rng.choice([3, 700, 4000]))
        m, n = (m, n) if full else (min(m, 9), 300)
        k = blocks * block_size - int(rng.integers(0, block_size)) * int(rng.integers(2))
        batches = [((), ()), ((3,), ()), ((2,), (2,)), ((2, 1), (1, 3)), ((), (2,))][int(rng.integers(5))]
        options = {
            "a_dtype": BYTES[int(rng.integers(2))],
            "b_dtype": (*NARROW, *BYTES)[int(rng.integers(4))],
            "with_zero_points": tuple(rng.integers(2, size=2).astype(bool)),
            "k_parts": int(rng.choice([parts for parts in (1, 2, 4) if blocks % parts == 0])),
        }
        options["with_minimum"] = not options["with_zero_points"][1] and bool(rng.integers(2))
        problem = Problem(count, (m, k, n), block_size, a_batch=batches[0], b_batch=batches[1], **options)
        problem.check()
        count += problem.expected().size


def test_a_named_kernel_leaves_meshes_to_xla_and_says_so(monkeypatch):
    def kernel(*_):
        raise AssertionError("no kernel can be partitioned")

    monkeypatch.setattr(block_dot, "function_for", lambda platform, implementation: kernel)
    implementations.warn_of_partitioning.cache_clear()
    p = Problem(0, (4, 64, 8), 32)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    b = jax.device_put(p.packed(), p.packed().sharding_for(NamedSharding(mesh, P(None, "x"))))
    multiply = functools.partial(jquant.block_scaled_matmul, implementation="mosaic_tpu")
    with pytest.warns(UserWarning, match="mosaic_tpu cannot be partitioned by XLA.*; inside jax.shard_map, the kernel runs"):
        output = jax.jit(multiply)(*p.a_operands, b, bias=p.bias)
    assert_equal(output, p.expected())


def test_a_default_kernel_that_declines_leaves_it_to_xla(monkeypatch):
    def kernel(*_):
        raise NotImplementedError

    by_xla = block_dot.function_for("cpu", jquant.Implementation.XLA)
    functions = {jquant.Implementation.MOSAIC_TPU: kernel, jquant.Implementation.XLA: by_xla}
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", jquant.Implementation.MOSAIC_TPU)
    monkeypatch.setattr(block_dot, "function_for", lambda platform, implementation: functions[implementation])
    p = Problem(0, (4, 64, 9), 32)
    assert_equal(jax.jit(jquant.block_scaled_matmul)(*p.a_operands, p.packed(), bias=p.bias), p.expected())


@pytest.mark.parametrize(
    ("platform", "kernel"), [("tpu", jquant.Implementation.MOSAIC_TPU), ("cuda", jquant.Implementation.MOSAIC_GPU)]
)
def test_the_kernels_decline_a_minimum(platform, kernel, monkeypatch):
    """One that is asked for says why; XLA's product would take the place of a default."""
    p = Problem(0, (4, 64, 128), 32, with_minimum=True)

    def lowered(implementation):
        multiply = functools.partial(jquant.block_scaled_matmul, implementation=implementation)
        return jax.jit(multiply).trace(*p.a_operands, p.packed()).lower(lowering_platforms=(platform,)).as_text()

    with pytest.raises(NotImplementedError, match="kernel takes blocks with zero points or without, not with a minimum"):
        lowered(kernel)
    monkeypatch.setitem(implementations.DEFAULTS, platform, kernel)
    assert "dot_general" in lowered(None)
