"""`jquant.transform.quantization_aware`: the float program of rounded operands, and its straight-through derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import EXTENDED, SCHEMES, ByHand, Draw, Float, ranges_of, recipe
from support.sampling import one_in
from support.small_functions import NETWORKS, drawn, schemes_of

import jquant
from jquant import ScaleGranularity, reference, transform
from jquant.calibration import Range
from jquant.transform import Activations

ROWS = 7
NO_REVERSE = "while_loop", "weights_in_the_carry"  # loops of any length have no derivative in reverse mode


@jax.custom_vjp
def rounded(x, integers, scale, zero_point, inside):
    """Integers as real numbers, with the derivative 1 where `inside` says so."""
    return jquant.dequantize_linear(integers, scale, zero_point, output_dtype=x.dtype, feature_level=EXTENDED)


def _zeros(x):
    if x is None or jnp.issubdtype(x.dtype, jnp.floating):
        return None if x is None else 0 * x
    return np.zeros(x.shape, jax.dtypes.float0)


rounded.defvjp(
    lambda *operands: (rounded(*operands), operands),
    lambda operands, g: (jnp.where(operands[4], g, 0).astype(g.dtype), *map(_zeros, operands[1:])),
)


class Rounded(Float):
    """Products of floats, whose operands are rounded as int8 does. Loops over layers are Python's."""

    array = jnp

    def __init__(self, recipe, ranges, *, exact):
        super().__init__(exact=exact)
        self._by_hand = ByHand(recipe, ranges, exact=exact)
        self._by_hand.array = jnp
        self.layers = self._by_hand.layers
        self._ranges = ranges

    def _scheme(self, at, kind):
        return self._by_hand._scheme(at, kind)

    def _symmetric(self, x, over, dtype="INT8"):
        x = jax.lax.stop_gradient(x)
        largest = jnp.max(jnp.abs(x), over, keepdims=over is not None).astype(np.float32)
        scale = jquant.scale_and_zero_point(-largest, largest, dtype, symmetric=True, narrow_range=True).scale
        return jquant.quantize_linear(x, scale, output_dtype=dtype, feature_level=EXTENDED), scale

    def _weights(self, w, scheme, over):
        values, scale = self._symmetric(
            w, over if scheme.weights == ScaleGranularity.PER_CHANNEL else None, scheme.weight_type
        )
        return rounded(w, values, scale, None, np.bool(True))

    def _input(self, x, at, scheme, rows, depth):
        constant = jax.lax.stop_gradient(x)
        if scheme.activations == Activations.FLOAT:
            return x
        if scheme.activations == Activations.STATIC:
            low, high = (bound[self._by_hand._layer[:depth]] for bound in self._ranges[at])
            symmetric, dtype = scheme.activation_type == "INT8", scheme.activation_type
            scale, zero_point = reference.scale_and_zero_point(
                low, high, np.dtype(dtype.lower()), symmetric=symmetric, narrow_range=symmetric
            )
            zero_point = None if symmetric else zero_point
            values = jquant.quantize_linear(constant, scale, zero_point, output_dtype=dtype, feature_level=EXTENDED)
            least, largest = (-127, 127) if symmetric else (-int(zero_point), 255 - int(zero_point))
            low, high = ((scale * np.float32(bound)).astype(x.dtype) for bound in (least, largest))
            return rounded(x, values, scale, zero_point, (low <= constant) & (constant <= high))
        if scheme.activations == Activations.DYNAMIC and scheme.activation_type == "UINT8":
            return rounded(x, *jquant.dynamic_quantize_linear(constant, feature_level=EXTENDED), np.bool(True))
        return rounded(x, *self._symmetric(constant, rows), None, np.bool(True))

    def product(self, letters, x, w, *, at, left=False, depth=None, dtype=None):
        scheme = self._scheme(at, "matmul")
        given, weights, output = letters.replace("->", ",").split(",")
        contracted = [letter for letter in given if letter in weights and letter not in output]
        rows = tuple(map(given.index, contracted)) if scheme.activations == Activations.DYNAMIC_ROW else None
        w = self._weights(w, scheme, tuple(map(weights.index, contracted))).astype(x.dtype)
        return super().product(letters, self._input(x, at, scheme, rows, depth), w, at=at, left=left, dtype=dtype)

    def dot(self, x, w, contracted, batch=((), ()), *, at, left=False):
        scheme = self._scheme(at, "matmul")
        rows = tuple(contracted[0]) if scheme.activations == Activations.DYNAMIC_ROW else None
        w = self._weights(w, scheme, tuple(contracted[1]))
        return super().dot(self._input(x, at, scheme, rows, None), w, contracted, batch, at=at, left=left)

    def rows(self, x, w, *, at):
        return self.product("ij,jk->ik", x, w, at=at)

    def convolution(self, x, w, static, *, at, depth=None):
        scheme = self._scheme(at, "convolution")
        channel = static.layout[1].index("O")
        w = self._weights(w, scheme, tuple(dimension for dimension in range(w.ndim) if dimension != channel))
        return super().convolution(self._input(x, at, scheme, None, depth), w.astype(x.dtype), static, at=at)

    def look_up(self, table, indices, *, at):
        return super().look_up(self._weights(table, self._scheme(at, "embedding"), (1,)), indices, at=at)

    def weights_as(self, w, dtype):
        return w

    def call(self, kind, function, *arguments):
        return function(*arguments)  # the rules of a custom derivative are lost

    def repeat(self, count, body, x, *, kind="fori"):
        for _ in range(count):
            x = body(x)
        return x


