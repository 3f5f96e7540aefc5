"""`quantize` compared with TensorFlow's QuantizeV2, bit for bit, and each deviation in a test of its own."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.cases import samples

from . import raw_ops
from .raw_ops import TYPES, plain, tensorflow

MODES = [
    ("MIN_COMBINED", "HALF_AWAY_FROM_ZERO", False),
    ("MIN_COMBINED", "HALF_AWAY_FROM_ZERO", True),
    ("MIN_FIRST", "HALF_AWAY_FROM_ZERO", False),
    ("MIN_FIRST", "HALF_AWAY_FROM_ZERO", True),
    *(("SCALED", *rest) for rest in itertools.product(("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"), (False, True))),
]
MODES_PER_AXIS = [mode for mode in MODES if mode[0] != "MIN_FIRST"]
ranges = functools.partial(raw_ops.ranges, others=[(1e-30, 1e-25), (-1e30, 2e30), (-1e-20, 0)])
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def tensorflow_quantize(x, low, high, dtype, *, axis=None, **attributes):
    """TensorFlow's output as plain integers, and its range."""
    output, output_min, output_max = tensorflow.raw_ops.QuantizeV2(
        input=x,
        min_range=low,
        max_range=high,
        T=getattr(tensorflow, dtype),
        axis=-1 if axis is None else axis,
        **attributes,
    )
    return plain(output), output_min.numpy(), output_max.numpy()


