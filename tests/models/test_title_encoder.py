"""A language model's int8 encoder against onnxruntime, bit for bit: its nodes, and what comes out at the end.

onnxruntime runs the package's graph node by node (its optimisations are off), with what stands between the nodes as
outputs, on 20 sentences.
"""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from documents import run_document
from example_programs import load_example

import jquant

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: models)")
for package in ("traceforge_title_model", "tokenizers", "onnxruntime", "matplotlib", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")

example = load_example("title_encoder")

BUCKETS, BIAS = (f"/enc/block.0/layer.0/SelfAttention/Add_{number}_output_0" for number in (2, 3))


class Run(NamedTuple):
    """What the tests share: the graph, the network with its weights, and what onnxruntime computed."""

    session: object
    nodes: dict[str, list]  # by operator
    encoder: object
    tokens: np.ndarray
    mask: np.ndarray
    values: dict[str, np.ndarray]  # of everything that has a name, by name


def float_output(node) -> str:
    """What the graph makes of the product of a MatMulInteger: that, cast and multiplied by the scales."""
    return node.output[0].removesuffix("_output_quantized")


@pytest.fixture(scope="module")
def run() -> Run:
    model = onnx.load(example.model_folder() / "encoder.onnx")
    graph = model.graph
    nodes = {}
    for node in graph.node:
        nodes.setdefault(node.op_type, []).append(node)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants |= {node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t) for node in nodes["Constant"]}
    quantized = itertools.chain(nodes["DynamicQuantizeLinear"], nodes["MatMulInteger"])
    wanted = {name for node in quantized for name in (*node.input, *node.output)} - set(constants)
    wanted |= {float_output(node) for node in nodes["MatMulInteger"]} | {BUCKETS, BIAS}
    names = sorted(wanted)
    graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
    session = example.onnxruntime_session(model, optimised=False)
    tokens, mask = example.tokenize([sentence for group in example.SENTENCES.values() for sentence in group])
    between = session.run(names, {"input_ids": tokens, "attention_mask": mask})
    values = {**constants, **dict(zip(names, between, strict=True))}
    return Run(session, nodes, example.load_encoder(graph), tokens, mask, values)


def test_dynamic_quantize_linear(run):
    nodes = run.nodes["DynamicQuantizeLinear"]
    assert len(nodes) == 32
    for node in nodes:
        ours = jquant.dynamic_quantize_linear(run.values[node.input[0]])
        for name, actual in zip(node.output, ours, strict=True):
            np.testing.assert_array_equal(actual, run.values[name], name, strict=True)


@pytest.mark.parametrize("packed", [False, True])
def test_matmul_integer(run, packed):
    nodes = run.nodes["MatMulInteger"]
    assert len(nodes) == 56
    for node in nodes:
        a, b, a_zero_point, b_zero_point = (run.values[name] for name in node.input)
        b = b[None]  # the ranks of DirectML's operands are the same
        weights = (jquant.pack_matrix(b, b_zero_point), None) if packed else (b, b_zero_point)
        ours = jquant.matmul_integer(a, weights[0], a_zero_point, weights[1])
        np.testing.assert_array_equal(ours, run.values[node.output[0]], node.name, strict=True)


def test_linear(run):
    """The network's own products, several of them in one, to the floats that come out."""
    linear = jax.jit(example.linear)
    layers = [layer for block in run.encoder.blocks for layer in block if isinstance(layer, example.Linear)]
    for quantizer, layer in zip(run.nodes["DynamicQuantizeLinear"], layers, strict=True):
        products = [node for node in run.nodes["MatMulInteger"] if node.input[0] == quantizer.output[0]]
        theirs = np.concatenate([run.values[float_output(node)] for node in products], axis=-1)
        np.testing.assert_array_equal(linear(layer, run.values[quantizer.input[0]]), theirs, quantizer.name, strict=True)


def test_epsilon(run):
    """Too small to be seen in the results: the mean squares are large."""
    nodes = [node for node in run.nodes["Add"] if node.name.endswith("layer_norm/Add")]
    assert len(nodes) == 17
    assert {run.values[node.input[1]].item() for node in nodes} == {np.float32(example.EPSILON)}


def test_attention_bias(run):
    np.testing.assert_array_equal(example.position_buckets(run.mask.shape[1]), run.values[BUCKETS])
    np.testing.assert_array_equal(example.attention_bias(run.encoder.position_bias, run.mask), run.values[BIAS], strict=True)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(example.encode, example.run), (example.encode_each, example.run_each)], ids=["batch", "each"]
)
def test_end_to_end(run, ours, theirs):
    hidden = ours(run.encoder, run.tokens, run.mask, example.ONNXRUNTIME)
    np.testing.assert_array_equal(hidden, theirs(run.session, run.tokens, run.mask), strict=True)


def test_functions_of_jax(run):
    """Their last bits differ, which takes few sentences to other integers."""
    hidden = example.encode_each(run.encoder, run.tokens, run.mask, example.JAX)
    expected = example.run_each(run.session, run.tokens, run.mask)
    distances = example.cosine_distances(np.asarray(hidden), expected, run.mask)
    assert distances.shape == (20,)
    assert distances.min() > 0
    assert np.median(distances) <= 1e-12
    assert distances.max() <= 0.05


def test_document():
    run_document("docs/models.md", "A language model's encoder")
