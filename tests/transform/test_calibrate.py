"""`transform.calibrate`: the ranges are those that NumPy finds, and each value is observed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_declined
from support.compositions import RangeObserver
from support.draw import Draw
from support.networks import SCHEMES, Float, recipe
from support.sampling import one_in

import jquant
from jquant import calibration, transform
from jquant.transform import TransformTypeError

DRAW = Draw(0, exact=True)  # sums of floats are exact
STATIC = recipe(transform.Scheme(activations="STATIC"))
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
BATCHES = [DRAW.input(count, 16) for count in (7, 3, 7, 1)]


def everything(ops, p, x):
    """Nested layers, a recurrence, shared inputs, a loop of unknown length."""

    def layer(x, w):
        return ops.shrink(ops.relu(ops.product("bd,dn->bn", x, w, site="layers"))), ()

    def block(x, w):
        return ops.layers(lambda x, w: ops.call("checkpoint", layer, x, w), x, w)[0], ()

    q, k = (ops.product("bd,dn->bn", x, p[name], site="q") for name in "qk")
    x, _ = ops.layers(block, ops.shrink(ops.add(q, k)), p["layers"])
    x = ops.repeat(3, lambda x: ops.shrink(ops.product("bd,dn->bn", x, p["again"], site="again")), x, loop="while")
    x = ops.repeat(2, lambda x: ops.shrink(ops.product("bd,dn->bn", x, p["again"], site="again#2")), x)
    return ops.product("bd,dn->bn", x, p["out"], site="out")


EVERYTHING = {
    **{name: DRAW.weights(16, 16) for name in ("q", "k", "again", "out")},
    "layers": DRAW.weights(2, 3, 16, 16, layers=2),
}


class FloatRangeObserver(RangeObserver):
    """Observes the inputs of the float function."""

    def _integer_product(self, letters, quantized, w, w_scale, dtype):
        raise NotImplementedError

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        self._observe(x, site, self._layer[:depth])
        return self._float_product(letters, x, w, x.dtype)


def assert_ranges(actual, expected):
    assert set(actual) == set(expected)
    for name, expected_range in expected.items():
        for actual_bound, expected_bound in zip(actual[name], expected_range, strict=True):
            np.testing.assert_array_equal(actual_bound, expected_bound, name, strict=True)


def test_ranges():
    """The range of every layer, for batches of different sizes. A shared input is observed once."""
    apply = lambda params, x: everything(Float(exact=True), params, x)  # noqa: E731
    ranges = transform.calibrate(apply, EVERYTHING, BATCHES, STATIC)
    observer = FloatRangeObserver(exact=True)
    for batch in BATCHES:
        everything(observer, EVERYTHING, batch)
    assert ranges["layers"].min.shape == (2, 3)
    assert_ranges(ranges, observer.calibration())


def test_one_batch_after_the_other():
    """A generator of tuples, which is read once."""
    reads = []

    def batches():
        for batch in BATCHES:
            reads.append(batch.shape)
            yield batch, batch

    (range,) = transform.calibrate(lambda params, x, y: x @ params + y, W, batches(), STATIC).values()
    assert len(reads) == len(BATCHES)
    np.testing.assert_array_equal(range, (min(map(np.min, BATCHES)), max(map(np.max, BATCHES))))


OBSERVERS = {
    "percentile": (("percentile", 90), calibration.percentile(90)),
    "moving average": (("moving_average", 0.25), calibration.moving_average(0.25)),
}


@one_in(2, "name", OBSERVERS, first=1)
def test_observers(name):
    """Each layer has the range of the observer by itself. An input of three products is observed once."""
    scheme, observer = OBSERVERS[name]

    def apply(params, x):
        x = x @ params["a"] + x @ params["b"] + x @ params["c"]
        return lax.scan(lambda x, w: (jnp.clip(jnp.round(x @ w * 2**-8), -7, 7), None), x, params["layers"])[0]

    params = {"a": W, "b": OTHER, "c": W.T, "layers": DRAW.weights(3, 16, 16, layers=1)}
    ranges = transform.calibrate(apply, params, BATCHES, recipe(transform.Scheme(activations="STATIC", observer=scheme)))
    states = [observer.init() for _ in range(4)]
    for x in BATCHES:
        states[0] = observer.update(states[0], x)
        x = x @ W + x @ OTHER + x @ W.T
        for layer in range(3):
            states[layer + 1] = observer.update(states[layer + 1], x)
            x = np.clip(np.rint(x @ params["layers"][layer] * np.float32(2**-8)), -7, 7)
    first, *layers = map(observer.compute_range, states)
    assert_ranges(ranges, {"a": first, "layers": jax.tree.map(lambda *bounds: np.stack(bounds), *layers)})


BRANCHES = {"no": W, "yes": OTHER}


class TestBranches:
    @staticmethod
    def separate(params, x):
        """Each branch computes the input of its site."""
        return lax.cond(x.max() > 0, lambda: (x + 1) @ params["yes"], lambda: (x - 1) @ params["no"])

    @staticmethod
    def shared(params, x):
        """Both sites read the same input."""
        return lax.cond(x.max() > 0, lambda: x @ params["yes"], lambda: x @ params["no"])

    @pytest.mark.parametrize(("sign", "missed"), [(1, "no"), (-1, "yes")])
    def test_a_branch_that_is_never_taken(self, sign, missed):
        batches = [sign * np.arange(1, 17, dtype=np.float32).reshape(1, 16)]
        call = lambda: transform.calibrate(self.separate, BRANCHES, batches, STATIC)  # noqa: E731
        assert_declined(call, f"no batch reached {missed}: is it in a branch that was never taken?")

    def test_both_taken(self):
        positive = np.arange(1, 17, dtype=np.float32).reshape(1, 16)
        ranges = transform.calibrate(self.separate, BRANCHES, [positive, -positive], STATIC)
        for name, low, high in (("yes", 2, 17), ("no", -17, -2)):
            np.testing.assert_array_equal(ranges[name], (low, high))

    @pytest.mark.parametrize("signs", [(1, -1), (1,), (-1,)])
    def test_a_shared_input(self, signs):
        """It is observed in whichever branch is taken."""
        batches = [sign * np.arange(1, 17, dtype=np.float32).reshape(1, 16) for sign in signs]
        (range,) = transform.calibrate(self.shared, BRANCHES, batches, STATIC).values()
        np.testing.assert_array_equal(range, (min(map(np.min, batches)), max(map(np.max, batches))))


def test_a_loop_that_is_not_entered():
    apply = lambda params, x: lax.while_loop(lambda x: x.sum() < 0, lambda x: x @ params["w"], x)  # noqa: E731
    call = lambda: transform.calibrate(apply, {"w": W}, [np.ones((1, 16), np.float32)], STATIC)  # noqa: E731
    assert_declined(call, "no batch reached w")


def test_not_a_number():
    """Observers ignore it."""
    x = BATCHES[0].copy()
    x[0, 0] = np.nan
    (range,) = transform.calibrate(lambda params, x: x @ params, W, [x], STATIC).values()
    np.testing.assert_array_equal(range, (np.nanmin(x), np.nanmax(x)))


def test_errors():
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    params, dynamic = {"w": W}, recipe(SCHEMES["dynamic uint8"])
    assert_declined(lambda: transform.calibrate(apply, params, [], STATIC), "batches is empty")
    assert_declined(lambda: transform.calibrate(apply, params, BATCHES, dynamic), "the recipe has no static inputs")
    assert_declined(lambda: transform.calibrate(apply, params, 3, STATIC), "it must be an iterable", TransformTypeError)
    assert_declined(
        lambda: transform.calibrate(apply, params, BATCHES[0], STATIC),
        f"batches is an array, float32[{','.join(map(str, BATCHES[0].shape))}], whose rows would be the batches: pass [x]",
        TransformTypeError,
    )
    assert_declined(lambda: transform.calibrate(lambda p, x: x + p["w"][:1], params, BATCHES, STATIC), "apply has no site")
    branching = lambda p, x: x @ p["w"] if x.shape[0] > 3 else (x @ p["w"]) @ p["w"]  # noqa: E731
    assert_declined(
        lambda: transform.calibrate(branching, params, BATCHES, STATIC), "a batch has different sites from the first: w#2"
    )


NOTE = (
    "A batch has the shapes that apply takes, with the batch dimension, and no labels; several inputs are a tuple, "
    "not a list."
)
BATCHES_WITH_NOTES = {  # the last batch, and what the note says of it
    "labels": ((BATCHES[0], np.zeros(7, np.float32)), "float32[7,16], float32[7]"),
    "a list": ([BATCHES[0], np.zeros(7, np.int32)], "[float32[7,16], int32[7]]"),
    "one example": (BATCHES[0][0, :8], "float32[8]"),
}


@pytest.mark.parametrize("name", BATCHES_WITH_NOTES)
def test_errors_of_apply_have_a_note(name):
    """It says what `apply` was called with, and for which batch."""
    batch, types = BATCHES_WITH_NOTES[name]
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    with pytest.raises(TypeError) as caught:
        transform.calibrate(apply, {"w": W}, [BATCHES[0], BATCHES[2], batch], STATIC)
    assert caught.value.__notes__[-1] == f"transform.calibrate called apply(params, {types}), for batch 2. {NOTE}"


LAYERS = {"w": W, "layers": np.stack([W, OTHER])}


def through_layers(params, x):
    """The last product reads NaN, if `x` has a number above 100."""
    x = lax.scan(lambda x, w: (x @ w, None), x @ params["w"], params["layers"])[0]
    return jnp.where(x.max() > 100, jnp.nan, x) @ params["w"]


GPTQ = recipe(transform.Scheme(weight_rounding="GPTQ"))
PERCENTILE = recipe(transform.Scheme(activations="STATIC", observer=("percentile", 99)))
NAN, ZEROS = np.full((2, 16), np.nan, np.float32), np.zeros((2, 16), np.float32)


class TestWhatWasSeen:
    """Of numbers that are not finite, and of zeros alone, nothing is learned; a state without numbers is told from zeros."""

    @pytest.mark.parametrize(
        ("scheme", "batches"),
        [(STATIC, [NAN, NAN]), (PERCENTILE, [np.inf + ZEROS])],
        ids=["NaN", "infinities"],
    )
    def test_no_finite_number(self, scheme, batches):
        message = (
            "transform.calibrate: no finite number reached w, layers[0], layers[1], w#2: are there only NaN or infinities"
        )
        assert_declined(lambda: transform.calibrate(through_layers, LAYERS, batches, scheme), message)

    def test_no_rows(self):
        call = lambda: transform.calibrate(lambda w, x: x @ w, W, [ZEROS[:0]], STATIC)  # noqa: E731
        assert_declined(
            call, "no finite number reached matmul: are there only NaN or infinities in the batches, or no rows?"
        )

    def test_at_some_sites(self):
        """Those that come after the function has computed NaN."""
        call = lambda: transform.calibrate(through_layers, LAYERS, [np.full((1, 16), 50, np.float32)], STATIC)  # noqa: E731
        assert_declined(call, "no finite number reached w#2: ")

    def test_one_finite_number(self):
        """Is enough, in any batch; a zero as well, with a warning."""
        x = NAN.copy()
        x[0, 0] = 0.5
        (range,) = transform.calibrate(lambda w, x: x @ w, W, [NAN, x], STATIC).values()
        np.testing.assert_array_equal(range, (0.5, 0.5))
        x[0, 0] = 0
        with pytest.warns(UserWarning, match="nothing but zeros reached matmul"):
            transform.calibrate(lambda w, x: x @ w, W, [NAN, x], STATIC)

    @pytest.mark.parametrize(
        ("scheme", "sequential"),
        [(STATIC, False), (PERCENTILE, False), (GPTQ, False), (GPTQ, True)],
        ids=["extremes", "histogram", "sums", "sequential sums"],
    )
    def test_only_zeros(self, scheme, sequential):
        """One warning for all sites, at the line of the caller."""
        with pytest.warns(UserWarning, match="nothing but zeros") as record:
            calibration = transform.calibrate(through_layers, LAYERS, [ZEROS] * 2, scheme, sequential=sequential)
        (warning,) = record
        assert str(warning.message) == (
            "transform.calibrate: nothing but zeros reached w, layers[0], layers[1], w#2: "
            "are these inputs like those of the quantized function? A range of [0, 0] has the scale 1"
        )
        assert warning.filename == __file__
        transform.quantize(through_layers, LAYERS, scheme, ZEROS, calibration=calibration)

    def test_zeros_in_one_layer(self):
        """The second of two."""
        params = {"w": W, "layers": np.stack([0 * W, W])}
        apply = lambda params, x: lax.scan(lambda x, w: (x @ w, None), x, params["layers"])[0]  # noqa: E731
        with pytest.warns(UserWarning, match=r"nothing but zeros reached layers\[1\]: "):
            transform.calibrate(apply, params, BATCHES, STATIC)

    def test_an_expert_without_rows(self):
        """Neither raises nor warns: the stack has one range, and common statistics."""
        experts, x, sizes = np.stack([W, OTHER, W]), BATCHES[0], np.int32([4, 0, 3])
        for scheme in (STATIC, GPTQ):
            transform.calibrate(lambda w, x, sizes: lax.ragged_dot(x, w, sizes), experts, [(x, sizes)], scheme)


def test_scales_of_the_quantized_function():
    """They are those of the extremes of all batches."""
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    ranges = transform.calibrate(apply, {"w": W}, BATCHES, STATIC)
    _, quantized_params = transform.quantize(apply, {"w": W}, STATIC, BATCHES[0], calibration=ranges)
    expected = jquant.scale_and_zero_point(min(map(np.min, BATCHES)), max(map(np.max, BATCHES)), "UINT8")
    np.testing.assert_array_equal(quantized_params["inputs"]["w"], expected)