def chosen() -> list[tuple[str, str]]:
    """Each function, and a scheme in turn."""
    chosen = []
    for number, (name, network) in enumerate(NETWORKS.items()):
        schemes = schemes_of(network)
        chosen.append((name, schemes[(7 * number + 2) % len(schemes)]))
    return chosen


def assert_close(actual, expected, rounding, what):
    """Sums of floats in another order."""
    for given, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert given.dtype == wanted.dtype
        given, wanted = (np.asarray(each, np.float32) for each in (given, wanted))
        np.testing.assert_allclose(given, wanted, rounding, rounding * abs(wanted).max(), err_msg=what)


@pytest.mark.gate
@one_in(5, ("name", "scheme"), chosen(), others="full")
def test_rounded_operands(name, scheme):
    """The values are those of rounded operands, and so are the derivatives, in parameters and input."""
    network, how, exact = NETWORKS[name], recipe(SCHEMES[scheme]), scheme.startswith("weights")
    parameters, x = drawn(network, scheme, ROWS)
    ranges = ranges_of(network.function, parameters, x, part=0.75, exact=exact)
    parameters, x = jax.tree.map(jnp.asarray, (parameters, x))
    aware = transform.quantization_aware(lambda params, x: network.function(Float(exact=exact), params, x), how, ranges)
    by_hand = lambda params, x: network.function(Rounded(how, ranges, exact=exact), params, x)  # noqa: E731

    def with_derivatives(function):
        """One program for both."""
        if name in NO_REVERSE:
            return jax.jit(function)

        def loss(params, x):
            outputs = function(params, x)
            leaves = [output.reshape(-1).astype(np.float32) for output in jax.tree.leaves(outputs)]
            return sum(jnp.cos(jnp.arange(leaf.size)) @ leaf for leaf in leaves), outputs

        return jax.jit(jax.grad(loss, (0, 1) if jnp.issubdtype(x.dtype, jnp.floating) else 0, has_aux=True))

    rounding = 2**-18 if network.is_exact else 2**-6  # of a product in 16 bits
    assert_close(with_derivatives(aware)(parameters, x), with_derivatives(by_hand)(parameters, x), rounding, name)


@pytest.mark.parametrize("dtype", ["UINT8", "INT8"])
def test_exact_values_and_clipping(dtype):
    """Where all sums are exact: equal to NumPy, and the derivative is 0 beyond a range, and 1 at its ends."""
    draw = Draw(0, exact=True)
    a, b, to_output = draw.weights(16, 16), draw.weights(16, 16), np.clip(draw.input(7, 16), -3, 3)
    x = draw.input(7, 16) / 8 + draw.input(7, 16)  # many ties among them
    x[0, :4] = -32, 31.75, -32.25, 32
    scales = {"a": np.float32(0.25), "b": np.float32(16)}
    least = -128 if dtype == "UINT8" else -127
    ranges = {name: Range(least * scale, 127 * scale) for name, scale in scales.items()}
    apply = lambda params, x: jnp.maximum(x @ params["a"], 0) @ params["b"]  # noqa: E731
    how = recipe(transform.Scheme(activation_type=dtype))
    outputs, pull = jax.vjp(transform.quantization_aware(apply, how, ranges), {"a": a, "b": b}, x)

    def real(x, scale):
        return np.clip(np.rint(x / scale), -128, 127) * scale, (least * scale <= x) & (x <= 127 * scale)

    rounded_x, inside_x = real(x, scales["a"])
    hidden = np.maximum(rounded_x @ a, 0)
    rounded_hidden, inside_hidden = real(hidden, scales["b"])
    assert 0 < inside_x.mean() < 1
    assert 0 < inside_hidden.mean() < 1
    np.testing.assert_array_equal(outputs, rounded_hidden @ b, strict=True)
    to_hidden = to_output @ b.T * inside_hidden * np.where(rounded_x @ a > 0, 1, np.where(rounded_x @ a < 0, 0, 0.5))
    to_params, to_x = pull(jnp.asarray(to_output))
    np.testing.assert_array_equal(to_params["b"], rounded_hidden.T @ to_output)
    np.testing.assert_array_equal(to_params["a"], rounded_x.T @ to_hidden.astype(np.float32))
    np.testing.assert_array_equal(to_x, to_hidden.astype(np.float32) @ a.T * inside_x)


def test_it_trains_what_is_quantized():
    """The quantized function of the same parameters differs by roundings of float sums alone."""
    network = NETWORKS["stacked_layers"]
    scheme = "static uint8"
    parameters, x = drawn(network, scheme, ROWS)
    ranges = ranges_of(network.function, parameters, x)
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    aware = transform.quantization_aware(apply, recipe(SCHEMES[scheme]), ranges)
    quantized_apply, quantized_params = transform.quantize(apply, parameters, recipe(SCHEMES[scheme]), x, calibration=ranges)
    for given, wanted in zip(aware(parameters, x), quantized_apply(quantized_params, x), strict=True):
        np.testing.assert_allclose(given, wanted, 1e-4, 1e-4 * abs(np.asarray(wanted)).max())
