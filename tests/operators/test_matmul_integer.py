"""`matmul_integer`, plain and packed: every shape and zero point, sums that wrap, implementations, and errors."""

import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.programs import together
from support.sampling import one_in
from support.signatures import i8, of, outcome, told, u8

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import products as reference

from .products import INTEGERS, SHAPES, ZERO_POINTS, Problem


@one_in(7, "shape", SHAPES, ids=str)
def test_shapes(shape):
    """Each pair of types, plain and packed."""
    problems = []
    for a_dtype, b_dtype in itertools.product(INTEGERS, repeat=2):
        seed = 100 * SHAPES.index(shape) + 10 * INTEGERS.index(a_dtype) + INTEGERS.index(b_dtype)
        problems.append(Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)]))
    packed = together([(jquant.pack_matrix, (p.b, p.b_zero_point)) for p in problems])  # its results are operands below
    calls = [(p.a, p.b, p.a_zero_point, p.b_zero_point) for p in problems]
    calls += [(p.a, weights, p.a_zero_point) for p, weights in zip(problems, packed, strict=True)]
    results = together([(jquant.matmul_integer, operands) for operands in calls])
    for p, result in zip(problems * 2, results, strict=True):
        assert_equal(result, p.expected, f"{p.a.dtype} x {p.b.dtype}")


@one_in(5, ("a_dtype", "b_dtype"), itertools.product((np.int8, np.uint8), repeat=2))
def test_every_zero_point(a_dtype, b_dtype):
    """None, per tensor, per row and per column in every combination, and each of their shapes."""
    rng = np.random.default_rng(0)
    m, k, n = 5, 33, 7
    shapes = [*itertools.product([None, (), (m,)], [None, (), (n,)])]
    shapes += [((m, 1), (1, n)), ((1, m, 1), (1, 1, n)), ((1, 1, m, 1), (1, 1, 1, n)), ((1,), (1,)), ((1, 1), (1, 1))]
    calls, expected = [], []
    for batch in ((), (2, 3)):
        a, b = samples.integers(rng, a_dtype, *batch, m, k), samples.integers(rng, b_dtype, *batch, k, n)
        for row, column in shapes:
            a_zero_point = None if row is None else samples.integers(rng, a_dtype, *row)
            b_zero_point = None if column is None else samples.integers(rng, b_dtype, *column)
            calls.append((jquant.matmul_integer, (a, b, a_zero_point, b_zero_point)))
            a_column = 0 if a_zero_point is None else a_zero_point.reshape(-1, 1)
            b_row = 0 if b_zero_point is None else b_zero_point.reshape(1, -1)
            expected.append(reference.matmul_integer(a, b, a_column, b_row))
    for result, product in zip(together(calls), expected, strict=True):
        assert_equal(result, product)


def test_batch_sizes_of_1_broadcast():
    rng = np.random.default_rng(1)
    a, b = samples.integers(rng, np.uint8, 1, 3, 4, 5), samples.integers(rng, np.int8, 2, 1, 5, 6)
    assert_equal(jquant.matmul_integer(a, b, 9, -4), reference.matmul_integer(a, b, 9, -4))


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)])
def test_empty(m, k, n):
    a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
    expected = reference.matmul_integer(a, b, 3, 3)
    assert_equal(jquant.matmul_integer(a, b, 3, 3), expected)
    assert_equal(jquant.matmul_integer(a, b, np.full(m, 3, np.uint8), np.full(n, 3, np.int8)), expected)


