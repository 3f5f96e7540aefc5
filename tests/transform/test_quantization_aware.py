"""`transform.quantization_aware`: the float program of rounded operands, and its straight-through derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import formats
from support.compositions import EXTENDED, ByHand, numpy_calibration
from support.draw import Draw
from support.networks import SCHEMES, Float, recipe
from support.sampling import one_in
from support.small_functions import NETWORKS, applicable_schemes, draw_operands

import jquant
from jquant import reference, transform
from jquant.calibration import Range
from jquant.transform import Activations

ROWS = 7
NOT_REVERSIBLE = "while_loop", "weights_in_the_carry"  # a loop of unknown length has no derivative in reverse mode


@jax.custom_vjp
def rounded(x, integers, scale, zero_point, inside):
    """Integers as real numbers, with the derivative 1 where `inside` is true, and 0 elsewhere."""
    return jquant.dequantize_linear(integers, scale, zero_point, output_dtype=x.dtype, feature_level=EXTENDED)


def _zeros(x):
    if x is None or jnp.issubdtype(x.dtype, jnp.floating):
        return None if x is None else 0 * x
    return np.zeros(x.shape, jax.dtypes.float0)


rounded.defvjp(
    lambda *operands: (rounded(*operands), operands),
    lambda operands, g: (jnp.where(operands[4], g, 0).astype(g.dtype), *map(_zeros, operands[1:])),
)


@jax.custom_vjp
def replaced(x, value):
    """`value`, with the derivative 1 in `x`."""
    return value


replaced.defvjp(lambda x, value: (value, None), lambda _, g: (g, 0 * g))


class Rounded(Float):
    """The operations in float, with rounded operands at each site. Loops over layers are Python's."""

    array = jnp

    def __init__(self, recipe, calibration, *, exact):
        super().__init__(exact=exact)
        self._by_hand = ByHand(recipe, calibration, exact=exact)
        self._by_hand.array = jnp
        self.layers = self._by_hand.layers
        self._calibration = calibration

    def _scheme(self, site, kind):
        return self._by_hand._scheme(site, kind)

    def _quantize_symmetric(self, x, over, dtype="INT8"):
        x = jax.lax.stop_gradient(x)
        largest = jnp.max(jnp.abs(x), over, keepdims=over is not None).astype(np.float32)
        scale = jquant.scale_and_zero_point(-largest, largest, dtype, symmetric=True, narrow_range=True).scale
        return jquant.quantize_linear(x, scale, output_dtype=dtype, feature_level=EXTENDED), scale

    def _rounded_weights(self, w, scheme, over):
        constant = jax.lax.stop_gradient(w)
        return replaced(w, jax.lax.stop_gradient(formats.rounded(jnp, constant, over, scheme, w.dtype)))

    def _rounded_input(self, x, site, scheme, rows, depth):
        constant = jax.lax.stop_gradient(x)
        if scheme.activations == Activations.FLOAT:
            return x
        if scheme.activations == Activations.STATIC:
            low, high = (bound[self._by_hand._layer[:depth]] for bound in self._calibration[site])
            symmetric, dtype = scheme.activation_type == "INT8", scheme.activation_type
            scale, zero_point = reference.scale_and_zero_point(
                low, high, np.dtype(dtype.lower()), symmetric=symmetric, narrow_range=symmetric
            )
            zero_point = None if symmetric else zero_point
            values = jquant.quantize_linear(constant, scale, zero_point, output_dtype=dtype, feature_level=EXTENDED)
            steps = (-127, 127) if symmetric else (-int(zero_point), 255 - int(zero_point))
            low, high = ((scale * np.float32(bound)).astype(x.dtype) for bound in steps)
            return rounded(x, values, scale, zero_point, (low <= constant) & (constant <= high))
        if scheme.activations == Activations.DYNAMIC and scheme.activation_type == "UINT8":
            return rounded(x, *jquant.dynamic_quantize_linear(constant, feature_level=EXTENDED), np.bool(True))
        return rounded(x, *self._quantize_symmetric(constant, rows), None, np.bool(True))

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        scheme = self._scheme(site, "matmul")
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        contracted = [letter for letter in x_letters if letter in w_letters and letter not in output_letters]
        rows = tuple(map(x_letters.index, contracted)) if scheme.activations == Activations.DYNAMIC_ROW else None
        w = self._rounded_weights(w, scheme, tuple(map(w_letters.index, contracted))).astype(x.dtype)
        x = self._rounded_input(x, site, scheme, rows, depth)
        return super().product(letters, x, w, site=site, weights_first=weights_first, dtype=dtype)

    def dot(self, x, w, contracted, batch=((), ()), *, site, weights_first=False):
        scheme = self._scheme(site, "matmul")
        rows = tuple(contracted[0]) if scheme.activations == Activations.DYNAMIC_ROW else None
        w = self._rounded_weights(w, scheme, tuple(contracted[1]))
        x = self._rounded_input(x, site, scheme, rows, None)
        return super().dot(x, w, contracted, batch, site=site, weights_first=weights_first)

    def rows(self, x, w, *, site):
        return self.product("ij,jk->ik", x, w, site=site)

    def convolution(self, x, w, options, *, site, depth=None):
        scheme = self._scheme(site, "convolution")
        if not formats.is_for_filters(scheme):
            return super().convolution(x, w, options, site=site)
        channel = options.layout[1].index("O")
        w = self._rounded_weights(w, scheme, tuple(dimension for dimension in range(w.ndim) if dimension != channel))
        x = self._rounded_input(x, site, scheme, None, depth)
        return super().convolution(x, w.astype(x.dtype), options, site=site)

    def look_up(self, table, indices, *, site):
        table = self._rounded_weights(table, self._scheme(site, "embedding"), (1,))
        return super().look_up(table, indices, site=site)

    def cast_weights(self, w, dtype):
        return w

    def call(self, kind, function, *arguments):
        return function(*arguments)  # the rules of a custom derivative are lost

    def repeat(self, count, body, x, *, loop="fori"):
        for _ in range(count):
            x = body(x)
        return x


