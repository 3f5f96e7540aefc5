"""The derivative of a quantized function: none through integers, where it raises, or the straight-through one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_declined, assert_equal
from support.compositions import numpy_calibration
from support.draw import Draw, calibrated
from support.networks import SCHEMES, Float, convolution, recipe
from support.rounded import Rounded, assert_close
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range
from jquant.transform import TransformError, TransformTypeError
from jquant.transform.formats import weight_formats

DRAW = Draw(0)
W, OTHER = DRAW.weights(16, 16), DRAW.weights(16, 16)
PARAMS = {"a": W, "b": OTHER}
X = DRAW.input(7, 16)
CALIBRATED = calibrated(-2, 2)
DYNAMIC = recipe(SCHEMES["dynamic uint8"])
every_integer_scheme = one_in(3, "scheme", [name for name in SCHEMES if not name.startswith("weights")], others="full")


def two_products(params, x):
    return jax.nn.relu(x @ params["a"]) @ params["b"]


@every_integer_scheme
def test_in_the_input(scheme):
    quantized_apply, quantized_params = transform.quantize(
        two_products, PARAMS, recipe(SCHEMES[scheme]), X, calibration={"a": CALIBRATED, "b": CALIBRATED}
    )
    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f)), lambda f: lambda x: jax.linearize(f, x)):
        call = functools.partial(derivative(lambda x: quantized_apply(quantized_params, x).sum()), X)
        assert_declined(
            call,
            "no derivative through a: differentiate the one that transform.quantization_aware returns, or quantize with",
        )


@every_integer_scheme
def test_in_a_float_parameter(scheme):
    """One that stays float, before a site in a loop."""

    def apply(params, x):
        body = lambda x, w: (jax.nn.relu(x @ w), None)  # noqa: E731
        return lax.scan(body, x + params["bias"], params["layers"])[0]

    params = {"bias": np.ones((1, 16), np.float32), "layers": np.stack([W, OTHER])}
    calibration = {"layers": calibrated(-2, 2, 2)}
    quantized_apply, quantized_params = transform.quantize(
        apply, params, recipe(SCHEMES[scheme]), X, calibration=calibration
    )
    assert set(quantized_params["float"]) == {"bias"}

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum()

    assert_declined(lambda: jax.grad(loss)(params["bias"]), "no derivative through layers")


@every_integer_scheme
def test_in_the_quantized_parameters(scheme):
    """Which hold scales, in float."""
    quantized_apply, quantized_params = transform.quantize(
        two_products, PARAMS, recipe(SCHEMES[scheme]), X, calibration={"a": CALIBRATED, "b": CALIBRATED}
    )
    gradient = jax.grad(lambda params: quantized_apply(params, X).sum(), allow_int=True)
    assert_declined(lambda: gradient(quantized_params), "the quantized function has no derivative through a")


def test_after_all_sites():
    """A parameter that is read after all rounding has its derivative."""
    apply = lambda params, x: x @ params["w"] + params["bias"]  # noqa: E731
    params = {"w": W, "bias": np.ones((1, 16), np.float32)}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, X).sum()

    np.testing.assert_array_equal(jax.grad(loss)(params["bias"]), np.full((1, 16), 7, np.float32), strict=True)


def test_weight_only():
    """If only the weights are quantized, the function has its derivative in the input."""
    draw = Draw(0, exact=True)
    w, x = draw.weights(16, 16), draw.input(7, 16)
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, {"w": w}, recipe(SCHEMES["weights alone"]), x)
    gradient = jax.grad(lambda x: quantized_apply(quantized_params, x).sum())(x)
    np.testing.assert_array_equal(gradient, np.broadcast_to(w.sum(1), (7, 16)), strict=True)


@jax.custom_jvp
def doubled(x):
    return x * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def test_rules_outside_of_sites_are_kept():
    """A custom derivative stays what it was, and so does that of relu, 0 at 0."""
    apply = lambda params, x: jax.nn.relu(doubled(x @ params["w"] + params["bias"]))  # noqa: E731
    params = {"w": W, "bias": np.zeros((1, 16), np.float32)}
    quantized_apply, quantized_params = transform.quantize(apply, params, DYNAMIC, X)

    def loss(bias):
        return quantized_apply({**quantized_params, "float": {"bias": bias}}, np.zeros((1, 16), np.float32)).sum()

    np.testing.assert_array_equal(jax.grad(loss)(params["bias"]), np.zeros((1, 16), np.float32))


# Straight through


def linear(ops, p, x):
    """Loops, calls, a branch, heads, and an input of several sites. It is linear between these.

    So its derivative does not depend on values that differ in their last bits, which rounding might enlarge.
    """

    def layer(x, w):
        heads = ops.product("bd,dhk->bhk", x, w["split"], site="layers/split")
        heads = ops.product("bhk,hkn->bhn", heads, w["each"], site="layers/each")
        return ops.add(ops.product("bhn,hnd->bd", heads, w["join"], site="layers/join"), x), ops.largest(x, 1)

    x, _ = ops.layers(lambda x, w: ops.call("checkpoint", layer, x, w), x, p["layers"])
    k, v = (ops.product("bd,dn->bn", x, p[name], site=name) for name in "kv")

    def product(name):
        return lambda x: ops.product("bd,nd->nb", x, p[name], site=name, weights_first=True)

    return ops.branch(ops.is_positive(x), product("yes"), product("no"), ops.add(k, v))


def convolutions(ops, p, x):
    x = ops.convolution(x, p["first"], convolution(2, groups=2, padding=((1, 1), (1, 0))), site="first")
    options = convolution(2, strides=(2, 1), dilations=(1, 2), layout=("NHWC", "HWIO", "NHWC"))
    return ops.convolution(ops.transpose(x, (0, 2, 3, 1)), p["second"], options, site="second")


class Frozen(Rounded):
    """Rounded operands, where the weights are constants."""

    def _rounded_weights(self, order, w, *arguments, **options):
        with jax.ensure_compile_time_eval():
            return jax.lax.stop_gradient(super()._rounded_weights(order, jnp.asarray(w), *arguments, **options))


def of_type(weight_type: str, **options) -> transform.Scheme:
    sizes = {"INT2": 16, "INT4": 16, "UINT4": None}
    return transform.Scheme(weight_type=weight_type, block_size=sizes.get(weight_type), **options)


INPUTS = {
    "static": {"activations": "STATIC"},
    "static int8": {"activations": "STATIC", "activation_type": "INT8"},
    "dynamic": {},
    "dynamic int8": {"activation_type": "INT8"},
    "by row": {"activations": "DYNAMIC_ROW"},
}
CHANGES = {
    "rotated": {"rotation": "HADAMARD"},
    "smoothed": {"smoothing": "AWQ"},
    "smoothed and rotated": {"smoothing": "SMOOTHQUANT", "rotation": "HADAMARD"},
}
FORMATS = {
    **{
        f"{type}, {name}": of_type(type, **options)
        for type in weight_formats.INTEGER_PRODUCTS
        for name, options in INPUTS.items()
    },
    **{f"{type} alone": of_type(type, activations="FLOAT") for type in weight_formats.WEIGHT_TYPES},
    **{
        f"{type}, {name}, {changed}": of_type(type, **options, **CHANGES[changed])
        for type, name, options, changed in (
            ("INT8", "by row", INPUTS["by row"], "rotated"),
            ("INT8", "dynamic", INPUTS["dynamic"], "smoothed and rotated"),
            ("INT8", "static int8", INPUTS["static int8"], "rotated"),
            ("INT4", "by row", INPUTS["by row"], "smoothed"),
            ("INT4", "alone", {"activations": "FLOAT"}, "smoothed and rotated"),
            ("MXFP4", "alone", {"activations": "FLOAT"}, "rotated"),
            ("FLOAT8E4M3FN", "alone", {"activations": "FLOAT"}, "smoothed"),
        )
    },
}


def assert_straight_through(function, params, x, scheme, tolerance=2**-18):
    """The values are those without the derivative, which is that of the function of rounded operands, in both modes."""
    quantization = recipe(scheme)
    calibration = numpy_calibration(function, params, x, fraction=0.75)
    apply = lambda params, x: function(Float(), params, x)  # noqa: E731
    quantize = functools.partial(transform.quantize, apply, params, quantization, x, calibration=calibration)
    plain, quantized_params = quantize()
    quantized_apply, same_params = quantize(derivative="STRAIGHT_THROUGH")
    assert_equal(same_params, quantized_params)
    by_hand = Frozen(quantization, calibration, stored=quantized_params["sites"], exact=False)
    tangent, cotangents = np.cos(x), np.sin(np.arange(1000, dtype=np.float32))

    def derivatives(function, x):
        output, jvp = jax.jvp(function, (x,), (tangent,))
        output, pull_back = jax.vjp(function, x)
        return output, jvp, *pull_back(jnp.resize(cotangents, output.shape))

    output, *actual = jax.jit(functools.partial(derivatives, lambda x: quantized_apply(quantized_params, x)))(x)
    np.testing.assert_array_equal(output, jax.jit(plain)(quantized_params, x), strict=True)
    _, *expected = jax.jit(functools.partial(derivatives, lambda x: function(by_hand, params, x)))(x)
    assert_close(actual, expected, tolerance, scheme)
    return sum(leaf.size for leaf in actual)


@one_in(48, "scheme", FORMATS, first=4, gate=8)
def test_straight_through(scheme, count):
    draw = Draw(1)
    layers = {"split": draw.weights(2, 16, 2, 16), "each": draw.weights(2, 2, 16, 16), "join": draw.weights(2, 2, 16, 16)}
    params = {"layers": layers, **{name: draw.weights(16, 16) for name in ("k", "v", "yes", "no")}}
    count("straight-through derivatives", assert_straight_through(linear, params, draw.input(5, 16), FORMATS[scheme]))


FILTERS = [name for name in FORMATS if name.startswith(("INT8", "FLOAT8"))]


@pytest.mark.gate
@one_in(12, "scheme", FILTERS, first=4, gate=3)
def test_straight_through_convolutions(scheme, count):
    draw = Draw(1)
    params = {"first": draw.weights(8, 2, 3, 3), "second": draw.weights(2, 3, 8, 6)}
    compared = assert_straight_through(convolutions, params, draw.input(3, 4, 7, 6), FORMATS[scheme])
    count("straight-through derivatives", compared)


def straight_through(apply, params, x, scheme, **options):
    return transform.quantize(apply, params, recipe(scheme), x, derivative="STRAIGHT_THROUGH", **options)


@pytest.mark.parametrize("scheme", ["dynamic row", "weights alone"])
def test_exact_derivatives(scheme):
    """Of sums that are exact, bit for bit: eagerly, compiled, and mapped over examples."""
    draw = Draw(0, exact=True)
    params, x, cotangent = {"a": draw.weights(16, 16), "b": draw.weights(16, 16)}, draw.input(7, 16), draw.input(7, 16)
    apply = lambda params, x: x @ params["a"] @ params["b"]  # noqa: E731
    quantized_apply, quantized_params = straight_through(apply, params, x, SCHEMES[scheme])

    def gradient(x, cotangent):
        return jax.grad(lambda x: (quantized_apply(quantized_params, x) * cotangent).sum())(x)

    expected = cotangent @ params["b"].T @ params["a"].T
    for function in (gradient, jax.jit(gradient), jax.vmap(gradient)):
        np.testing.assert_array_equal(function(x, cotangent), expected, strict=True)
    push_forward = jax.linearize(lambda x: quantized_apply(quantized_params, x), x)[1]
    np.testing.assert_array_equal(push_forward(cotangent), cotangent @ params["a"] @ params["b"], strict=True)


def test_straight_through_outside_of_a_range():
    """0 outside the range of a static input, and 1 at its ends."""
    draw = Draw(0, exact=True)
    w, x = draw.weights(16, 16), draw.input(7, 16)
    x[0, :4] = -128, 127, -129, 128
    quantized_apply, quantized_params = straight_through(
        lambda w, x: x @ w, w, x, SCHEMES["static uint8"], calibration={"matmul": Range(np.float32(-128), np.float32(127))}
    )
    expected = np.broadcast_to(w.sum(1), (7, 16)).copy()
    expected[0, 2:4] = 0
    np.testing.assert_array_equal(jax.grad(lambda x: quantized_apply(quantized_params, x).sum())(x), expected)


@every_integer_scheme
def test_straight_through_in_the_quantized_parameters(scheme):
    """Scales are frozen, integers have no derivative, and a parameter that stays float has its own."""
    apply = lambda params, x: (x + params["bias"]) @ params["a"]  # noqa: E731
    params = {"a": W, "bias": np.zeros((1, 16), np.float32)}
    quantized_apply, quantized_params = straight_through(apply, params, X, SCHEMES[scheme], calibration={"a": CALIBRATED})
    gradient = jax.grad(lambda params: quantized_apply(params, X).sum(), allow_int=True)(quantized_params)
    assert jax.tree.structure(gradient) == jax.tree.structure(quantized_params)
    assert np.all(gradient.pop("float")["bias"] != 0)
    frozen = {part: quantized_params[part] for part in gradient}
    for leaf, parameter in zip(jax.tree.leaves(gradient), jax.tree.leaves(frozen), strict=True):
        if jnp.issubdtype(parameter.dtype, jnp.floating):
            np.testing.assert_array_equal(leaf, np.zeros_like(parameter), strict=True)
        else:
            assert leaf.dtype == jax.dtypes.float0


@pytest.mark.gate
def test_straight_through_after_a_look_up():
    """The table is frozen, also for the look-up; what is added to its rows has a derivative."""
    draw = Draw(0, exact=True)
    table, x, bias = draw.weights(16, 16), np.arange(7, dtype=np.int32), draw.input(1, 16)
    apply = lambda params, x: (params["table"][x] + params["bias"]) @ params["table"].T  # noqa: E731
    scheme = SCHEMES["dynamic row"]
    quantized_apply, quantized_params = straight_through(apply, {"table": table, "bias": bias}, x, scheme)
    gradient = jax.grad(lambda params: quantized_apply(params, x).sum(), allow_int=True)(quantized_params)
    scales = [leaf for leaf in jax.tree.leaves(gradient["sites"]) if leaf.dtype == np.float32]
    assert scales
    assert not np.any(scales[0])
    expected = np.full((1, 16), 7, np.float32) * table.sum(0)
    np.testing.assert_array_equal(gradient["float"]["bias"], expected, strict=True)


@one_in(3, "scheme", ["dynamic row", "weights alone", "weights alone, mxfp4"])
def test_residuals_are_packed(scheme):
    """The backward pass dequantizes: no float weights are kept for it."""
    draw = Draw(0)
    w, x = draw.weights(3, 64, 64), draw.input(2, 64)
    apply = lambda w, x: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]  # noqa: E731
    quantized_apply, quantized_params = straight_through(apply, w, x, SCHEMES[scheme])
    _, pull_back = jax.vjp(lambda x: quantized_apply(quantized_params, x), x)
    kept, stored = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (pull_back, quantized_params))
    assert stored / 2 < kept <= stored + 6 * x.nbytes < w.nbytes / 2


@pytest.mark.parametrize(
    ("derivative", "error"), [("straight", TransformError), (1, TransformTypeError), (True, TransformTypeError)]
)
def test_an_unknown_derivative(derivative, error):
    call = lambda: transform.quantize(two_products, PARAMS, DYNAMIC, X, derivative=derivative)  # noqa: E731
    assert_declined(call, "derivative is " + repr(derivative) + "; it must be 'STRAIGHT_THROUGH', or None", error)