@pytest.mark.parametrize(("a_value", "b_value"), [(255, 255), (255, -128), (0, -128)])
def test_wraps_modulo_2_to_the_32(a_value, b_value):
    k = 140_000
    b_dtype = np.int8 if b_value < 0 else np.uint8
    a, b = np.full((1, k), a_value, np.uint8), np.full((k, 2), b_value, b_dtype)
    for a_zero_point, b_zero_point in ((0, 0), (255, 0), (7, 127)):
        expected = reference.matmul_integer(a, b, a_zero_point, b_zero_point)
        assert_equal(jquant.matmul_integer(a, b, a_zero_point, b_zero_point), expected)


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("batch", [(6,), (2, 3), (1, 2, 3)])
def test_memory_of_batches(batch):
    """On a CPU, zero points are subtracted in place: XLA's product and the result share their memory."""
    a, b = jnp.ones((*batch, 128, 16), jnp.uint8), jnp.ones((*batch, 16, 128), jnp.int8)
    function = jax.jit(jquant.matmul_integer, static_argnames="feature_level")
    memory = function.lower(a, b, np.uint8(3), np.int8(4), feature_level="EXTENDED").compile().memory_analysis()
    has_temporary = memory.temp_size_in_bytes >= memory.output_size_in_bytes
    assert has_temporary == (len(batch) > 1 and jax.__version_info__ < (0, 11))  # whose XLA fuses a reshape with them


def test_implementations():
    a = jnp.ones((2, 2), jnp.int8)
    assert_equal(jquant.matmul_integer(a, a, implementation="xla"), np.full((2, 2), 2, np.int32))
    with pytest.raises(
        ValueError, match="unknown implementation 'magic'; choose one of xla, native, mosaic_tpu, mosaic_gpu"
    ):
        jquant.matmul_integer(a, a, implementation="magic")


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0), (1, 0, 1), (20, 0, 30)])
def test_empty_with_packed_weights(m, k, n):
    a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
    for weights, zero_point in ((b, np.int8(3)), (jquant.pack_matrix(b, 3), None)):
        assert_equal(jquant.matmul_integer(a, weights, 7, zero_point), np.zeros((m, n), np.int32))


def test_packed_weights_wrap_in_their_sums():
    k = 140_000
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 2), 255, np.uint8)
    for a_zero_point, b_zero_point in ((0, 0), (7, 127)):
        expected = reference.matmul_integer(a, b, a_zero_point, b_zero_point)
        assert_equal(jquant.matmul_integer(a, jquant.pack_matrix(b, b_zero_point), a_zero_point), expected)


def test_other_packed_weights_raise():
    a, blocks = np.ones((2, 4), np.int8), jquant.pack_matrix(np.ones((4, 3), np.int8), scale=np.ones((1, 3), np.float32))
    with pytest.raises(TypeError, match=r"b was packed with scales, as block_scaled_matmul takes it: pack_matrix"):
        jquant.matmul_integer(a, blocks)
    with pytest.raises(TypeError, match="is of type SimpleNamespace, which holds packed weights: pass its attribute matrix"):
        jquant.matmul_integer(a, SimpleNamespace(matrix=blocks))


def test_vmap_over_every_argument():
    rng = np.random.default_rng(0)
    a, b = samples.integers(rng, np.uint8, 3, 4, 5), samples.integers(rng, np.int8, 3, 5, 6)
    a_zero_point, b_zero_point = samples.integers(rng, np.uint8, 3, 4), samples.integers(rng, np.int8, 3)
    expected = np.stack(
        [reference.matmul_integer(*args) for args in zip(a, b, a_zero_point[..., None], b_zero_point, strict=True)]
    )
    assert_equal(jax.vmap(jquant.matmul_integer)(a, b, a_zero_point, b_zero_point), expected)


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("packed", [False, True])
def test_vmap_over_rows_is_a_product_of_a_matrix(packed):
    """B is read once for all rows, and no padding is added to each row."""
    p = Problem(0, np.uint8, np.int8, ((), 20, 64, 7), ("tensor", None))
    weights = p.packed if packed else p.b

    def rows(a):
        return jax.vmap(lambda row: jquant.matmul_integer(row[None], weights, p.a_zero_point)[0])(a)

    assert_equal(rows(p.a), p.expected)
    program = jax.jit(rows).lower(p.a).as_text()
    assert "20x1x64" in re.findall(r"stablehlo.dot_general .*\(tensor<(\S+)xi8>, ", program)