def functions_and_schemes() -> list[tuple[str, str]]:
    """Each function, with one of its schemes in turn."""
    pairs = []
    for number, (name, network) in enumerate(NETWORKS.items()):
        schemes = applicable_schemes(network)
        pairs.append((name, schemes[(7 * number + 2) % len(schemes)]))
    return pairs


def assert_close(actual, expected, tolerance, message):
    """Equal but for the order in which floats are summed; `tolerance` is relative to the largest element."""
    for actual_leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert actual_leaf.dtype == expected_leaf.dtype
        actual_leaf, expected_leaf = (np.asarray(leaf, np.float32) for leaf in (actual_leaf, expected_leaf))
        np.testing.assert_allclose(
            actual_leaf, expected_leaf, tolerance, tolerance * abs(expected_leaf).max(), err_msg=message
        )


@pytest.mark.gate
@one_in(5, ("name", "scheme"), functions_and_schemes(), others="full")
def test_rounded_operands(name, scheme):
    """The values and the derivatives, in parameters and input, are those of the function of rounded operands."""
    network, quantization, exact = NETWORKS[name], recipe(SCHEMES[scheme]), scheme.startswith("weights")
    parameters, x = draw_operands(network, scheme, ROWS)
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75, exact=exact)
    parameters, x = jax.tree.map(jnp.asarray, (parameters, x))
    apply = lambda params, x: network.function(Float(exact=exact), params, x)  # noqa: E731
    aware = transform.quantization_aware(apply, quantization, calibration)
    by_hand = lambda params, x: network.function(Rounded(quantization, calibration, exact=exact), params, x)  # noqa: E731

    def with_derivatives(function):
        """One program for the values and the derivatives."""
        if name in NOT_REVERSIBLE:
            return jax.jit(function)

        def loss(params, x):
            outputs = function(params, x)
            leaves = [output.reshape(-1).astype(np.float32) for output in jax.tree.leaves(outputs)]
            return sum(jnp.cos(jnp.arange(leaf.size)) @ leaf for leaf in leaves), outputs

        return jax.jit(jax.grad(loss, (0, 1) if jnp.issubdtype(x.dtype, jnp.floating) else 0, has_aux=True))

    tolerance = 2**-18 if network.is_exact else 2**-6  # for products of 16-bit floats
    assert_close(with_derivatives(aware)(parameters, x), with_derivatives(by_hand)(parameters, x), tolerance, name)


@pytest.mark.parametrize("dtype", ["UINT8", "INT8"])
def test_exact_values_and_clipping(dtype):
    """If all sums are exact, the bits are those of NumPy. The derivative is 0 outside a range, and 1 at its ends."""
    draw = Draw(0, exact=True)
    a, b, output_cotangent = draw.weights(16, 16), draw.weights(16, 16), np.clip(draw.input(7, 16), -3, 3)
    x = draw.input(7, 16) / 8 + draw.input(7, 16)  # many ties among them
    x[0, :4] = -32, 31.75, -32.25, 32
    scales = {"a": np.float32(0.25), "b": np.float32(16)}
    least = -128 if dtype == "UINT8" else -127
    calibration = {name: Range(least * scale, 127 * scale) for name, scale in scales.items()}
    apply = lambda params, x: jnp.maximum(x @ params["a"], 0) @ params["b"]  # noqa: E731
    aware = transform.quantization_aware(
        apply, recipe(transform.Scheme(activations="STATIC", activation_type=dtype)), calibration
    )
    outputs, pull_back = jax.vjp(aware, {"a": a, "b": b}, x)

    def round_and_clip(x, scale):
        return np.clip(np.rint(x / scale), -128, 127) * scale, (least * scale <= x) & (x <= 127 * scale)

    rounded_x, inside_x = round_and_clip(x, scales["a"])
    hidden = np.maximum(rounded_x @ a, 0)
    rounded_hidden, inside_hidden = round_and_clip(hidden, scales["b"])
    assert 0 < inside_x.mean() < 1
    assert 0 < inside_hidden.mean() < 1
    np.testing.assert_array_equal(outputs, rounded_hidden @ b, strict=True)
    relu_derivative = np.where(rounded_x @ a > 0, 1, np.where(rounded_x @ a < 0, 0, 0.5))
    hidden_cotangent = (output_cotangent @ b.T * inside_hidden * relu_derivative).astype(np.float32)
    params_cotangent, x_cotangent = pull_back(jnp.asarray(output_cotangent))
    np.testing.assert_array_equal(params_cotangent["b"], rounded_hidden.T @ output_cotangent)
    np.testing.assert_array_equal(params_cotangent["a"], rounded_x.T @ hidden_cotangent)
    np.testing.assert_array_equal(x_cotangent, hidden_cotangent @ a.T * inside_x)


def test_outputs_are_close_to_the_quantized_function():
    """They differ only by the rounding of float sums."""
    network = NETWORKS["stacked_layers"]
    scheme = "static uint8"
    parameters, x = draw_operands(network, scheme, ROWS)
    quantization = recipe(SCHEMES[scheme])
    calibration = numpy_calibration(network.function, parameters, x)
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    aware = transform.quantization_aware(apply, quantization, calibration)
    quantized_apply, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    assert_close(aware(parameters, x), quantized_apply(quantized_params, x), 1e-4, "stacked_layers")
