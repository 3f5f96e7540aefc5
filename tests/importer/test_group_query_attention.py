"""GroupQueryAttention of com.microsoft against onnxruntime's, over the attributes of its schema."""

import dataclasses

import jax
import jax.test_util
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

INPUTS = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
    "query_seqlens",
]
OUTPUTS = ["output", "present_key", "present_value", "output_qk"]


@dataclasses.dataclass
class Case:
    """A node, its inputs, and which tokens of the queries and of the cache count, by sequence."""

    inputs: dict
    attributes: dict
    queries: list
    keys: list

    def model(self, outputs=4):
        helper = onnx.helper
        names = [name if name in self.inputs else "" for name in INPUTS]
        while not names[-1]:
            names.pop()
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in self.inputs.items()
        ]
        node = helper.make_node("GroupQueryAttention", names, OUTPUTS[:outputs], domain="com.microsoft", **self.attributes)
        results = [helper.make_empty_tensor_value_info(name) for name in OUTPUTS[:outputs]]
        versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "graph", declared, results)
        return helper.make_model(graph, opset_imports=versions, ir_version=9)


def random_case(rng, dtype=np.float32):
    """Of sequences that begin, that go on by one token, or one sequence that goes on by several."""

    def floats(*shape):
        return rng.standard_normal(shape).astype(dtype)

    def one_of(*values):
        return values[rng.integers(len(values))]

    kind = one_of("prompt", "padded prompt", "token", "continued", "chunks", "window")
    key_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    heads, width = key_heads * group, 32 if kind == "window" else one_of(16, 32)
    batch = 1 if kind in ("continued", "window") else int(rng.integers(1, 4))
    tokens = 1 if kind == "token" else int(rng.integers(2, 7))
    capacity = int(rng.integers(14, 20))
    shares_buffer = kind in ("chunks", "window") or one_of(True, False)
    ends = rng.integers(tokens, capacity - tokens, batch)
    inputs, attributes = {}, {"num_heads": heads, "kv_num_heads": key_heads}
    counts = np.full(batch, tokens)
    if kind == "prompt":
        ends[:] = tokens
    elif kind == "padded prompt":
        ends = counts = rng.integers(1, tokens + 1, batch)
    elif kind == "chunks":
        counts = np.minimum(rng.integers(0, tokens + 1, batch), ends)
        inputs["query_seqlens"] = counts.astype(np.int32)
    total = tokens if "prompt" in kind else int(ends.max()) + (int(rng.integers(0, 2)) if kind == "chunks" else 0)
    window = int(rng.integers(1, 6)) if kind == "window" or rng.random() < 0.3 else -1
    if window > 0:
        attributes["local_window_size"] = window
    elif kind != "chunks" and rng.random() < 0.2:
        attributes["causal"] = 0
    if kind == "window":
        attributes["sliding_window_cache"] = 1
        capacity = window + int(rng.integers(0, 5))
        ends = ends + int(rng.integers(0, 10))
        total = int(ends.max())
    if rng.random() < 0.5:
        inputs["query"] = floats(batch, tokens, (heads + 2 * key_heads) * width)
    else:
        inputs["query"] = floats(batch, tokens, heads * width)
        inputs["key"], inputs["value"] = floats(2, batch, tokens, key_heads * width)
    inputs["seqlens_k"] = (ends - 1).astype(np.int32)
    inputs["total_sequence_length"] = np.array(one_of(total, [total]), np.int32)
    past = capacity if shares_buffer else total - tokens
    stored, form = dtype, one_of("NONE", "NONE", "PER_TENSOR", "PER_CHANNEL")
    if form != "NONE" and dtype == np.float32:
        bits = one_of(8, 4)
        attributes |= {"k_quant_type": form, "v_quant_type": form, "kv_cache_bit_width": bits}
        shape = (1,) if form == "PER_TENSOR" else (1, key_heads, 1, width)
        for name in ("k_scale", "v_scale"):
            inputs[name] = (rng.uniform(0.5, 2, shape) * (0.02 if bits == 8 else 0.4)).astype(np.float32)
        stored = np.int8 if bits == 8 else np.uint8
    if past > 0 or stored != dtype:
        bytes_in_row = width // 2 if stored == np.uint8 else width
        shape = batch, key_heads, past, bytes_in_row
        integers = rng.integers(-128, 128, (2, *shape)).astype(np.int8).view(np.uint8 if stored == np.uint8 else np.int8)
        inputs["past_key"], inputs["past_value"] = floats(2, *shape) if stored == dtype else integers
    if rng.random() < 0.5:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        inputs["cos_cache"], inputs["sin_cache"] = floats(2, 40, one_of(8, width // 2))
        if rng.random() < 0.3 and kind != "chunks":
            inputs["position_ids"] = rng.integers(0, 30, (batch, tokens))
            if total == tokens:
                inputs["position_ids"][:] = inputs["position_ids"][0, 0] + np.arange(tokens)
    if rng.random() < 0.3:
        inputs["attention_bias"] = floats(one_of(1, batch), one_of(1, heads), tokens, total)
    if rng.random() < 0.3:
        inputs["head_sink"] = floats(heads)
    elif rng.random() < 0.3:
        attributes["smooth_softmax"] = 1
    if rng.random() < 0.3:
        attributes["softcap"] = 1.5
    if rng.random() < 0.5:
        attributes["scale"] = 0.3
    held = ends
    if kind == "window":
        removed = capacity - window + 1
        held = ends - removed * np.maximum(-(-(ends - capacity) // removed), 0)
    elif rng.random() < 0.3:
        attributes["qk_output"] = int(rng.integers(1, 3))
    return Case(inputs, attributes, list(counts), list(held))


def theirs(case, outputs):
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    proto = case.model(outputs).SerializeToString()
    return onnxruntime.InferenceSession(proto, settings, providers=["CPUExecutionProvider"]).run(None, case.inputs)


def compare(case, tolerance):
    """Asserts that what counts of the results agrees; returns how many elements were compared."""
    outputs = 4 if "qk_output" in case.attributes else 3
    expected = theirs(case, outputs)
    constants = {"total_sequence_length": case.inputs["total_sequence_length"]}
    model = jquant.onnx.load(case.model(outputs), constants=constants)
    arrays = {name: x for name, x in case.inputs.items() if name not in constants}
    actual = [np.asarray(jax.jit(model)(model.params, arrays)[name]) for name in OUTPUTS[:outputs]]
    compared = 0
    for position, (ours, other) in enumerate(zip(actual, expected, strict=True)):
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape), OUTPUTS[position]
        for sequence in range(len(ours)):
            if position in (1, 2):
                pair = [x[sequence, :, : case.keys[sequence]] for x in (ours, other)]
            elif position == 3:
                pair = [x[sequence, :, : case.queries[sequence]] for x in (ours, other)]
            else:
                pair = [x[sequence, : case.queries[sequence]] for x in (ours, other)]
            compared += pair[0].size
            is_copied = position == 2 or (position == 1 and not case.attributes.get("do_rotary"))
            if is_copied:
                np.testing.assert_array_equal(*pair, err_msg=OUTPUTS[position])
            elif ours.dtype.kind in "iu":
                assert np.mean(pair[0] != pair[1]) < 0.01, OUTPUTS[position]  # an angle may differ in its last bit
            else:
                pair = [x.astype(np.float32) for x in pair]
                np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance, err_msg=OUTPUTS[position])
    return compared


@one_in(15, "block", range(15), others="full")  # of 20 nodes
def test_random_nodes(block):
    compared = sum(compare(random_case(np.random.default_rng(seed)), 2e-5) for seed in range(20 * block, 20 * block + 20))
    assert compared > 5000


@one_in(5, "block", range(5), others="full")
def test_random_nodes_in_float16(block):
    """onnxruntime rounds the scores to float16 now and then; here they stay float32."""
    seeds = range(1000 + 20 * block, 1020 + 20 * block)
    assert sum(compare(random_case(np.random.default_rng(seed), np.float16), 6e-3) for seed in seeds) > 5000


def simple_case(**changes):
    """Two heads of width 16 that share keys; 2 sequences of 3 tokens, in a cache of 8 positions that holds 4 of each."""
    rng = np.random.default_rng(5)
    inputs = {
        "query": rng.standard_normal((2, 3, 32), np.float32),
        "key": rng.standard_normal((2, 3, 16), np.float32),
        "value": rng.standard_normal((2, 3, 16), np.float32),
        "past_key": rng.standard_normal((2, 1, 8, 16), np.float32),
        "past_value": rng.standard_normal((2, 1, 8, 16), np.float32),
        "seqlens_k": np.array([6, 6], np.int32),
        "total_sequence_length": np.array(7, np.int32),
    }
    inputs = {name: x for name, x in (inputs | changes).items() if x is not None}
    attributes = {name: inputs.pop(name) for name in list(inputs) if name not in INPUTS}
    return Case(inputs, {"num_heads": 2, "kv_num_heads": 1} | attributes, [3, 3], [7, 7])


def ours(case, constants=(), outputs=3):
    """The results of a node, jitted, with these inputs fixed."""
    fixed = {name: case.inputs[name] for name in constants}
    model = jquant.onnx.load(case.model(outputs), constants=fixed)
    arrays = {name: x for name, x in case.inputs.items() if name not in fixed}
    results = jax.jit(model)(model.params, arrays)
    return [results[name] for name in OUTPUTS[:outputs]]


def test_a_total_length_that_is_not_known():
    """Then the cache has the length that it had. Sequences of a batch may also go on by several tokens at once."""
    case = simple_case()
    for unknown, known in zip(ours(case), ours(case, ["total_sequence_length"]), strict=True):
        np.testing.assert_array_equal(unknown, known)
    for sequence in range(2):
        alone = simple_case(
            **{name: case.inputs[name][sequence : sequence + 1] for name in case.inputs if name[:5] != "total"}
        )
        for together, expected in zip(ours(case), theirs(alone, 3), strict=True):
            counts = (slice(None), slice(7)) if together.ndim == 4 else ...
            np.testing.assert_allclose(together[sequence][counts], expected[0][counts], rtol=2e-5, atol=2e-5)


def test_normalized_heads():
    """onnxruntime normalizes in this node on GPUs alone: against the formula of SimplifiedLayerNormalization before it."""
    rng = np.random.default_rng(6)
    weights = {f"{name}_norm_weight": rng.standard_normal(16, np.float32) for name in "qk"}
    case = simple_case(**weights, qk_norm_epsilon=1e-5, k_norm_epsilon=1e-3)
    plain = simple_case()
    for name, letter, epsilon in (("query", "q", 1e-5), ("key", "k", 1e-3)):
        x = case.inputs[name].reshape(2, 3, -1, 16)
        normalized = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weights[f"{letter}_norm_weight"]
        plain.inputs[name] = normalized.reshape(case.inputs[name].shape)
    for actual, expected in zip(ours(case), ours(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_derivatives():
    """Of the attention in the float inputs, against differences."""
    case = simple_case(do_rotary=1, softcap=2.0, smooth_softmax=1, cos_cache=np.ones((9, 8), np.float32))
    case.inputs["sin_cache"] = np.full((9, 8), 0.5, np.float32)
    model = jquant.onnx.load(case.model(3))

    def total(inputs):
        return sum(value.sum() for value in model(model.params, {**case.inputs, **inputs}).values())

    point = {name: case.inputs[name] for name in ("query", "key", "value", "past_key", "past_value")}
    jax.test_util.check_grads(jax.jit(total), (point,), order=1, modes=("fwd", "rev"), rtol=2e-2, atol=2e-2, eps=1e-2)


def test_what_is_not_seen():
    """Keys beyond the end of a sequence change neither results nor derivatives, however large the scores with them are."""
    case = simple_case(seqlens_k=np.array([4, 4], np.int32))
    model = jquant.onnx.load(case.model(3))

    def gradient(past_key):
        inputs = case.inputs | {"past_key": past_key}
        return jax.grad(lambda query: model(model.params, inputs | {"query": query})["output"].sum())(case.inputs["query"])

    beyond = np.where(np.arange(8)[:, None] < 5, case.inputs["past_key"], np.float32(1e4))
    expected = gradient(case.inputs["past_key"])
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(gradient(beyond), expected, rtol=1e-5, atol=1e-6)


def test_debugging_modes():
    """Without jit, and with a check for NaN: no alarm for a sequence without queries, nor for a query that sees no key."""
    bias = np.zeros((1, 1, 3, 7), np.float32)
    bias[..., 0, :] = -np.inf
    case = simple_case(query_seqlens=np.array([0, 3], np.int32), seqlens_k=np.array([-1, 6], np.int32), attention_bias=bias)
    model = jquant.onnx.load(case.model(3), constants={"total_sequence_length": case.inputs.pop("total_sequence_length")})

    def results_and_gradient(query):
        def total(query):
            results = model(model.params, case.inputs | {"query": query})
            return sum(value.sum() for value in results.values()), results

        return jax.grad(total, has_aux=True)(query)

    expected = jax.jit(results_and_gradient)(case.inputs["query"])
    for mode in (jax.disable_jit(), jax.debug_nans(True)):
        with mode:
            actual = results_and_gradient(case.inputs["query"])
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), actual, expected)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(expected))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3, "kv_num_heads": 2}, "num_heads, 3, is no multiple of kv_num_heads, 2"),
        ({"value": None}, "key and value must both be given, or both left out"),
        ({"past_value": None}, "past_key and past_value must both be given, or both left out"),
        ({"key": np.zeros((2, 2, 16), np.float32)}, "key has 2 tokens; it must have those of query, 3"),
        ({"past_key": None, "past_value": None}, "without a cache, total_sequence_length must be known"),
        ({"do_rotary": 1}, "do_rotary needs cos_cache and sin_cache"),
        ({"k_quant_type": "PER_TENSOR"}, "a cache with the scales PER_TENSOR needs k_scale and v_scale"),
        ({"k_quant_type": "PER_TENSOR", "k_scale": np.ones(1, np.float32), "kv_cache_bit_width": 2}, "a cache of 2 bits"),
        ({"q_norm_weight": np.ones(16, np.float32)}, "q_norm_weight and k_norm_weight must both be given"),
        (
            {"sliding_window_cache": 1, "local_window_size": 9},
            "a sliding_window_cache of 8 rows with a local_window_size of 9",
        ),
        ({"past_key": None, "past_value": None, "sliding_window_cache": 1}, "sliding_window_cache needs past_key"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ModelError, match=message):
        ours(simple_case(**changes))