def test_python_zero_points():
    a, b = jnp.ones((2, 3), jnp.uint8), jnp.ones((3, 4), jnp.int8)
    assert jquant.matmul_integer(a, b, 255, -128).tolist() == [[3 * (1 - 255) * (1 + 128)] * 4] * 2
    with pytest.raises(DescriptorError, match="a_zero_point is 256, outside the range of UINT8"):
        jquant.matmul_integer(a, b, 256)
    with pytest.raises(DescriptorError, match="b_zero_point is 128, outside the range of INT8"):
        jquant.matmul_integer(a, b, None, 128)


def test_names_of_implementations():
    assert [str(name) for name in jquant.Implementation] == ["xla", "native", "mosaic_tpu", "mosaic_gpu"]
    a = jnp.ones((2, 2), jnp.int8)
    for name in ("xla", jquant.Implementation.XLA):
        assert_equal(jquant.matmul_integer(a, a, implementation=name), np.full((2, 2), 2, np.int32))


@pytest.mark.parametrize(("name", "home"), [("mosaic_tpu", "tpu"), ("mosaic_gpu", "cuda")])
def test_a_kernel_on_another_platform(name, home):
    a = jnp.ones((2, 2), jnp.int8)
    with pytest.raises(NotImplementedError, match=f"implementation {name} is for {home}; this program is for cpu"):
        jquant.matmul_integer(a, a, implementation=name)


def test_unknown_implementation():
    a, b = jnp.ones((2, 3), u8), jnp.ones((3, 4), i8)
    with pytest.raises(
        ValueError, match=r"^unknown implementation 'tpu'; choose one of xla, native, mosaic_tpu, mosaic_gpu$"
    ):
        jquant.matmul_integer(a, b, implementation="tpu")


