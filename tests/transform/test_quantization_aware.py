"""`transform.quantization_aware`: the float program of rounded operands, and its straight-through derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compositions import numpy_calibration
from support.draw import Draw
from support.networks import SCHEMES, Float, recipe
from support.rounded import Rounded, assert_close
from support.sampling import one_in
from support.small_functions import NETWORKS, applicable_schemes, draw_operands

from jquant import transform
from jquant.calibration import Range

ROWS = 7
NOT_REVERSIBLE = "while_loop", "weights_in_the_carry"  # a loop of unknown length has no derivative in reverse mode


def functions_and_schemes() -> list[tuple[str, str]]:
    """Each function, with one of its schemes in turn."""
    pairs = []
    for number, (name, network) in enumerate(NETWORKS.items()):
        schemes = applicable_schemes(network)
        pairs.append((name, schemes[(7 * number + 2) % len(schemes)]))
    return pairs


@pytest.mark.gate
@one_in(11, ("name", "scheme"), functions_and_schemes(), others="full")
def test_rounded_operands(name, scheme):
    """The values and the derivatives, in parameters and input, are those of the function of rounded operands."""
    network, quantization, exact = NETWORKS[name], recipe(SCHEMES[scheme]), scheme.startswith("weights")
    parameters, x = draw_operands(network, scheme, ROWS)
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75, exact=exact)
    parameters, x = jax.tree.map(jnp.asarray, (parameters, x))
    apply = lambda params, x: network.function(Float(exact=exact), params, x)  # noqa: E731
    aware = transform.quantization_aware(apply, quantization, calibration)
    _, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    options = {"stored": quantized_params["sites"], "exact": exact}
    by_hand = lambda params, x: network.function(Rounded(quantization, calibration, **options), params, x)  # noqa: E731

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
