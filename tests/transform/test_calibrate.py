"""`jquant.transform.calibrate`: the ranges that NumPy finds, each value observed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_declined
from support.networks import SCHEMES, Draw, Float, Ranges, recipe
from support.sampling import one_in

import jquant
from jquant import calibration, transform
from jquant.transform import TransformTypeError

DRAW = Draw(0, exact=True)  # sums of floats are exact
STATIC = recipe(transform.Scheme())
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
BATCHES = [DRAW.input(count, 16) for count in (7, 3, 7, 1)]


def everything(ops, p, x):
    """Layers of layers, a recurrence, shared inputs, a loop of unknown length."""

    def layer(x, w):
        return ops.tame(ops.relu(ops.product("bd,dn->bn", x, w, at="layers"))), ()

    def block(x, w):
        return ops.layers(lambda x, w: ops.call("checkpoint", layer, x, w), x, w)[0], ()

    q, k = (ops.product("bd,dn->bn", x, p[name], at="q") for name in "qk")
    x, _ = ops.layers(block, ops.tame(ops.add(q, k)), p["layers"])
    x = ops.repeat(3, lambda x: ops.tame(ops.product("bd,dn->bn", x, p["again"], at="again")), x, kind="while")
    x = ops.repeat(2, lambda x: ops.tame(ops.product("bd,dn->bn", x, p["again"], at="again#2")), x)
    return ops.product("bd,dn->bn", x, p["out"], at="out")


EVERYTHING = {
    **{name: DRAW.weights(16, 16) for name in ("q", "k", "again", "out")},
    "layers": DRAW.weights(2, 3, 16, 16, layers=2),
}


def float_form(function):
    return lambda params, x: function(Float(exact=True), params, x)


class FloatRanges(Ranges):
    """Of the function as it is, in float."""

    def _integer_product(self, letters, quantized, w, w_scale, dtype):
        raise NotImplementedError

    def product(self, letters, x, w, *, at, left=False, depth=None, dtype=None):
        self._observe(x, at, self._layer[:depth])
        return self._float_product(letters, x, w, x.dtype)


def assert_ranges(actual, expected):
    assert set(actual) == set(expected)
    for name, wanted in expected.items():
        for bound, wanted_bound in zip(actual[name], wanted, strict=True):
            np.testing.assert_array_equal(bound, wanted_bound, name, strict=True)


def test_ranges():
    """Of every layer, whatever the sizes of the batches; what three products read is observed once."""
    ranges = transform.calibrate(float_form(everything), EVERYTHING, BATCHES, STATIC)
    oracle = FloatRanges(exact=True)
    for batch in BATCHES:
        everything(oracle, EVERYTHING, batch)
    assert ranges["layers"].min.shape == (2, 3)
    assert_ranges(ranges, oracle.observed())


def test_one_batch_after_the_other():
    """A generator of tuples, read once."""
    calls = []
    ranges = transform.calibrate(
        lambda params, x, y: x @ params + y, W, ((calls.append(batch.shape), (batch, batch))[1] for batch in BATCHES), STATIC
    )
    assert len(calls) == len(BATCHES)
    (only,) = ranges.values()
    np.testing.assert_array_equal(only, (min(map(np.min, BATCHES)), max(map(np.max, BATCHES))))


OBSERVERS = {
    "percentile": (("percentile", 90), calibration.percentile(90)),
    "moving average": (("moving_average", 0.25), calibration.moving_average(0.25)),
}


@one_in(2, "name", OBSERVERS, first=1)
def test_observers(name):
    """Layer by layer as the observer does alone; three products with one input are one observation."""
    scheme, observer = OBSERVERS[name]

    def apply(params, x):
        x = x @ params["a"] + x @ params["b"] + x @ params["c"]
        return lax.scan(lambda x, w: (jnp.clip(jnp.round(x @ w * 2**-8), -7, 7), None), x, params["layers"])[0]

    params = {"a": W, "b": OTHER, "c": W.T, "layers": DRAW.weights(3, 16, 16, layers=1)}
    ranges = transform.calibrate(apply, params, BATCHES, recipe(transform.Scheme(observer=scheme)))
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
    def own(params, x):
        """Each branch makes an input of its own."""
        return lax.cond(x.max() > 0, lambda: (x + 1) @ params["yes"], lambda: (x - 1) @ params["no"])

    @staticmethod
    def shared(params, x):
        """Both read the same."""
        return lax.cond(x.max() > 0, lambda: x @ params["yes"], lambda: x @ params["no"])

    @pytest.mark.parametrize(("sign", "missed"), [(1, "no"), (-1, "yes")])
    def test_one_that_is_never_taken(self, sign, missed):
        batches = [sign * np.arange(1, 17, dtype=np.float32).reshape(1, 16)]
        call = lambda: transform.calibrate(self.own, BRANCHES, batches, STATIC)  # noqa: E731
        assert_declined(call, f"no batch reached {missed}: is it in a branch that was never taken?")

    def test_both_taken(self):
        positive = np.arange(1, 17, dtype=np.float32).reshape(1, 16)
        ranges = transform.calibrate(self.own, BRANCHES, [positive, -positive], STATIC)
        for name, low, high in (("yes", 2, 17), ("no", -17, -2)):
            np.testing.assert_array_equal(ranges[name], (low, high))

    @pytest.mark.parametrize("signs", [(1, -1), (1,), (-1,)])
    def test_a_shared_input(self, signs):
        """It is observed in whichever branch is taken."""
        batches = [sign * np.arange(1, 17, dtype=np.float32).reshape(1, 16) for sign in signs]
        ((_, found),) = transform.calibrate(self.shared, BRANCHES, batches, STATIC).items()
        np.testing.assert_array_equal(found, (min(map(np.min, batches)), max(map(np.max, batches))))


def test_a_loop_that_is_not_entered():
    apply = lambda params, x: lax.while_loop(lambda x: x.sum() < 0, lambda x: x @ params["w"], x)  # noqa: E731
    call = lambda: transform.calibrate(apply, {"w": W}, [np.ones((1, 16), np.float32)], STATIC)  # noqa: E731
    assert_declined(call, "no batch reached w")


def test_not_a_number():
    """Observers pass over it; a range of nothing but NaN is one of zeros, and one with NaN is refused."""
    x = BATCHES[0].copy()
    x[0, 0] = np.nan
    ((_, found),) = transform.calibrate(lambda params, x: x @ params, W, [x], STATIC).items()
    np.testing.assert_array_equal(found, (np.nanmin(x), np.nanmax(x)))


def test_refusals():
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


def test_labels_are_no_input():
    with pytest.raises(TypeError) as caught:
        transform.calibrate(lambda params, x: x @ params["w"], {"w": W}, [(BATCHES[0], np.zeros(7))], STATIC)
    assert caught.value.__notes__ == [
        "transform.calibrate calls apply with params and 2 inputs. These are the inputs alone, without labels."
    ]
    with pytest.raises(TypeError) as caught:
        transform.calibrate(lambda params, x: abs("a string"), {"w": W}, BATCHES, STATIC)
    assert not hasattr(caught.value, "__notes__")


def test_the_ranges_are_those_of_the_quantized_function():
    """Calibrated, quantized and by hand: one site, whose scale is that of the extremes."""
    ranges = transform.calibrate(lambda params, x: x @ params["w"], {"w": W}, BATCHES, STATIC)
    _, quantized_params = transform.quantize(
        lambda params, x: x @ params["w"], {"w": W}, STATIC, BATCHES[0], calibration=ranges
    )
    expected = jquant.scale_and_zero_point(min(map(np.min, BATCHES)), max(map(np.max, BATCHES)), "UINT8")
    np.testing.assert_array_equal(quantized_params["inputs"]["w"], expected)