def inputs(rng: np.random.Generator, low: float, high: float, dtype: str, count: int) -> np.ndarray:
    """Values in and around the range, half of which are ties of its steps or next to one."""
    bits = np.iinfo(TYPES[dtype]).bits
    width = float(max(high, 0)) - float(min(low, 0)) or 1.0
    step = width / (2.0**bits - 1)
    ties = min(low, 0) + samples.near_ties(rng, count // 2, step, 0, 2**bits).astype(np.float64)
    around = rng.uniform(min(low, 0) - 0.1 * width, max(high, 0) + 0.1 * width, count - count // 2)
    x = np.concatenate([ties, around]).astype(np.float32)
    x[-6:] = [np.inf, -np.inf, 0, -0.0, low, high]
    return samples.without_subnormals(rng.permutation(x))


def compare(x, low, high, dtype, **attributes) -> int:
    """Asserts equality except for the deviations, which are tested below; returns the number of elements compared."""
    theirs, their_min, their_max = tensorflow_quantize(x, low, high, dtype, **attributes)
    ours, our_min, our_max = map(np.asarray, jquant.quantize(x, jnp.asarray(low), jnp.asarray(high), dtype, **attributes))
    np.testing.assert_array_equal(our_min.ravel(), their_min.ravel())
    np.testing.assert_array_equal(our_max.ravel(), their_max.ravel())
    deviates = np.zeros(x.shape, bool)
    degenerate = our_min == our_max
    if attributes["mode"] == "MIN_COMBINED":
        deviates |= degenerate if np.ndim(low) == 0 else np.broadcast_to(np.expand_dims(degenerate, 1), x.shape)
    if attributes["mode"] == "MIN_FIRST" and degenerate.any():
        deviates |= np.isinf(x)  # infinity * 0 is a NaN
    if dtype == "qint32":
        deviates |= (theirs == INT32_MIN) & (ours == INT32_MAX)
        assert attributes["mode"] != "MIN_FIRST" or not (ours == INT32_MAX).any()
    np.testing.assert_array_equal(ours[~deviates], theirs[~deviates])
    return np.count_nonzero(~deviates)


@pytest.mark.parametrize("dtype", ["quint8", "quint16"])
@pytest.mark.parametrize(("low", "high"), [(-3.0, -1.0), (-1e-20, 0.0), (-1e30, -1e29)])
def test_subnormal_bounds(dtype, low, high):
    """A bound that would be subnormal is 0 for traced ranges, and for constant ones, whose subnormals XLA does not flush."""
    x = np.float32([low, 0, 1])
    attributes = {"mode": "SCALED", "narrow_range": True, "ensure_minimum_range": 0.0}
    theirs, *their_range = tensorflow_quantize(x, low, high, dtype, **attributes)
    constant = jax.jit(lambda x: jquant.quantize(x, low, high, dtype, **attributes))(x)
    traced = jax.jit(lambda x, low, high: jquant.quantize(x, low, high, dtype, **attributes))(x, low, high)
    for output, *range_ in (constant, traced):
        np.testing.assert_array_equal(output, theirs)
        np.testing.assert_array_equal(range_, their_range)
        assert range_[0] == 0


@one_in(3, ("dtype", "modes"), itertools.product(TYPES, MODES))
def test_per_tensor(dtype, modes, full):
    mode, round_mode, narrow_range = modes
    rng = np.random.default_rng(0)
    compared = 0
    for low, high in ranges(rng, 120 if full else 22):
        for ensure_minimum_range in (0.01, 0.0, 1.5, -1.0):
            x = inputs(rng, low, high, dtype, 5000 if full else 800)
            attributes = {"mode": mode, "round_mode": round_mode, "narrow_range": narrow_range}
            compared += compare(x, low, high, dtype, ensure_minimum_range=ensure_minimum_range, **attributes)
    assert compared > 120_000


@one_in(7, ("dtype", "modes", "axis"), itertools.product(TYPES, MODES_PER_AXIS, (0, 1, 2)), others="full")
def test_per_axis(dtype, modes, axis, full):
    mode, round_mode, narrow_range = modes
    rng = np.random.default_rng(1)
    low, high = ranges(rng, 100 if full else 6).T
    x = np.stack([inputs(rng, *bounds, dtype, 600 if full else 200) for bounds in zip(low, high, strict=True)])
    x = np.moveaxis(x.reshape(len(low), 10, -1), 0, axis)
    attributes = {"mode": mode, "round_mode": round_mode, "narrow_range": narrow_range, "axis": axis}
    theirs = tensorflow_quantize(x, low, high, dtype, **attributes)
    ours = list(map(np.asarray, jquant.quantize(x, jnp.asarray(low), jnp.asarray(high), dtype, **attributes)))
    if dtype == "qint32":
        wrapped = (theirs[0] == INT32_MIN) & (ours[0] == INT32_MAX)
        ours[0] = np.where(wrapped, INT32_MIN, ours[0])
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their)


def test_every_short_shape():
    """Ranks 0 to 8, and empty arrays."""
    for rank in range(9):
        for size in (0, 1, 2):
            shape = (size,) * rank
            x = np.linspace(-1, 7, int(np.prod(shape)), dtype=np.float32).reshape(shape)
            theirs = tensorflow_quantize(x, np.float32(0), np.float32(6), "quint8")
            ours = jquant.quantize(x, 0, 6, "quint8")
            for our, their in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(our, their)
                assert our.shape == their.shape


@pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
@pytest.mark.parametrize(("low", "high"), [(np.nan, 6), (-6, np.nan), (np.nan, np.nan)])
def test_nan_in_the_range(low, high, mode):
    low, high = np.float32(low), np.float32(high)
    x = np.linspace(-7, 7, 101, dtype=np.float32)
    for ensure_minimum_range in (0.01, 0.0):
        compare(x, low, high, "qint8", mode=mode, ensure_minimum_range=ensure_minimum_range)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("max_range", {"min_range": 1.0, "max_range": 0.0}),
        ("HALF_TO_EVEN", {"round_mode": "HALF_TO_EVEN"}),
        ("unknown mode", {"mode": "MIN_LAST"}),
        ("round_mode is HALF_UP", {"mode": "SCALED", "round_mode": "HALF_UP"}),
        ("axis is 2", {"axis": 2, "min_range": [0.0, 0], "max_range": [1.0, 1]}),
        ("axis is -2", {"axis": -2, "min_range": [0.0, 0], "max_range": [1.0, 1]}),
        ("min_range has shape", {"min_range": [0.0, 0]}),
        ("max_range has shape", {"max_range": [0.0, 0]}),
        ("min_range has shape", {"axis": 1}),
        ("MIN_FIRST", {"mode": "MIN_FIRST", "axis": 1, "min_range": [0.0, 0], "max_range": [1.0, 1]}),
    ],
)
def test_errors_are_shared(message, arguments):
    arguments = {"min_range": 0.0, "max_range": 1.0} | arguments
    low, high = (np.float32(arguments.pop(name)) for name in ("min_range", "max_range"))
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(jquant.DescriptorError, match=message):
        jquant.quantize(x, low, high, "quint8", **arguments)
    errors = tensorflow.errors
    with pytest.raises((errors.InvalidArgumentError, errors.UnimplementedError, ValueError)):
        quantize_in_graph_mode(x, low, high, **{"axis": -1} | arguments)


