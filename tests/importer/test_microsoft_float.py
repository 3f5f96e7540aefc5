"""com.microsoft's floating-point operators, one node at a time, against onnxruntime."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


def node(operator, *inputs, outputs=("output",), domain="com.microsoft", opset=17, **attributes):
    """A model of one node on inputs of these shapes and types; None for an input, or "" for an output, leaves it out."""
    helper = onnx.helper
    names = [f"input{i}" if x is not None else "" for i, x in enumerate(inputs)]
    declared_inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if name
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, domain=domain, **attributes)],
        "graph",
        declared_inputs,
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def declare_outputs(model, results):
    """Declares the shapes and types of the outputs, which a valid model has to do."""
    for value, result in zip(model.graph.output, results, strict=True):
        dtype = onnx.helper.np_dtype_to_tensor_dtype(result.dtype)
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, dtype, result.shape))
    return model


def check(operator, *inputs, **options):
    """Compares every output with onnxruntime's, within 1e-5."""
    model = node(operator, *inputs, **options)
    arrays = {f"input{i}": x for i, x in enumerate(inputs) if x is not None}
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    expected = session.run(None, arrays)
    ours = jquant.onnx.load(declare_outputs(model, expected))
    actual = jax.jit(ours)(ours.params, arrays)
    for name, value in zip(ours.outputs, expected, strict=True):
        assert actual[name].shape == value.shape, name
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_activations():
    x, bias = normal(3, 50) * 4, normal(50)
    check("Gelu", x)
    check("BiasGelu", x, bias)
    check("FastGelu", x)
    check("FastGelu", x, bias)
    check("QuickGelu", x)
    check("QuickGelu", x, alpha=0.7)


@pytest.mark.parametrize("opset", [11, 17])
def test_normalizations_in_the_domain_of_onnx(opset):
    x = normal(2, 3, 8)
    check("SimplifiedLayerNormalization", x, normal(8), domain="", opset=opset, outputs=["output0", "output1"])
    check("SimplifiedLayerNormalization", x, normal(3, 8), domain="", opset=opset, axis=1, epsilon=0.1)
    check("LayerNormalization", x, normal(8), normal(8), domain="", opset=opset, outputs=["output0", "output1", "output2"])
    check("LayerNormalization", x, normal(3, 8), domain="", opset=opset, axis=1, epsilon=0.1)


@pytest.mark.parametrize(
    ("operator", "beta"), [("SkipLayerNormalization", [normal(8)]), ("SkipSimplifiedLayerNormalization", [])]
)
def test_skipped_normalizations(operator, beta):
    x, gamma, outputs = normal(2, 3, 8), normal(8), ["output", "", "", "sum"]
    check(operator, x, normal(2, 3, 8), gamma, *beta)
    check(operator, x, normal(2, 3, 8), gamma, *beta, normal(8), epsilon=0.1, outputs=outputs)
    check(operator, x, normal(1, 3, 8), gamma, *beta, outputs=outputs)
    check(operator, x, normal(3, 8), gamma)


def test_embeddings():
    ids, segments = RNG.integers(0, 20, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
    words, positions, segment_table = normal(20, 8), normal(9, 8), normal(2, 8)
    gamma, beta = normal(8), normal(8)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 2]], np.int32)
    position_ids = RNG.integers(0, 9, (2, 5)).astype(np.int32)
    operator = "EmbedLayerNormalization"
    check(operator, ids, segments, words, positions, segment_table, gamma, beta, mask, outputs=["output", "counts"])
    without_segments = ids, None, words, positions, None, gamma, beta, None
    check(operator, *without_segments, position_ids, outputs=["output", "", "sum"], epsilon=0.1)
    check(operator, *without_segments, position_ids[:1], mask_index_type=0)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_products_of_matrices(trans_a, trans_b):
    a = normal(5, 4) if trans_a else normal(4, 5)
    b = normal(6, 5) if trans_b else normal(5, 6)
    check("FusedMatMul", a, b, transA=trans_a, transB=trans_b, alpha=0.5)
    check("FusedMatMul", np.stack([a] * 3), np.stack([b] * 3), transA=trans_a, transB=trans_b)
    batched = {"transA": trans_a, "transB": trans_b, "transBatchA": 1, "transBatchB": 1}
    check("FusedMatMul", np.stack([a] * 3, 1), np.stack([b] * 3, 1), **batched)
    for activation in ("Relu", "Sigmoid", "Tanh", "LeakyRelu"):
        options = {"activation_alpha": 0.3} if activation == "LeakyRelu" else {}
        check("FusedGemm", a, b, normal(6), transA=trans_a, transB=trans_b, beta=0.5, activation=activation, **options)