class TestSizes:
    def outcome(self, a, b, a_zero_point=None, b_zero_point=None, level="6_4"):
        tensors = {"ATensor": of(*a), "BTensor": of(*b)}
        tensors["AZeroPointTensor"] = None if a_zero_point is None else of(*a_zero_point)
        tensors["BZeroPointTensor"] = None if b_zero_point is None else of(*b_zero_point)
        return outcome("matmul_integer", level, tensors)

    @pytest.mark.parametrize(
        ("a", "b", "output"),
        [
            ((2, 3), (3, 4), (2, 4)),
            ((5, 2, 3), (5, 3, 4), (5, 2, 4)),
            ((1, 2, 3), (5, 3, 4), (5, 2, 4)),
            ((5, 2, 3), (1, 3, 4), (5, 2, 4)),
            ((5, 6, 2, 3), (5, 6, 3, 4), (5, 6, 2, 4)),
            ((5, 1, 2, 3), (1, 6, 3, 4), (5, 6, 2, 4)),
            ((1, 6, 2, 3), (5, 1, 3, 4), (5, 6, 2, 4)),
            ((2, 0), (0, 4), (2, 4)),
            ((0, 3), (3, 4), (0, 4)),
            ((1, 2, 3), (0, 3, 4), (0, 2, 4)),
        ],
        ids=str,
    )
    def test_accepted(self, a, b, output):
        assert self.outcome(a, b) == (output, jnp.int32)

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            ((2, 3), (4, 3), "b has shape (4, 3); dimension 0 must be 3: K is 3 in a"),
            ((2, 1), (3, 4), "b has shape (3, 4); dimension 0 must be 1: K is 1 in a"),
            ((2, 3), (1, 4), "b has shape (1, 4); dimension 0 must be 3: K is 3 in a"),
            ((5, 2, 3), (5, 4, 4), "b has shape (5, 4, 4); dimension 1 must be 3: K is 3 in a"),
            ((5, 6, 2, 3), (5, 6, 4, 4), "b has shape (5, 6, 4, 4); dimension 2 must be 3: K is 3 in a"),
        ],
        ids=str,
    )
    def test_rejected(self, a, b, text):
        for level in ("6_4", "EXTENDED"):
            assert self.outcome(a, b, level=level) == (
                DescriptorError,
                told("matmul_integer", *text.split(" ", 1), "BTensor"),
            )

    @pytest.mark.parametrize(
        ("a", "b", "output", "remedy"),
        [
            ((2, 3), (5, 3, 4), (5, 2, 4), "a to (1, 2, 3)"),
            ((5, 2, 3), (3, 4), (5, 2, 4), "b to (1, 3, 4)"),
            ((1, 5, 2, 3), (5, 3, 4), (1, 5, 2, 4), "b to (1, 5, 3, 4)"),
            ((6, 5, 2, 3), (3, 4), (6, 5, 2, 4), "b to (1, 1, 3, 4)"),
        ],
        ids=str,
    )
    def test_ranks_align_at_jquants_own_level(self, a, b, output, remedy):
        text = f"has shape {a}, b has {b}: the dimension counts must be the same; reshape {remedy}, or use"
        text = f"{text} FeatureLevel.EXTENDED, which aligns ranks as NumPy does"
        expected = told("matmul_integer", "a", text, "ATensor", "BTensor")
        assert self.outcome(a, b) == (DescriptorError, expected)
        assert self.outcome(a, b, level="EXTENDED") == (output, jnp.int32)

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            ((5, 2, 3), (6, 3, 4), "b has shape (6, 3, 4); dimension 0 must be "),
            ((5, 6, 2, 3), (7, 6, 3, 4), "b has shape (7, 6, 3, 4); dimension 0 must be "),
            ((5, 6, 2, 3), (5, 7, 3, 4), "b has shape (5, 7, 3, 4); dimension 1 must be "),
            ((5, 6, 2, 3), (1, 7, 3, 4), "b has shape (1, 7, 3, 4); dimension 1 must be "),
            ((5, 2, 3), (0, 3, 4), "b has shape (0, 3, 4); dimension 0 must be "),
        ],
        ids=str,
    )
    def test_batches(self, a, b, text):
        error, message = self.outcome(a, b)
        assert error is DescriptorError
        assert message.startswith(f"matmul_integer: {text}")

    def test_batches_broadcast_from_the_first_level_on(self):
        assert self.outcome((5, 1, 2, 3), (1, 6, 3, 4), level="2_1") == ((5, 6, 2, 4), jnp.int32)

    @pytest.mark.parametrize("a", [(2, 3), (5, 2, 3), (5, 6, 2, 3)], ids=str)
    @pytest.mark.parametrize("sizes", [(), (1,), (2,), (1, 1), (2, 1), (1, 2, 1), (1, 1, 1, 1), (1, 1, 2, 1)], ids=str)
    def test_a_zero_point(self, a, sizes):
        """Per tensor or per row, whatever the rank of A; a vector is per row."""
        assert self.outcome(a, (*a[:-2], 3, 4), sizes) == ((*a[:-1], 4), jnp.int32)

    @pytest.mark.parametrize("b", [(3, 4), (5, 3, 4), (5, 6, 3, 4)], ids=str)
    @pytest.mark.parametrize("sizes", [(), (1,), (4,), (1, 1), (1, 4), (1, 1, 4), (1, 1, 1, 1), (1, 1, 1, 4)], ids=str)
    def test_b_zero_point(self, b, sizes):
        """Per tensor or per column, whatever the rank of B."""
        assert self.outcome((*b[:-2], 2, 3), b, None, sizes) == ((*b[:-2], 2, 4), jnp.int32)

    @pytest.mark.parametrize(
        ("sizes", "axis", "text"),
        [
            ((1, 2), 1, "must be 1: its shape must be (AZeroPointCount, 1)"),
            ((2, 2), 1, "must be 1: its shape must be (AZeroPointCount, 1)"),
            ((3,), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in a"),
            ((0,), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in a"),
            ((4, 1), 0, "must be 1 or 2: AZeroPointCount is 1 or M, which is 2 in a"),
            ((5, 2, 1), 0, "must be 1: its shape must be (1, AZeroPointCount, 1)"),  # batches come through vmap
            ((1, 1, 2), 2, "must be 1: its shape must be (1, AZeroPointCount, 1)"),
            ((5, 1, 2, 1), 0, "must be 1: its shape must be (1, 1, AZeroPointCount, 1)"),
            ((1, 6, 2, 1), 1, "must be 1: its shape must be (1, 1, AZeroPointCount, 1)"),
            ((1, 1, 1, 2), 3, "must be 1: its shape must be (1, 1, AZeroPointCount, 1)"),
        ],
        ids=str,
    )
    def test_wrong_a_zero_point(self, sizes, axis, text):
        text = f"has shape {sizes}; dimension {axis} {text}"
        expected = told("matmul_integer", "a_zero_point", text, "AZeroPointTensor")
        assert self.outcome((5, 6, 2, 3), (5, 6, 3, 4), sizes) == (DescriptorError, expected)

    @pytest.mark.parametrize(
        ("sizes", "axis", "text"),
        [
            ((4, 1), 0, "must be 1: its shape must be (1, BZeroPointCount)"),
            ((4, 4), 0, "must be 1: its shape must be (1, BZeroPointCount)"),
            ((3,), 0, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in b"),
            ((2,), 0, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in b"),
            ((1, 3), 1, "must be 1 or 4: BZeroPointCount is 1 or N, which is 4 in b"),
            ((5, 1, 4), 0, "must be 1: its shape must be (1, 1, BZeroPointCount)"),
            ((1, 4, 1), 1, "must be 1: its shape must be (1, 1, BZeroPointCount)"),
            ((5, 1, 1, 4), 0, "must be 1: its shape must be (1, 1, 1, BZeroPointCount)"),
            ((1, 6, 1, 4), 1, "must be 1: its shape must be (1, 1, 1, BZeroPointCount)"),
            ((1, 1, 4, 1), 2, "must be 1: its shape must be (1, 1, 1, BZeroPointCount)"),
        ],
        ids=str,
    )
    def test_wrong_b_zero_point(self, sizes, axis, text):
        text = f"has shape {sizes}; dimension {axis} {text}"
        expected = told("matmul_integer", "b_zero_point", text, "BZeroPointTensor")
        assert self.outcome((5, 6, 2, 3), (5, 6, 3, 4), None, sizes) == (DescriptorError, expected)

    @pytest.mark.parametrize("level", ["4_0", "5_1"])
    def test_b_zero_point_before_5_2(self, level):
        text = f"has rank 1 (shape (4,)); DML_FEATURE_LEVEL_{level} allows 2 to 4"
        text = f"{text}; 1 is allowed from DML_FEATURE_LEVEL_5_2 on; reshape it to (1, -1)"
        expected = told("matmul_integer", "b_zero_point", text, "BZeroPointTensor")
        assert self.outcome((2, 3), (3, 4), None, (4,), level=level) == (DescriptorError, expected)
        assert self.outcome((2, 3), (3, 4), None, (1, 4), level=level) == ((2, 4), jnp.int32)
        assert self.outcome((2, 3), (3, 4), None, (4,), level="5_2") == ((2, 4), jnp.int32)
        assert self.outcome((2, 3), (3, 4), (2,), None, level=level) == (
            (2, 4),
            jnp.int32,
        )  # A always took vectors

    def test_counts_follow_the_matrix(self):
        """AZeroPointCount is M, not K or N; BZeroPointCount is N."""
        assert self.outcome((7, 3), (3, 4), (7,), (4,)) == ((7, 4), jnp.int32)
        assert self.outcome((7, 3), (3, 4), (3,))[0] is DescriptorError
        assert self.outcome((7, 3), (3, 4), None, (7,))[0] is DescriptorError
