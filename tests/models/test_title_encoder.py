"""A language model's int8 encoder against onnxruntime, bit for bit: its nodes, and its outputs.

onnxruntime runs the package's graph without optimisations, node by node, on 20 sentences, with the values between the nodes
as additional outputs.
"""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.documents import run_document
from support.example_programs import load_example
from support.saturation import need_exact_products

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: models)")
for package in ("traceforge_title_model", "tokenizers", "onnxruntime", "matplotlib", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")

import jquant.onnx  # noqa: E402

example = load_example("title_encoder")
titles = load_example("titles")


class Run(NamedTuple):
    """What the tests share.

    Attributes:
      equal: the model with onnxruntime's float functions.
      jax_floats: the model with JAX's float functions.
      values: what onnxruntime computed, and the initializers, by name.
    """

    session: object
    equal: jquant.onnx.Model
    jax_floats: jquant.onnx.Model
    inputs: dict[str, np.ndarray]
    graph: object
    values: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def run() -> Run:
    need_exact_products(np.uint8, np.int8)
    proto = onnx.load(titles.ENCODER)
    inputs = titles.tokenize(titles.SENTENCES)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    quantized = [node for node in proto.graph.node if node.op_type in ("DynamicQuantizeLinear", "MatMulInteger")]
    names = sorted({name for node in quantized for name in (*node.input, *node.output)} - set(values))
    watched = onnx.ModelProto.FromString(proto.SerializeToString())
    watched.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
    session = titles.onnxruntime_session(watched.SerializeToString(), optimised=False)
    values |= dict(zip(names, session.run(names, inputs), strict=True))
    return Run(
        session=titles.onnxruntime_session(titles.ENCODER, optimised=False),
        equal=jquant.onnx.load(proto, overrides=example.FLOATS[example.EQUAL]),
        jax_floats=jquant.onnx.load(proto, overrides=example.FLOATS[example.OWN]),
        inputs=inputs,
        graph=proto.graph,
        values=values,
    )


@pytest.mark.parametrize(("operator", "count"), [("DynamicQuantizeLinear", 32), ("MatMulInteger", 56)])
def test_nodes(run, operator, count):
    """Each node as a model of its own, with its weights as parameters, fed with onnxruntime's inputs."""
    nodes = [node for node in run.graph.node if node.op_type == operator]
    assert len(nodes) == count
    weights = {tensor.name: tensor for tensor in run.graph.initializer}
    for node in nodes:
        declared = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(run.values[name].dtype), run.values[name].shape
            )
            for name in (*node.input, *node.output)
            if name not in weights
        ]
        inputs, outputs = declared[: -len(node.output)], declared[-len(node.output) :]
        stored = [weights[name] for name in node.input if name in weights]
        graph = onnx.helper.make_graph([node], "one_node", inputs, outputs, stored)
        model = jquant.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
        assert sum(isinstance(leaf, jquant.PackedMatrix) for leaf in model.params.values()) == (operator == "MatMulInteger")
        results = jax.jit(model)(model.params, {value.name: run.values[value.name] for value in inputs})
        for name, actual in results.items():
            np.testing.assert_array_equal(actual, run.values[name], f"{node.name}: {name}", strict=True)


@pytest.mark.parametrize(("ours", "theirs"), [("encode", titles.run), ("encode_each", example.run_each)])
def test_end_to_end(run, ours, theirs):
    hidden = getattr(example, ours)(run.equal, run.equal.params, run.inputs)
    np.testing.assert_array_equal(hidden, theirs(run.session, run.inputs), strict=True)


def test_all_intermediate_integers(run):
    """In one run of the whole graph, every integer between its nodes is equal."""
    seen = {}

    def watch(node, operands, results):
        if node.operator in ("DynamicQuantizeLinear", "MatMulInteger"):
            seen.update(zip(node.outputs, results, strict=True))

    @jax.jit
    def intermediate(params, inputs):
        run.equal._run(params, inputs, None, watch)
        return seen

    values = intermediate(run.equal.params, run.inputs)
    assert len(values) == 32 * 3 + 56
    for name, actual in values.items():
        np.testing.assert_array_equal(actual, run.values[name], name, strict=True)


@pytest.mark.full
def test_mesh(run):
    """With the sentences and the columns of the weights split over 8 devices, the bits are still onnxruntime's."""
    mesh = jax.make_mesh((4, 2), ("sentences", "columns"), axis_types=(AxisType.Auto,) * 2)

    def sharding(leaf):
        if is_matrix(leaf):
            return leaf.sharding_for(NamedSharding(mesh, P(None, "columns")))
        return NamedSharding(mesh, P())

    def is_matrix(leaf):
        return isinstance(leaf, jquant.PackedMatrix)

    params = jax.device_put(run.equal.params, jax.tree.map(sharding, run.equal.params, is_leaf=is_matrix))
    inputs = jax.device_put(run.inputs, NamedSharding(mesh, P("sentences")))
    hidden = example.encode(run.equal, params, inputs)
    np.testing.assert_array_equal(hidden, titles.run(run.session, run.inputs), strict=True)


def test_functions_of_jax(run):
    """Their last bits differ from onnxruntime's, which changes the integers of few sentences."""
    hidden = example.encode_each(run.jax_floats, run.jax_floats.params, run.inputs)
    expected = example.run_each(run.session, run.inputs)
    distances = example.cosine_distances(np.asarray(hidden), expected, run.inputs["attention_mask"])
    assert distances.shape == (20,)
    assert distances.min() > 0
    assert np.median(distances) <= 1e-12
    assert distances.max() <= 0.05


@pytest.mark.gate
def test_document():
    need_exact_products(np.uint8, np.int8)
    run_document("docs/evidence.md", "A language model's encoder")
