"""A trained network, quantized from its float function: as accurate in int8, and with the bits of the network by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.example_programs import load_example

import jquant
from jquant import transform

for package in ("sklearn", "matplotlib", "tqdm", "optax"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: examples)")
# Training takes long; the network adds biases, and optax mixes dtypes, which JAX's strict modes do not allow.
pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("as_users_have_it")]
example = load_example("transform_digits")
LAYOUT = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}


@pytest.fixture(scope="module")
def trained():
    """The parameters, the test images and labels, and the ranges of static inputs."""
    train_images, images, train_labels, labels = example.digits(0)
    params = example.train(example.initial_params(jax.random.key(0)), train_images, train_labels)
    ranges = transform.calibrate(example.network, params, [train_images[:256], train_images[256:512]], transform.static_int8)
    return params, images, labels, ranges


def by_hand(params, ranges):
    """The network with jquant's operators instead of its products and convolutions."""

    def layer(name):
        kernel = params[name]["kernel"]
        largest = jnp.abs(kernel).max(tuple(range(kernel.ndim - 1)), keepdims=True)
        scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
        values = jquant.quantize_linear(kernel, scale, output_dtype="INT8")
        return values, scale.reshape(-1), *jquant.scale_and_zero_point(*ranges[f"{name}/kernel"], "UINT8")

    def product(name, x, **geometry):
        values, scale, x_scale, x_zero_point = layer(name)
        operands = jquant.quantize_linear(x, x_scale, x_zero_point), x_scale, x_zero_point, values, scale
        function = jquant.convolution_integer_to_float if geometry else jquant.matmul_integer_to_float
        return function(*operands, **geometry) + params[name]["bias"]

    def network(images):
        x = jax.nn.relu(product("stem", images.reshape(-1, 8, 8, 1), **LAYOUT))
        branch = product("block/second", jax.nn.relu(product("block/first", x, **LAYOUT)), **LAYOUT)
        x = jax.nn.relu(product("down", jax.nn.relu(x + branch), strides=(2, 2), **LAYOUT)).mean((1, 2))
        return product("head", jax.nn.relu(product("hidden", x)))

    return network


@pytest.fixture(scope="module")
def int8(trained):
    params, images, _, ranges = trained
    return transform.quantize(example.network, params, transform.static_int8, images, calibration=ranges)


@pytest.mark.gate
def test_as_accurate(trained, int8):
    """Within 0.2 percentage points of float, which is one digit of 599."""
    params, images, labels, _ = trained
    function, quantized_params = int8
    float_correct = np.asarray(example.network(params, images)).argmax(-1) == labels
    int8_correct = np.asarray(jax.jit(function)(quantized_params, images)).argmax(-1) == labels
    assert abs(float_correct.mean() - int8_correct.mean()) < 0.002
    assert float_correct.mean() > 0.96


@pytest.mark.parametrize("batch", [599, 1])
def test_by_hand(trained, int8, batch):
    params, images, _, ranges = trained
    function, quantized_params = int8
    expected = jax.jit(by_hand(params, ranges))(images[:batch])
    actual = jax.jit(function)(quantized_params, images[:batch])
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_report(trained, int8):
    """The noise of the first site and of the function equal NumPy's, to the printed digits."""
    params, images, _, ranges = trained
    function, quantized_params = int8

    def decibels(exact, noisy):
        exact, noisy = np.asarray(exact, np.float64), np.asarray(noisy, np.float64)
        return f"{10 * np.log10(np.sum(exact**2) / np.sum((exact - noisy) ** 2)):.2f}"

    report = transform.report(example.network, params, transform.static_int8, images, calibration=ranges)
    assert f"{report.snr:.2f}" == decibels(example.network(params, images), function(quantized_params, images))
    stem = {"kernel": params["stem"]["kernel"], "bias": jnp.zeros(32)}
    image = images.reshape(-1, 8, 8, 1)
    values, scale, *_ = (quantized_params["sites"]["stem/kernel"][name] for name in ("values", "scale"))
    x_scale, x_zero_point = quantized_params["inputs"]["stem/kernel"]
    quantized = jquant.quantize_linear(image, x_scale, x_zero_point)
    noisy = jquant.convolution_integer_to_float(quantized, x_scale, x_zero_point, values, scale, **LAYOUT)
    assert f"{report.sites[0].snr:.2f}" == decibels(example.convolution(stem, image), noisy)
    assert report.float_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert report.quantized_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(quantized_params))
    assert sum(each.float_bytes for each in report.sites) == sum(
        layer["kernel"].nbytes for layer in params.values()
    )  # the biases stay float


def test_picture(trained, tmp_path):
    params, images, _, ranges = trained
    transform.report(example.network, params, transform.static_int8, images, calibration=ranges).draw(
        tmp_path / "report.png"
    )
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
