"""What goes wrong with a transformation that finds its products by itself, and must not."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from support.comparison import assert_declined
from support.networks import SCHEMES, Draw, recipe
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range
from jquant.transform import Activations, TransformTypeError

DRAW = Draw(0)
W, OTHER, THIRD = (DRAW.weights(16, 16) for _ in range(3))
X = DRAW.input(7, 16)
RANGE = Range(np.float32(-2), np.float32(2))
DYNAMIC = recipe(SCHEMES["dynamic uint8"])
every_integer_scheme = one_in(3, "scheme", [name for name in SCHEMES if not name.startswith("weights")], others="full")


def two_products(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


TWO = {"a": W, "b": OTHER}


class TestDerivatives:
    """There are none: they would be silently wrong."""

    @every_integer_scheme
    def test_of_the_input(self, scheme):
        quantized_apply, quantized_params = transform.quantize(
            two_products, TWO, recipe(SCHEMES[scheme]), X, calibration={"a": RANGE, "b": RANGE}
        )
        for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f)), lambda f: lambda x: jax.linearize(f, x)):
            call = functools.partial(derivative(lambda x: quantized_apply(quantized_params, x).sum()), X)
            assert_declined(call, "the quantized function has no derivative through a: differentiate the one that")

    @every_integer_scheme
    def test_of_a_parameter(self, scheme):
        """One that stays float, ahead of a site in a loop."""

        def apply(params, x):
            body = lambda x, w: (jax.nn.relu(x @ w), None)  # noqa: E731
            return lax.scan(body, x + params["bias"], params["layers"])[0]

        params = {"bias": np.ones((1, 16), np.float32), "layers": np.stack([W, OTHER])}
        ranges = {"layers": Range(*(np.full(2, bound, np.float32) for bound in (-2, 2)))}
        quantized_apply, quantized_params = transform.quantize(apply, params, recipe(SCHEMES[scheme]), X, calibration=ranges)
        assert set(quantized_params["float"]) == {"bias"}

        def of_bias(bias):
            return quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum()

        assert_declined(lambda: jax.grad(of_bias)(params["bias"]), "no derivative through layers")

    @every_integer_scheme
    def test_of_the_quantized_parameters(self, scheme):
        """Of the scales among them."""
        quantized_apply, quantized_params = transform.quantize(
            two_products, TWO, recipe(SCHEMES[scheme]), X, calibration={"a": RANGE, "b": RANGE}
        )
        gradient = jax.grad(lambda params: quantized_apply(params, X).sum(), allow_int=True)
        assert_declined(lambda: gradient(quantized_params), "the quantized function has no derivative through a")

    def test_behind_all_sites(self):
        """What no rounding precedes has its derivative."""
        apply = lambda params, x: x @ params["w"] + params["bias"]  # noqa: E731
        params = {"w": W, "bias": np.ones((1, 16), np.float32)}
        quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)
        gradient = jax.grad(lambda bias: quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum())(
            params["bias"]
        )
        np.testing.assert_array_equal(gradient, np.full((1, 16), 7, np.float32), strict=True)

    def test_of_products_of_floats(self):
        """With weights alone in integers, the function has its derivative in the input."""
        draw = Draw(0, exact=True)
        w, x = draw.weights(16, 16), draw.input(7, 16)
        apply = lambda params, x: x @ params["w"]  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, {"w": w}, recipe(SCHEMES["weights alone"]), x)
        gradient = jax.grad(lambda x: quantized_apply(quantized_params, x).sum())(x)
        np.testing.assert_array_equal(gradient, np.broadcast_to(w.sum(1), (7, 16)), strict=True)


class TestRandomKeys:
    @pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
    def test_a_mask_is_not_frozen(self, make):
        """A key among the parameters is drawn from each time, and masks of weights are no weights."""

        def apply(params, x):
            mask = jax.random.bernoulli(params["key"], 0.5, params["w"].shape)
            return (x @ params["plain"]) @ jnp.where(mask, params["w"], 0), jax.random.normal(params["key"], (3,))

        params = {"key": make(0), "plain": W, "w": OTHER}
        found = {row.name: row for row in transform.sites(apply, params, X)}
        assert found["plain"].reason is None
        (masked,) = [row for row in found.values() if row.reason is not None]
        assert masked.reason == "its weights depend on a random key"
        quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)
        assert set(quantized_params["float"]) == {"key", "w"}
        for seed in range(2):
            given = {**quantized_params, "float": {**quantized_params["float"], "key": make(seed)}}
            output, drawn = quantized_apply(given, X)
            mask = jax.random.bernoulli(make(seed), 0.5, OTHER.shape)
            plain, plain_params = transform.quantize(lambda params, x: x @ params["plain"], {"plain": W}, DYNAMIC, X)
            expected = plain(plain_params, X) @ jnp.where(mask, OTHER, 0)
            np.testing.assert_array_equal(output, expected)
            np.testing.assert_array_equal(drawn, jax.random.normal(make(seed), (3,)))

    @pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
    def test_its_bytes_are_counted(self, make):
        params = {"key": make(0), "w": W}
        found = transform.report(lambda params, x: (x @ params["w"], jax.random.bits(params["key"])), params, DYNAMIC, X)
        assert found.float_bytes == W.nbytes + 8
        assert found.float_bytes - found.quantized_bytes == found.sites[0].float_bytes - found.sites[0].quantized_bytes

    @pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
    def test_weights_drawn_from_a_key(self, make):
        """Inside a loop, split, and folded in."""

        def apply(params, x):
            def body(x, key):
                noise = jax.random.normal(jax.random.fold_in(key, 3), params["w"].shape)
                return x @ (params["w"] + noise), None

            return lax.scan(body, x, jax.random.split(params["key"], 2))[0]

        (row,) = transform.sites(apply, {"key": make(0), "w": W}, X)
        assert row.reason == "its weights depend on a random key"


@jax.custom_jvp
def doubled(x):
    return x * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def composite(params, x):
    return lax.composite(lambda x, w: x @ w, "a.composite")(x, params["w"])


def sharded(params, x):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P(), P()), out_specs=P())(x, params["w"])


def of_a_condition(params, x):
    return lax.while_loop(lambda x: (abs(x) @ abs(params["w"])).sum() < 100, lambda x: 2 * x, x)


EXPERTS = np.stack([W, OTHER, THIRD])
IMAGE, FILTER = DRAW.input(2, 6, 5, 4), DRAW.weights(3, 3, 4, 8)
PICKED = "its weights are selected by a value that is known only when it runs"
NEITHER = "neither operand depends on the parameters alone"
STAY_FLOAT = {  # function, parameters, inputs, reason
    "expert": (lambda p, x, i: x @ p["w"][i], {"w": EXPERTS}, (X, np.int32(1)), PICKED),
    "expert of each row": (
        lambda p, x, i: jnp.einsum("bd,bdn->bn", x, p["w"][i]),
        {"w": EXPERTS},
        (X, np.zeros(7, np.int32)),
        PICKED,
    ),
    "ragged_dot": (
        lambda p, x, sizes: lax.ragged_dot(x, p["w"], sizes),
        {"w": EXPERTS},
        (X, np.int32([3, 2, 2])),
        "ragged_dot_general has no quantized form here",
    ),
    "where": (lambda p, x, yes: x @ jnp.where(yes, p["a"], p["b"]), TWO, (X, np.bool(True)), PICKED),
    "select_n by input": (lambda p, x: x @ lax.select(x.sum() > 0, p["a"], p["b"]), TWO, (X,), PICKED),
    "cond": (
        lambda p, x: x @ lax.cond(x.sum() > 0, lambda: p["a"], lambda: p["b"]),
        TWO,
        (X,),
        "a branch selects its weights",
    ),
    "composite": (composite, {"w": W}, (X,), "it is inside composite, whose body is not transformed"),
    "shard_map": (sharded, {"w": W}, (X,), "it is inside shard_map, whose body is not transformed"),
    "condition": (of_a_condition, {"w": W}, (X,), "it is in the condition of a loop"),
    "transposed convolution": (
        lambda p, x: lax.conv_transpose(x, p["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        {"w": FILTER},
        (IMAGE,),
        "it is a transposed convolution, whose input is dilated",
    ),
    "vector": (
        lambda p, x: jnp.einsum("bd,d->b", x, p["w"]),
        {"w": W.reshape(256)},
        (DRAW.input(7, 256),),
        "its weights are a vector",
    ),
    "one-hot": (
        lambda p, i: jax.nn.one_hot(i, 16) @ p["w"],
        {"w": W},
        (np.int32([3, 0, 15]),),
        "its input consists of zeros and ones, which select rows of the weights",
    ),
    "small": (lambda p, x: x @ p["w"], {"w": W[:, :15]}, (X,), "its weights have 240 elements, fewer than 256"),
    "outer product": (lambda p, x: x[:, :, None] @ p["w"], {"w": W.reshape(1, 256)}, (X,), "it sums over no dimension"),
    "integers": (
        lambda p, x: x @ p["w"],
        {"w": np.ones((16, 16), np.int8)},
        (np.ones((7, 16), np.int8),),
        "its weights are int8",
    ),
    "no parameters": (lambda p, x: x @ x.T, {"w": W}, (X,), NEITHER),
    "a constant": (lambda p, x: x @ W, {"w": W}, (X,), "its weights are not a parameter, but a constant of the function"),
}


@pytest.mark.parametrize("name", STAY_FLOAT)
def test_what_stays_float_is_listed(name):
    """With the reason; and a function without another site is refused for it."""
    apply, params, inputs, reason = STAY_FLOAT[name]
    found = transform.sites(apply, params, *inputs)
    assert [row.reason for row in found] == [reason]
    assert reason in str(found)
    assert_declined(lambda: transform.quantize(apply, params, transform.dynamic_int8, *inputs), reason)


@one_in(3, "name", STAY_FLOAT)
def test_what_stays_float_is_as_it_was(name):
    """Beside a site, its bits are those of the function; it is listed all the same."""
    apply, params, inputs, reason = STAY_FLOAT[name]

    def both(params, x, *inputs):
        return x @ params["site"], apply(params, *inputs)

    params = {**params, "site": THIRD}
    found = transform.sites(both, params, X, *inputs)
    assert [row.reason for row in found] == [None, reason]
    quantized_apply, quantized_params = transform.quantize(both, params, transform.dynamic_int8, X, *inputs)
    _, output = jax.jit(quantized_apply)(quantized_params, X, *inputs)
    np.testing.assert_array_equal(output, jax.jit(apply)(params, *inputs), strict=True)


def test_a_float_copy_beside_the_integers():
    """x @ w * norm(w): both forms are stored."""

    def apply(params, x):
        return (x @ params["w"]) * jnp.max(jnp.abs(params["w"]))

    quantized_apply, quantized_params = transform.quantize(apply, {"w": W}, DYNAMIC, X)
    assert (set(quantized_params["sites"]), set(quantized_params["float"])) == ({"w"}, {"w"})
    plain, plain_params = transform.quantize(lambda params, x: x @ params["w"], {"w": W}, DYNAMIC, X)
    assert not plain_params["float"]
    expected = np.asarray(plain(plain_params, X)) * abs(W).max()
    np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected, strict=True)


class TestNoArrays:
    @pytest.mark.parametrize(
        ("leaf", "advice"),
        [(jax.nn.relu, "close over the rest"), ("name", "close over the rest"), (0.5, "or close over")],
    )
    def test_leaves(self, leaf, advice):
        """Said with the path, and what to do."""
        params = {"w": W, "rest": [leaf]}
        for call in (
            lambda: transform.quantize(two_products, params, DYNAMIC, X),
            lambda: transform.sites(two_products, params, X),
            lambda: transform.calibrate(two_products, params, [X], transform.static_int8),
            lambda: transform.quantization_aware(two_products, DYNAMIC)(params, X),
        ):
            assert_declined(call, "at 'rest/0', which is not an array: ", TransformTypeError)
            assert_declined(call, advice, TransformTypeError)

    def test_none(self):
        """It is no leaf."""
        quantized_apply, quantized_params = transform.quantize(two_products, {**TWO, "bias": None}, DYNAMIC, X)
        expected, expected_params = transform.quantize(two_products, TWO, DYNAMIC, X)
        np.testing.assert_array_equal(quantized_apply(quantized_params, X), expected(expected_params, X))


class TestBranchOnTheBatch:
    """In Python: the program has other sites for other batches."""

    def test_other_weights(self):
        apply = lambda params, x: x @ params["a"] if x.shape[0] > 1 else x @ params["b"]  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, TWO, DYNAMIC, X)
        quantized_apply(quantized_params, X[:2])
        message = "for inputs of these shapes, apply has different sites from those of the quantized parameters: "
        assert_declined(lambda: quantized_apply(quantized_params, X[:1]), message)
        assert_declined(
            lambda: jax.jit(quantized_apply)(quantized_params, X[:1]), "Does it branch in Python on a size of its input?"
        )

    def test_other_scales(self):
        """The same weights, summed over the other dimension."""
        apply = lambda params, x: x @ (params["a"] if x.shape[0] > 1 else params["a"].T)  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, TWO, DYNAMIC, X)
        assert_declined(lambda: quantized_apply(quantized_params, X[:1]), "Does it branch in Python on a size of its input?")

    def test_no_site(self):
        apply = lambda params, x: x @ params["a"] if x.shape[0] > 1 else x + params["a"][:1]  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, TWO, DYNAMIC, X)
        assert_declined(
            lambda: quantized_apply(quantized_params, X[:1]), "different sites from those of the quantized parameters: a"
        )

    def test_another_parameter(self):
        """One that the quantized parameters have no more."""
        apply = lambda params, x: x @ params["a"] + (0 if x.shape[0] > 1 else params["b"][:1])  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, TWO, DYNAMIC, X)
        assert_declined(
            lambda: quantized_apply(quantized_params, X[:1]),
            "apply reads b unquantized, and the quantized parameters do not contain it",
        )

    def test_a_parameter_in_as_many_rows(self):
        """It is read as it is, for any number of rows."""
        apply = lambda params, x: x @ params["w"] + jnp.broadcast_to(params["bias"], (x.shape[0], 16))  # noqa: E731
        params = {"w": W, "bias": OTHER[0]}
        quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)
        np.testing.assert_array_equal(quantized_params["float"]["bias"], params["bias"], strict=True)
        plain, plain_params = transform.quantize(lambda params, x: x @ params["w"], {"w": W}, DYNAMIC, X)
        for rows in (1, 3, 7):
            np.testing.assert_array_equal(
                quantized_apply(quantized_params, X[:rows]), plain(plain_params, X[:rows]) + OTHER[:1]
            )

    def test_weights_in_as_many_rows(self):
        """They would be stored for so many."""
        apply = lambda params, x: jnp.einsum("bd,bdn->bn", x, jnp.broadcast_to(params["a"], (len(x), 16, 16)))  # noqa: E731
        quantized_apply, quantized_params = transform.quantize(apply, TWO, DYNAMIC, X)
        quantized_apply(quantized_params, X)
        assert_declined(
            lambda: quantized_apply(quantized_params, X[:1]), "different sites from those of the quantized parameters: a"
        )


class TestVmap:
    """Of the quantized function, and the quantized form of a function that is mapped."""

    @staticmethod
    def both(scheme):
        apply = lambda params, x: jax.nn.relu(x @ params["w"])  # noqa: E731
        x = DRAW.input(3, 7, 16) * np.float32([1, 10, 100])[:, None, None]
        ranges = {"w": Range(np.float32(-9), np.float32(20))}
        one, params = transform.quantize(apply, {"w": W}, recipe(SCHEMES[scheme]), x[0], calibration=ranges)
        mapped = jax.vmap(apply, (None, 0))
        of_all, all_params = transform.quantize(mapped, {"w": W}, recipe(SCHEMES[scheme]), x, calibration=ranges)
        each = np.stack([one(params, each) for each in x])
        at_once = one(params, x.reshape(21, 16)).reshape(x.shape)
        return each, jax.vmap(one, (None, 0))(params, x), of_all(all_params, x), at_once

    @every_integer_scheme
    def test_each_its_own_range(self, scheme):
        """Mapped, the quantized function is what it is for each; and the mapped function, quantized, has one range."""
        each, mapped, of_all, at_once = self.both(scheme)
        np.testing.assert_array_equal(mapped, each, strict=True)
        np.testing.assert_array_equal(of_all, at_once, strict=True)
        differ = SCHEMES[scheme].activations == Activations.DYNAMIC
        assert (not np.array_equal(each, of_all)) == differ


class TestRefusals:
    def test_a_pattern_that_matches_nothing(self):
        how = transform.Recipe([("no such site", None), ("*", transform.Scheme())])
        assert_declined(lambda: transform.quantize(two_products, TWO, how, X), "the pattern 'no such site' matches no site")

    def test_a_range_is_missing(self):
        how = recipe(transform.Scheme())
        call = lambda ranges: transform.quantize(two_products, TWO, how, X, calibration=ranges)  # noqa: E731
        assert_declined(lambda: call(None), "the recipe has static inputs, such as that of a, and these need calibration=")
        assert_declined(
            lambda: call({"a": RANGE}), "calibration['b'], of the input of that site, is missing; calibration has: a"
        )

    @pytest.mark.parametrize("bound", [np.nan, np.inf])
    def test_a_range_is_not_finite(self, bound):
        ranges = {"a": RANGE, "b": Range(np.float32(0), np.float32(bound))}
        for transformed in (
            lambda: transform.quantize(two_products, TWO, recipe(transform.Scheme()), X, calibration=ranges),
            lambda: transform.quantization_aware(two_products, recipe(transform.Scheme()), ranges)(TWO, X),
        ):
            assert_declined(transformed, "calibration['b'], of the input of that site, is not finite")

    def test_one_range_for_layers(self):
        apply = lambda params, x: lax.scan(lambda x, w: (x @ w, None), x, params)[0]  # noqa: E731
        call = lambda: transform.quantize(apply, EXPERTS, recipe(transform.Scheme()), X, calibration={"matmul": RANGE})  # noqa: E731
        assert_declined(call, "has shape (); it must be (3,), one range per layer")


LOOK_UPS = {
    "indexing": lambda p, i: p["table"][i],
    "take": lambda p, i: jnp.take(p["table"], i, axis=0),  # NaN beyond the table
    "clipped": lambda p, i: jnp.take(p["table"], i, axis=0, mode="clip"),
    "filled": lambda p, i: p["table"].at[i].get(mode="fill", fill_value=7),
    "columns": lambda p, i: p["table"][:, i],
    "rows of the transposed": lambda p, i: p["table"].T[i],
    "in bfloat16": lambda p, i: p["table"].astype(jnp.bfloat16)[i],
}


@one_in(5, ("name", "granularity"), itertools.product(LOOK_UPS, ["PER_CHANNEL", "PER_TENSOR"]))
def test_look_ups(name, granularity):
    """What a look-up in the rounded table gives, indices beyond its ends included."""
    apply = LOOK_UPS[name]
    table = DRAW.weights(24, 16) * np.float32(2) ** np.arange(24, dtype=np.float32)[:, None]
    indices = np.int32([[0, 23, 5, 7], [-1, -24, 30, 15]])
    quantized_apply, quantized_params = transform.quantize(
        apply, {"table": table}, recipe(transform.Scheme(weights=granularity)), indices
    )
    assert not quantized_params["float"]
    axis = 0 if name in ("columns", "rows of the transposed") else 1
    over = axis if granularity == "PER_CHANNEL" else None
    scale = np.max(abs(table), over, keepdims=True) / np.float32(127)
    rounded = np.rint(table / scale) * scale
    np.testing.assert_array_equal(
        quantized_apply(quantized_params, indices), apply({"table": jnp.asarray(rounded)}, indices), strict=True
    )


def test_shapes_are_enough():
    """Of inputs, for all, and of parameters, to list them."""
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    shapes = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), TWO)
    assert transform.sites(two_products, shapes, shape) == transform.sites(two_products, TWO, X)
    of_shape, params = transform.quantize(two_products, TWO, DYNAMIC, shape)
    expected, _ = transform.quantize(two_products, TWO, DYNAMIC, X)
    np.testing.assert_array_equal(of_shape(params, X), expected(params, X))


def test_names_tell_the_same_weights_apart():
    apply = lambda params, x: (x @ params["a"]) @ params["a"] @ params["b"].T @ params["a"].T  # noqa: E731
    assert [row.name for row in transform.sites(apply, TWO, X)] == ["a", "a#2", "b", "a#3"]


def test_what_is_no_site_is_left_alone():
    """A rule of a derivative stays what it was, and so does relu's at 0."""
    apply = lambda params, x: jax.nn.relu(doubled(x @ params["w"] + params["bias"]))  # noqa: E731
    params = {"w": W, "bias": np.zeros((1, 16), np.float32)}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)

    def of_bias(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, np.zeros((1, 16), np.float32)).sum()

    np.testing.assert_array_equal(jax.grad(of_bias)(params["bias"]), np.zeros((1, 16), np.float32))