def test_products_of_an_unknown_total_length():
    with pytest.raises(ModelError, match="output_qk needs a total_sequence_length that is known"):
        ours(simple_case(qk_output=1), outputs=4)


def test_cache_without_room():
    """For 8 tokens in a cache of 5: an error outside of `jit`, NaN inside, and the cache grows with a constant total."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[1,3,8] q, float[1,3,8] k, float[1,3,8] v, float[1,1,c,8] pk, float[1,1,c,8] pv, int32[1] last, int32[1] total)
      => (float[1,3,8] y, float[1,1,n,8] k2, float[1,1,n,8] v2) {
      y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, k, v, pk, pv, last, total)
    }""")
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 3, 8), np.float32) for name in "qkv"}
    inputs |= {name: rng.standard_normal((1, 1, 5, 8), np.float32) for name in ("pk", "pv")}
    inputs["last"], total = np.int32([7]), np.int32([8])
    model = jquant.onnx.load(proto)
    message = r"room for 5 tokens, and total_sequence_length is 8; .*constants="
    with pytest.raises(jquant.onnx.ModelError, match=message):
        model(model.params, inputs | {"total": total})
    assert np.isnan(jax.jit(model)(model.params, inputs | {"total": total})["y"]).all()
    growing = jquant.onnx.load(proto, constants={"total": total})
    expected = jax.jit(growing)(growing.params, inputs)
    room = {name: np.pad(inputs[name], ((0, 0), (0, 0), (0, 3), (0, 0))) for name in ("pk", "pv")}
    actual = jax.jit(model)(model.params, inputs | room | {"total": total})
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])