@pytest.mark.parametrize(
    ("activation", "params"),
    [
        ("", []),
        ("Relu", []),
        ("Sigmoid", []),
        ("Tanh", []),
        ("LeakyRelu", [0.3]),
        ("Clip", [-1.0, 1.0]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_convolutions(activation, params):
    options = {"activation": activation} if activation else {}
    options |= {"activation_params": params} if params else {}
    x, w, b = normal(2, 4, 7, 6), normal(6, 4, 3, 3), normal(6)
    check("FusedConv", x, w, b, **options)
    check("FusedConv", x, w, b, normal(2, 6, 4, 3), strides=[2, 2], pads=[1, 1, 1, 1], **options)
    check("FusedConv", x, normal(8, 1, 3, 3), group=4, auto_pad="SAME_UPPER", **options)
    check("FusedConv", x, normal(8, 2, 3, 3), group=2, dilations=[2, 1], **options)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    cos, sin = normal(9, 4), normal(9, 4)
    for positions in (np.array([[0, 3, 2], [8, 1, 4]], np.int64), np.array([2], np.int64)):
        check("RotaryEmbedding", normal(2, 3, 16), positions, cos, sin, interleaved=interleaved)
        check("RotaryEmbedding", normal(2, 2, 3, 8), positions, cos, sin, interleaved=interleaved)
        partial = {"num_heads": 2, "rotary_embedding_dim": 8, "interleaved": interleaved}
        check("RotaryEmbedding", normal(2, 3, 24), positions, cos, sin, **partial)


# At least one position of every row counts: float32 has few digits for scores near -10000, and sums in another order differ.
MASKS = {
    "none": None,
    "ends": np.array([3, 5], np.int32),
    "ends and starts": np.array([3, 5, 0, 1], np.int32),
    "keys": np.array([[1, 0, 1, 1, 0], [1, 1, 0, 0, 1]], np.int32),
    "queries and keys": np.maximum(RNG.integers(0, 2, (2, 5, 5)), np.eye(1, 5, dtype=int)).astype(np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask, unidirectional):
    x, weights, bias = normal(2, 5, 12), normal(12, 24), normal(24)
    options = {"num_heads": 2, "unidirectional": unidirectional}
    check("Attention", x, weights, bias, MASKS[mask], **options)
    check(
        "Attention",
        x,
        weights,
        bias,
        MASKS[mask],
        None,
        normal(2, 2, 5, 5),
        outputs=["output0", "output1"],
        scale=0.3,
        **options,
    )
    sized = {"qkv_hidden_sizes": [8, 8, 12], "mask_filter_value": -3.0}
    check("Attention", x, normal(12, 28), normal(28), MASKS[mask], **sized, **options)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_past_keys_and_values(unidirectional):
    x, weights, bias, past = normal(2, 3, 12), normal(12, 24), normal(24), normal(2, 2, 2, 4, 4)
    options = {"num_heads": 2, "unidirectional": unidirectional, "outputs": ["output", "present"]}
    check("Attention", x, weights, bias, None, past, **options)
    check("Attention", x, weights, bias, np.array([[1] * 7, [0] * 3 + [1] * 4], np.int32), past, **options)


def test_unsupported_attributes_of_attention_are_named():
    operands = [normal(2, 3, 12), normal(12, 24), normal(24)]
    model = jquant.onnx.load(declare_outputs(node("Attention", *operands, num_heads=2, do_rotary=1), [operands[0]]))
    with pytest.raises(ModelError, match="do_rotary"):
        model(model.params, {f"input{i}": x for i, x in enumerate(operands)})


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(mask, unidirectional):
    q, k, v, bias = normal(2, 5, 8), normal(2, 5, 8), normal(2, 5, 12), normal(28)
    options = {"num_heads": 2, "unidirectional": unidirectional}
    padding_mask = MASKS[mask] if mask != "ends and starts" else None
    check("MultiHeadAttention", q, k, v, bias, padding_mask, **options)
    check(
        "MultiHeadAttention",
        q,
        k,
        v,
        None,
        padding_mask,
        normal(1, 2, 5, 5),
        scale=0.3,
        mask_filter_value=-3.0,
        **options,
    )


def test_keys_and_values_of_earlier_calls():
    check("MultiHeadAttention", normal(2, 3, 8), normal(2, 2, 5, 4), normal(2, 2, 5, 4), num_heads=2)
    check("MultiHeadAttention", normal(2, 3, 8), normal(2, 2, 5, 4), normal(2, 2, 5, 4), normal(24), num_heads=2)


def test_packed_heads():
    """Packed operands give the same results as separate ones. onnxruntime supports them on GPUs alone."""
    parts = [normal(2, 5, 2, 4) for _ in range(3)]
    flat = [each.reshape(2, 5, 8) for each in parts]
    results = []
    for operands in ([np.stack(parts, 3)], [flat[0], np.stack(parts[1:], 3)], flat):
        model = jquant.onnx.load(declare_outputs(node("MultiHeadAttention", *operands, num_heads=2), flat[:1]))
        results.append(model(model.params, {f"input{i}": x for i, x in enumerate(operands)})["output"])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[2])


def test_past_keys_and_values():
    q, k, v, past = normal(2, 3, 8), normal(2, 3, 8), normal(2, 3, 8), normal(2, 2, 4, 4)
    check(
        "MultiHeadAttention",
        q,
        k,
        v,
        None,
        None,
        None,
        past,
        normal(2, 2, 4, 4),
        num_heads=2,
        outputs=["output0", "output1", "output2"],
    )
    check(
        "MultiHeadAttention",
        q,
        k,
        v,
        normal(24),
        None,
        normal(2, 2, 3, 7),
        past,
        past,
        num_heads=2,
        outputs=["output0", "output1", "output2"],
    )
