"""Quantized networks, exported and run in onnxruntime.

Each integer node, given the operands that onnxruntime had, computes the integers of jquant. End to end, floats between the
nodes differ in their last bits. An integer could, where it is rounded from next to a tie; with these inputs, none does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.saturation import need_exact_products_of

from jquant import kv_cache, transform

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (extra: recipes)")

from exporter.running import run  # noqa: E402

from jquant.onnx import compare  # noqa: E402
from jquant.onnx.exporter import export  # noqa: E402

pytestmark = pytest.mark.usefixtures("as_users_have_it")  # Flax's layers add arrays of different ranks
Scheme = transform.Scheme
SCHEMES = {
    "static": Scheme(activations="STATIC"),
    "static int8": Scheme(activations="STATIC", activation_type="INT8"),
    "dynamic": Scheme(),
    "dynamic int8, tensor": Scheme(weights="PER_TENSOR", activation_type="INT8"),
    "rows": Scheme(activations="DYNAMIC_ROW"),
    "rows, int4 in blocks": Scheme(activations="DYNAMIC_ROW", weight_type="INT4", block_size=8),
    "dynamic, uint4 in blocks": Scheme(weight_type="UINT4", block_size=8, scale_type="FLOAT16"),
    "rows, mxfp4": Scheme(activations="DYNAMIC_ROW", weight_type="MXFP4", block_size=8),
    "dynamic, nvfp4": Scheme(weight_type="NVFP4"),
    "int4": Scheme(activations="FLOAT", weight_type="INT4", block_size=16),
    "int8": Scheme(activations="FLOAT"),
    "mxfp4": Scheme(activations="FLOAT", weight_type="MXFP4", block_size=8),
    "gptq": Scheme(activations="DYNAMIC_ROW", weight_rounding="GPTQ", rotation="HADAMARD"),
    "smoothed": Scheme(smoothing="SMOOTHQUANT"),
    "rotated": Scheme(activations="STATIC", rotation="HADAMARD"),
}
NEEDS_CALIBRATION = {"static", "static int8", "gptq", "smoothed", "rotated"}


class Network(NamedTuple):
    """A function of parameters and a batch, its parameters, and batches."""

    function: object
    params: object
    batches: list


def weights(shape, seed, scale=None):
    generator = np.random.default_rng(seed)
    return (generator.normal(size=shape) / np.sqrt(shape[-2] if scale is None else scale)).astype(np.float32)


def mlp() -> Network:
    params = {"hidden": weights((16, 32), 0), "bias": weights((1, 32), 1, 1), "head": weights((32, 16), 2)}

    def function(params, x):
        hidden = jax.nn.gelu(x @ params["hidden"] + params["bias"])
        return jax.nn.softmax(hidden @ params["head"])

    return Network(function, params, [weights((24, 16), seed, 1) for seed in range(3, 6)])


class _Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(4, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.second = nnx.Conv(8, 8, (3, 3), strides=(2, 2), padding="SAME", feature_group_count=2, rngs=rngs)
        self.head = nnx.Linear(8, 16, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.first(x)))
        x = jax.nn.relu(self.second(x))
        return self.head(x.mean((1, 2)))


def convolutional() -> Network:
    module = _Convolutional(nnx.Rngs(0))
    module.norm.mean[...], module.norm.var[...] = weights((8,), 1, 4), 1 + weights((8,), 2, 1) ** 2
    graph, state = nnx.split(module)
    return Network(
        lambda state, x: nnx.merge(graph, state)(x), state, [weights((6, 8, 8, 4), seed, 1) for seed in range(3, 6)]
    )


LAYERS, WIDTH, HEADS = 2, 16, 2


def _normalized(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale[None, None, :]


def transformer() -> Network:
    params = {
        "scales": 1 + 0.1 * weights((LAYERS, 2, WIDTH), 0, 1),
        "qkv": weights((LAYERS, WIDTH, 3 * WIDTH), 1),
        "out": weights((LAYERS, WIDTH, WIDTH), 2),
        "up": weights((LAYERS, WIDTH, 2 * WIDTH), 3),
        "down": weights((LAYERS, 2 * WIDTH, WIDTH), 4),
        "head": weights((WIDTH, 16), 5),
    }

    def layer(x, layer):
        h = _normalized(x, layer["scales"][0])
        q, k, v = jnp.split((h @ layer["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, -1)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + attended @ layer["out"]
        h = _normalized(x, layer["scales"][1])
        return x + jax.nn.gelu(h @ layer["up"]) @ layer["down"], None

    def function(params, x):
        layers = {name: value for name, value in params.items() if name != "head"}
        return jax.lax.scan(layer, x, layers)[0] @ params["head"]

    return Network(function, params, [weights((2, 6, WIDTH), seed, 1) for seed in range(6, 9)])


def mixture() -> Network:
    """The two best of four experts for each token, whose matrices indices select."""
    params = {"router": weights((WIDTH, 4), 0), "experts": weights((4, WIDTH, 32), 1), "down": weights((4, 32, 16), 2)}

    def function(params, x):
        shares, numbers = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        hidden = jax.nn.relu(jnp.einsum("td,tedh->teh", x, params["experts"][numbers]))
        return jnp.einsum("teh,tehd,te->td", hidden, params["down"][numbers], shares)

    return Network(function, params, [weights((5, WIDTH), seed, 1) for seed in range(3, 6)])


NETWORKS = {"mlp": mlp, "convolutional": convolutional, "transformer": transformer, "mixture": mixture}


@functools.cache
def quantized(network: str, scheme: str):
    function, params, batches = NETWORKS[network]()
    rules = [("router", None), ("*", SCHEMES[scheme])] if network == "mixture" else [("*", SCHEMES[scheme])]
    recipe = transform.Recipe(rules, smallest=1)
    calibration = None
    if scheme in NEEDS_CALIBRATION:
        calibration = transform.calibrate(function, params, [(batch,) for batch in batches], recipe)
    return *transform.quantize(function, params, recipe, batches[0], calibration=calibration), batches[-1]


def require_equal_nodes(model, inputs) -> int:
    """Compares each node that results in integers, given onnxruntime's operands; returns how many integers those are."""
    rows = compare.nodes(model.SerializeToString(), inputs)
    different = {row.operator: row.different for row in rows if row.different}
    assert not different
    return sum(row.integers for row in rows if row.operator in INTEGER_NODES)