def quantize_in_graph_mode(x, low, high, **attributes) -> None:
    """TensorFlow checks some attributes, such as axis < -1, only in graph mode."""
    with tensorflow.Graph().as_default() as graph, tensorflow.compat.v1.Session(graph=graph) as session:
        outputs = tensorflow.raw_ops.QuantizeV2(input=x, min_range=low, max_range=high, T=tensorflow.quint8, **attributes)
        session.run(outputs[1:])


class TestDeviations:
    """Where TensorFlow's result wraps, or depends on the position in the array: its value, and jquant's."""

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "SCALED"])
    def test_qint32_saturates(self, mode):
        x = np.float32([5.9, 6, 7, np.inf])
        theirs, *_ = tensorflow_quantize(x, np.float32(-6), np.float32(6), "qint32", mode=mode)
        ours, *_ = jquant.quantize(x, -6, 6, "qint32", mode=mode)
        np.testing.assert_array_equal(theirs[1:], INT32_MIN)
        np.testing.assert_array_equal(ours[1:], INT32_MAX)
        assert ours[0] == theirs[0]

    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_nan_is_0(self, dtype, mode):
        x = np.full(67, np.nan, np.float32)
        theirs, *_ = tensorflow_quantize(x, np.float32(-6), np.float32(6), dtype, mode=mode)
        ours, *_ = jquant.quantize(x, -6, 6, dtype, mode=mode)
        np.testing.assert_array_equal(ours, 0)
        if dtype in ("qint8", "qint16") and mode != "MIN_FIRST":
            assert set(theirs.tolist()) == {0, np.iinfo(TYPES[dtype]).min}  # it depends on the position
        else:
            np.testing.assert_array_equal(theirs, INT32_MIN if (dtype, mode) == ("qint32", "MIN_FIRST") else 0)

    def test_degenerate_range(self):
        """0 * infinity in MIN_COMBINED, and infinity * 0 in MIN_FIRST for infinite inputs."""
        x, zero = np.zeros(67, np.float32), np.float32(0)
        theirs, *_ = tensorflow_quantize(x, zero, zero, "qint8", mode="MIN_COMBINED", ensure_minimum_range=0.0)
        ours, *_ = jquant.quantize(x, 0, 0, "qint8", mode="MIN_COMBINED", ensure_minimum_range=0)
        assert set(theirs.tolist()) == {0, -128}
        np.testing.assert_array_equal(ours, 0)
        x = np.float32([np.inf, 0])
        theirs, *_ = tensorflow_quantize(x, zero, zero, "qint32", mode="MIN_FIRST", ensure_minimum_range=0.0)
        ours, *_ = jquant.quantize(x, 0, 0, "qint32", mode="MIN_FIRST", ensure_minimum_range=0)
        np.testing.assert_array_equal(theirs, [INT32_MIN, INT32_MIN])
        np.testing.assert_array_equal(ours, [0, INT32_MIN])

    def test_range_keeps_its_rank(self):
        x, bound = np.ones((2, 1), np.float32), np.float32([6])
        _, their_min, their_max = tensorflow_quantize(x, -bound, bound, "qint8", axis=1)
        _, our_min, our_max = jquant.quantize(x, -bound, bound, "qint8", axis=1)
        assert their_min.shape == their_max.shape == ()
        assert our_min.shape == our_max.shape == (1,)
        np.testing.assert_array_equal([our_min[0], our_max[0]], [their_min, their_max])
