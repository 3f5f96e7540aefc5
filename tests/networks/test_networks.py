"""Networks of other people's packages: quantized in one call, exported in float and int8, and run in onnxruntime.

The packages are in `.ci/networks.txt`; `.ci/full networks` has an environment for them.
"""

from collections import Counter
from typing import NamedTuple

import jax
import numpy as np
import pytest

from benchmarks import environment
from benchmarks.networks.networks import NETWORKS, Network
from benchmarks.networks.quantized import Quantized, quantized

for package in ("onnx", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed (.ci/networks.txt)")

from exporter.running import run  # noqa: E402

from jquant.onnx import compare, export  # noqa: E402
from jquant.onnx.compare.measures import decibels_of  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]  # packages warn of their own ends


class Expected(NamedTuple):
    """What was seen, with a margin.

    Attributes:
      sites: how many are quantized.
      floats: how many products stay float, by reason.
      decibels: the least signal-to-noise ratio of the outputs; 1 dB below what was seen.
      bytes: the most bytes of the int8 file over those of the float file.
    """

    sites: int
    floats: dict[str, int]
    decibels: float
    bytes: float


ACTIVATIONS, SMALL, CONSTANT = "of two activations", "small", "by a constant"
EXPECTED = {
    "BERT": Expected(14, {ACTIVATIONS: 4, CONSTANT: 2}, 44.9, 0.37),
    "T5": Expected(35, {ACTIVATIONS: 12, SMALL: 2}, 33.0, 0.35),
    "Whisper": Expected(38, {ACTIVATIONS: 12}, 38.5, 0.34),
    "MobileNetV2": Expected(51, {SMALL: 2}, 27.1, 0.34),
    "Qwen3": Expected(16, {ACTIVATIONS: 4}, 32.9, 0.34),
    "graph network": Expected(6, {}, 32.3, 0.4),
    "Mamba2": Expected(6, {ACTIVATIONS: 16}, 27.6, 0.32),
    "Llama": Expected(16, {ACTIVATIONS: 4, SMALL: 5}, 30.5, 0.34),
    "ResNet": Expected(14, {}, 36.3, 0.58),
    "vision transformer": Expected(8, {ACTIVATIONS: 2}, 41.3, 0.37),
}


class Case(NamedTuple):
    """A network and its int8, with the outputs of both in JAX, and the ONNX models of both."""

    expected: Expected
    network: Network
    int8: Quantized
    outputs: tuple[np.ndarray, np.ndarray]
    models: tuple


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, as_users_have_it) -> Case:
    package, make = NETWORKS[request.param]
    if environment.version(package) is None:
        pytest.skip(f"{package} is not installed (.ci/networks.txt)")
    network = make()
    int8 = quantized(network)
    pairs = (network.function, network.params), (int8.function, int8.params)
    outputs = tuple(np.asarray(jax.jit(function)(params, *network.inputs)) for function, params in pairs)
    models = tuple(export(function, params, *network.inputs) for function, params in pairs)
    return Case(EXPECTED[request.param], network, int8, outputs, models)


def test_what_is_quantized(case):
    """All matrices, filters and tables of the networks; and how much that changes the outputs."""
    assert (case.int8.sites, case.int8.floats) == (case.expected.sites, Counter(case.expected.floats))
    y, y_int8 = case.outputs
    assert np.isfinite(y).all()
    assert np.ptp(y) > 0
    assert case.expected.decibels <= decibels_of(y_int8, y) <= case.expected.decibels + 3


@pytest.mark.parametrize("optimized", [False, True])
def test_floats_in_onnxruntime(case, optimized):
    """Within 2e-6 of the largest output: every library adds floats in its own order."""
    (output,) = run(case.models[0], case.network.inputs, optimized=optimized)
    y = case.outputs[0]
    np.testing.assert_allclose(output, y, rtol=0, atol=2e-6 * np.max(abs(y)))


def test_integers_in_onnxruntime(case, count):
    """Node by node equal. End to end, onnxruntime and JAX differ less than int8 and float."""
    function, model = jax.jit(case.int8.function), case.models[1]
    comparison = compare.exported(function, case.int8.params, [*case.network.inputs], model, node_by_node=True)
    print(comparison)
    assert comparison.different == 0
    integers = {row.operator: row.integers for row in comparison.nodes if row.operator in INTEGER_NODES}
    assert min(integers.values()) > 0
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= integers.keys()
    count("integers of quantized nodes", sum(integers.values()))
    assert [output.optimized for output in comparison.outputs] == [False, True]
    assert all(output.snr > case.expected.decibels + 3 for output in comparison.outputs)


INTEGER_NODES = {"MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}


def test_bytes(case):
    plain, int8 = (model.ByteSize() for model in case.models)
    assert case.expected.bytes - 0.02 <= int8 / plain <= case.expected.bytes