INTEGER_NODES = {"MatMulInteger", "ConvInteger", "QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "QLinearConv"}
IN_THE_SUITE = [("mlp", "static"), ("convolutional", "int8"), ("transformer", "dynamic"), ("mixture", "dynamic")]
IN_THE_GATE = [("mlp", "rows, int4 in blocks"), ("convolutional", "static"), ("transformer", "rows")]
IN_THE_GATE += [("mlp", "rows, mxfp4"), ("mixture", "dynamic, nvfp4")]


def check(network: str, scheme: str, *, node_by_node: bool = True) -> None:
    need_exact_products_of(SCHEMES[scheme])
    function, params, x = quantized(network, scheme)
    model = export(function, params, x)
    has_integers = any(node.op_type in INTEGER_NODES for node in model.graph.node)
    assert has_integers == (SCHEMES[scheme].activations != "FLOAT")
    if has_integers and node_by_node:
        assert require_equal_nodes(model, {model.graph.input[0].name: x}) > 0
    expected = np.asarray(jax.jit(function)(params, x))
    for optimized in (False, True):
        (actual,) = run(model, [x], optimized=optimized)
        np.testing.assert_array_equal(actual.argmax(-1), expected.argmax(-1))
        assert np.max(abs(actual - expected)) <= 1e-6 * np.max(abs(expected))  # no integer differs


@pytest.mark.parametrize(("network", "scheme"), IN_THE_SUITE)
def test_networks(network, scheme, gate):
    """Node by node in the gate, and the smallest in the suite, too."""
    check(network, scheme, node_by_node=gate or network == "mlp")


@pytest.mark.gate
@pytest.mark.parametrize(("network", "scheme"), IN_THE_GATE)
def test_more_networks(network, scheme):
    check(network, scheme)


@pytest.mark.full
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_all_networks(network, scheme):
    check(network, scheme)


def test_weights_stay_integers():
    """Those of convolutions, which no node multiplies as they are stored, are dequantized while the model runs."""
    function, params, x = quantized("convolutional", "int8")
    model = export(function, params, x)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer if np.prod(tensor.dims) > 64}
    assert set(types.values()) == {onnx.TensorProto.INT8}
    assert {name.split(".")[2] for name in types} == {"first_kernel", "second_kernel", "head_kernel"}


@pytest.mark.parametrize("scheme", ["static", pytest.param("dynamic", marks=pytest.mark.gate)])
def test_the_form_for_engines(scheme):
    need_exact_products_of(SCHEMES[scheme])
    function, params, x = quantized("mlp", scheme)
    model = export(function, params, x, form="qdq")
    require_equal_nodes(model, {model.graph.input[0].name: x})
    np.testing.assert_allclose(run(model, [x], optimized=False)[0], jax.jit(function)(params, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["INT8", pytest.param("FLOAT32", marks=pytest.mark.full)])
def test_a_step_with_a_cache(dtype):
    """Two tokens more, of which the model returns the cache as well."""
    cache = kv_cache.init(layers=1, batch=2, heads=HEADS, length=8, width=8, dtype=dtype)
    key, value, query = (weights((2, 2, HEADS, 8), seed, 1) for seed in range(3))
    position = np.int32(3)

    def step(query, key, value, cache, position):
        cache = kv_cache.append(cache, key, value, position, layer=0)
        return kv_cache.attend(query, cache, position, layer=0), cache

    operands = query, key, value, cache, position
    expected = jax.tree.leaves(jax.jit(step)(*operands))
    model = export(step, *operands)
    require_equal_nodes(
        model, dict(zip((value.name for value in model.graph.input), jax.tree.leaves(operands), strict=True))
    )
    for optimized in (False, True):
        output, *state = run(model, jax.tree.leaves(operands), optimized=optimized)
        np.testing.assert_allclose(output, expected[0], rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(expected[1:], state, strict=True):
            np.testing.assert_array_equal(mine, theirs)
