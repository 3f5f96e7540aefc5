"""Four wake-word networks against LiteRT, for which they were made: every layer, and every network over a recording.

LiteRT has two sets of kernels. Those of XNNPACK, the default, scale the sum of a product in float32 by the formula that
jquant uses, so that the results must be equal. The built-in kernels scale it by a 31-bit integer and a shift. Both formulas
round nearly the same real number, once or twice by at most half a unit, so that the integers differ by at most 1.
"""

import functools

import jax
import numpy as np
import pytest
from support.documents import run_document
from support.example_programs import load_example

import jquant
from jquant.reference import nonlinear as nonlinear_reference
from jquant.reference import products as products_reference

for package in ("pymicro_wakeword", "ai_edge_litert", "matplotlib", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")
example = load_example("wake_word")

STEPS_OF_NOISE = 64


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The network whose convolutions over time have two lengths, and one of the other three, which differ in sizes alone."""
    names = example.NAMES if metafunc.config.getoption("--full") else ("okay_nabu", "alexa")
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names)


@functools.cache
def audio() -> np.ndarray:
    return example.spoken([example.RECORDINGS / f"{name}.wav" for name in example.NAMES])[0]


@functools.cache
def operations(name: str):
    return example.read(example.MODELS / f"{name}.tflite")


@functools.cache
def frames(name: str) -> np.ndarray:
    """Speech, then random integers over the full range."""
    noise = np.random.default_rng(0).integers(-128, 128, (STEPS_OF_NOISE, example.STRIDE, example.CHANNELS), np.int8)
    return np.concatenate([example.features(audio(), operations(name)[0].layer.input), noise])


@functools.cache
def trace(name: str, engine: str):
    path = example.MODELS / f"{name}.tflite"
    return example.trace(path, example.ENGINES[engine], operations(name), frames(name))


@functools.cache
def compiled(kind: str):
    """A jitted function that returns the results of a layer and its int32 sums."""

    def sums(layer, x):
        weight = layer.weight.transpose(3, 1, 2, 0) if kind == "DEPTHWISE_CONV_2D" else layer.weight
        if kind == "FULLY_CONNECTED":
            return jquant.matmul_integer(x.reshape(len(x), -1), weight, layer.input.zero_point) + layer.bias[None]
        groups = x.shape[3] // weight.shape[3]
        layout = ("NHWC", "OHWI", "NHWC")
        product = jquant.convolution_integer(x, weight, layer.input.zero_point, groups=groups, dimension_numbers=layout)
        return product + layer.bias[None, None, None]

    def both(layer, x):
        return example.OPERATORS[kind](layer, x), None if kind == "LOGISTIC" else sums(layer, x)

    return jax.jit(both)


def expected(kind: str, layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The formula in NumPy, for windows of the size of the filter."""
    if kind == "LOGISTIC":
        return nonlinear_reference.quantized_linear_sigmoid(x, *layer.input, *layer.output), None
    equation = {"CONV_2D": "nhwc,ohwc->no", "DEPTHWISE_CONV_2D": "nhwc,ihwc->nc", "FULLY_CONNECTED": "nk,ko->no"}[kind]
    x = x.reshape(len(x), -1) if kind == "FULLY_CONNECTED" else x
    product = np.einsum(equation, x.astype(np.int64) - layer.input.zero_point, layer.weight.astype(np.int64))
    total = product + layer.bias
    assert abs(total).max() < 2**31
    return products_reference.requantize_product(total, layer.input.scale, layer.weight_scale, *layer.output, np.int8), total


def test_each_layer(name):
    """With LiteRT's inputs, layers equal the formula and XNNPACK, and are within 1 of the built-in kernels."""
    kinds = set()
    for engine in example.ENGINES:
        for (kind, layer, *_), (x, theirs) in zip(operations(name), trace(name, engine)[1], strict=True):
            kinds.add(kind)
            ours, sums = compiled(kind)(layer, x)
            formula, total = expected(kind, layer, x)
            np.testing.assert_array_equal(np.asarray(ours).reshape(formula.shape), formula)
            if sums is not None:
                np.testing.assert_array_equal(np.asarray(sums).reshape(total.shape), total)
            if engine == "XNNPACK":
                np.testing.assert_array_equal(ours, theirs)
            else:
                assert np.abs(example.difference(ours, theirs)).max() <= 1
    assert kinds == set(example.OPERATORS)


def test_step_by_step(name):
    """The probabilities equal XNNPACK's, and some of them detect the word."""
    network = example.assemble(operations(name))
    _, probability = example.stream(network, example.initial_state(network), frames(name))
    np.testing.assert_array_equal(probability, trace(name, "XNNPACK")[0])
    assert probability.max() > 200


def test_many_steps_at_once():
    """The same in two halves, with the state carried from the first to the second."""
    name = "okay_nabu"
    network, listen = example.assemble(operations(name)), jax.jit(example.listen)
    state, probabilities = example.initial_state(network), []
    for half in np.split(frames(name), 2):
        state, probability = listen(network, state, half.reshape(-1, example.CHANNELS))
        probabilities.append(probability)
    np.testing.assert_array_equal(np.concatenate(probabilities), trace(name, "XNNPACK")[0])


def test_document():
    run_document("docs/evidence.md", "Wake words")
