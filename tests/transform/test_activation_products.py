"""Products of two activations, such as those of attention, which only the pattern "activation_matmul" matches."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.compositions import NumPy, Operators, assert_equal_leaves
from support.draw import Draw
from support.networks import Float, recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import Scheme

SCHEMES = {
    "tensor": Scheme(),
    "tensor, symmetric": Scheme(activation_type="INT8"),
    "row": Scheme(activations="DYNAMIC_ROW"),
}
SHAPES = {  # einsums, and the sizes of their letters
    "ij,jk->ik": {"i": 5, "j": 7, "k": 3},
    "ij,kj->ki": {"i": 5, "j": 7, "k": 3},
    "ijk,lkj->il": {"i": 5, "j": 4, "k": 3, "l": 6},
    "btnh,bsnh->bnts": {"b": 2, "t": 5, "n": 3, "h": 8, "s": 6},
    "bnts,bsnh->btnh": {"b": 2, "t": 5, "n": 3, "h": 8, "s": 6},
    "btkgh,bskh->bkgts": {"b": 2, "t": 3, "k": 2, "g": 3, "h": 8, "s": 4},
    "ij,j->i": {"i": 5, "j": 7},
}
PARAMS = {"scale": jnp.float32(0.5)}  # a function without sites needs parameters all the same


def pairs(scheme):
    return transform.Recipe([("activation_matmul", scheme)])


def draw_pair(letters, dtype):
    draw = Draw(len(letters))
    operands = letters.partition("->")[0].split(",")
    return [draw.input(*(SHAPES[letters][letter] for letter in operand)).astype(dtype) for operand in operands]


@one_in(
    9,
    ("letters", "dtype", "scheme"),
    [
        (*case, scheme)
        for scheme in SCHEMES
        for case in (
            *((letters, "float32") for letters in SHAPES),
            ("btnh,bsnh->bnts", "bfloat16"),
            ("ij,kj->ki", "float16"),
        )
    ],
    gate=3,
)
def test_equal_bits(letters, scheme, dtype, count):
    """`dynamic_quantize_linear` twice and `matmul_integer_to_float`, and NumPy: eager, jitted, exported and mapped."""
    x, y = draw_pair(letters, jnp.dtype(dtype))
    quantization = pairs(SCHEMES[scheme])
    apply = lambda params, x, y: Float().activation_product(letters, x, y)  # noqa: E731
    quantized_apply, stored = transform.quantize(apply, PARAMS, quantization, x, y)
    expected = NumPy(quantization, {}).activation_product(letters, x, y)
    composed = Operators(quantization, {}).activation_product(letters, jnp.asarray(x), jnp.asarray(y))
    types = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (x, y)]
    exported = export.export(jax.jit(quantized_apply))(stored, *types)
    results = quantized_apply(stored, x, y), jax.jit(quantized_apply)(stored, x, y), exported.call(stored, x, y)
    for result in (composed, *results):
        assert_equal_leaves(result, expected)
    both = [np.stack([each, -each[::-1]]) for each in (x, y)]
    mapped = jax.vmap(quantized_apply, (None, 0, 0))(stored, *both)
    rows = [NumPy(quantization, {}).activation_product(letters, *each) for each in zip(*both, strict=True)]
    assert_equal_leaves(mapped, np.stack(rows))
    count("results", expected.size * 6)


def attention(ops, p, x):
    """Two layers of causal attention in a loop; `ops` computes the products."""

    def layer(x, p):
        q, k, v = (ops.product("btd,dnh->btnh", x, p[name], site=f"layers/{name}") for name in "qkv")
        scores = ops.activation_product("btnh,bsnh->bnts", q, k)
        scores = jnp.where(np.tri(x.shape[1], dtype=bool)[None, None], scores, -jnp.inf)
        mixed = ops.activation_product("bnts,bsnh->btnh", jax.nn.softmax(scores), v)
        return x + ops.product("btnh,nhd->btd", mixed, p["o"], site="layers/o"), ()

    return ops.layers(layer, x, p["layers"])[0]


def draw_attention():
    draw = Draw(0)
    layers = {name: draw.weights(2, 16, 4, 4, layers=1) for name in "qkv"} | {"o": draw.weights(2, 4, 4, 16, layers=1)}
    return {"layers": jax.tree.map(lambda w: jnp.asarray(w / np.float32(8)), layers)}, jnp.asarray(draw.input(2, 6, 16))


@pytest.mark.gate
@one_in(3, "scheme", SCHEMES, first=2)
def test_attention(scheme):
    """Beside sites with weights, with inputs that both kinds read, and the function's own softmax in between."""
    params, x = draw_attention()
    quantization = transform.Recipe([("activation_matmul", SCHEMES[scheme]), ("*", SCHEMES[scheme])])
    quantized_apply, stored = transform.quantize(lambda p, x: attention(Float(), p, x), params, quantization, x)
    expected = attention(Operators(quantization, {}), params, x)
    with jax.disable_jit():
        assert_equal_leaves(quantized_apply(stored, x), expected)
    jitted = jax.jit(quantized_apply)(stored, x)
    assert jnp.abs(jitted - expected).max() < 0.02 * jnp.abs(expected).max()  # softmax is compiled: another last bit


def dot_product_attention(params, q, k, v):
    return jax.nn.dot_product_attention(q * params["scale"], k, v, is_causal=True)


def qkv():
    return [jax.random.normal(jax.random.key(number), (2, 6, 4, 8)) for number in range(3)]


@pytest.mark.gate
def test_dot_product_attention():
    """Both of its products are found, and named by their einsums."""
    rows = transform.sites(dot_product_attention, PARAMS, *qkv(), recipe=pairs(Scheme(activations="DYNAMIC_ROW")))
    assert [(row.kind, row.reason, row.scheme) for row in rows] == [("activation_matmul", None, "both DYNAMIC_ROW INT8")] * 2
    assert all("BNTS" in row.name and row.name.startswith("activation_matmul/") for row in rows)
    quantized_apply, stored = transform.quantize(dot_product_attention, PARAMS, pairs(Scheme()), *qkv())
    assert repr(quantized_apply) == "<quantized function of dot_product_attention: 2 sites>"
    exact = dot_product_attention(PARAMS, *qkv())
    error = jax.jit(quantized_apply)(stored, *qkv()) - exact
    assert 1e-4 < jnp.std(error) / jnp.std(exact) < 0.03
    more = [jnp.concatenate([each, each], axis=1) for each in qkv()]  # another length
    assert quantized_apply(stored, *more).shape == (2, 12, 4, 8)


def test_only_its_own_pattern_matches():
    params, x = draw_attention()
    apply = lambda p, x: attention(Float(), p, x)  # noqa: E731
    rows = transform.sites(apply, params, x)
    floats = [(row.name, row.kind, row.reason) for row in rows if row.reason]
    reason = "only the pattern activation_matmul matches it"
    assert [(kind, why) for _, kind, why in floats] == [("activation_matmul", reason)] * 2
    assert len(rows) == 6
    rules = [(floats[1][0], None), ("activation_matmul*", Scheme()), ("*", Scheme())]
    by_name = {row.name: row.reason for row in transform.sites(apply, params, x, recipe=transform.Recipe(rules))}
    assert [by_name[name] for name, *_ in floats] == [None, "the recipe leaves it in float"]
    with pytest.raises(transform.TransformError, match=re.escape("pattern 'activation_matmul#9' matches no site")):
        transform.sites(apply, params, x, recipe=transform.Recipe([("activation_matmul#9", Scheme()), ("*", Scheme())]))


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Scheme(activations="STATIC"), "activations is STATIC; both operands are activations: pass DYNAMIC or DYNAMIC_ROW"),
        (Scheme(activations="FLOAT"), "activations is FLOAT; both operands are activations"),
        (Scheme(weight_type="INT4", block_size=32), "Scheme(weight_type='INT4', block_size=32) is for weights"),
        (Scheme(weights="PER_TENSOR"), "Scheme(weights='PER_TENSOR') is for weights, of which it has none: leave that out"),
    ],
)
def test_refused_schemes(scheme, message):
    with pytest.raises(transform.TransformError, match=re.escape(message)):
        transform.quantize(dot_product_attention, PARAMS, pairs(scheme), *qkv())


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (lambda p, x: jax.nn.one_hot(x[0].astype(int), 8) @ x.T, "an operand consists of zeros and ones"),
        (lambda p, x: x.astype(jnp.int32) @ x.astype(jnp.int32).T, "an operand is int32"),
        (lambda p, x: x[0][:, None] @ x[:1], "it sums over no dimension"),
    ],
    ids=["one-hot", "integers", "outer product"],
)
def test_products_that_stay_float(apply, reason):
    (row,) = transform.sites(apply, PARAMS, jnp.ones((8, 8)), recipe=pairs(Scheme()))
    assert reason in str(row.reason)


@one_in(3, "scheme", SCHEMES)
def test_derivatives(scheme):
    """The straight-through derivative, in training and of the quantized function: that of the product of rounded floats."""
    x, y = map(jnp.asarray, draw_pair("ij,jk->ik", np.float32))
    apply = lambda params, x, y: params["scale"] * (x @ y) ** 2  # noqa: E731
    quantization = pairs(SCHEMES[scheme])
    aware = transform.quantization_aware(apply, quantization)
    straight, stored = transform.quantize(apply, PARAMS, quantization, x, y, derivative="STRAIGHT_THROUGH")
    values, gradients = [], []
    for function, params in ((aware, PARAMS), (straight, stored)):
        value, gradient = jax.value_and_grad(lambda x, y, f=function, p=params: f(p, x, y).sum(), (0, 1))(x, y)
        values.append(value)
        gradients.append(gradient)
    np.testing.assert_allclose(*values, rtol=1e-5)
    jax.tree.map(lambda *each: np.testing.assert_allclose(*each, rtol=1e-4, atol=1e-5), *gradients)
    exact = jax.grad(lambda x, y: apply(PARAMS, x, y).sum(), (0, 1))(x, y)
    for ours, floats in zip(gradients[1], exact, strict=True):
        assert 1e-4 < jnp.abs(ours - floats).max() / jnp.abs(floats).max() < 0.1
    without, _ = transform.quantize(apply, PARAMS, quantization, x, y)
    np.testing.assert_array_equal(without(stored, x, y), straight(stored, x, y))
    with pytest.raises(transform.TransformError, match="no derivative through activation_matmul"):
        jax.grad(lambda x: without(stored, x, y).sum())(x)


@pytest.mark.gate
def test_report(tmp_path):
    """The noise of a product is that of its own operands; it has no bytes, and is drawn."""
    params, x = draw_attention()
    rules = [("activation_matmul", Scheme(activations="DYNAMIC_ROW")), *recipe(Scheme()).rules]
    report = transform.report(lambda p, x: attention(Float(), p, x), params, transform.Recipe(rules), x)
    rows = [row for row in report.sites if row.kind == "activation_matmul"]
    assert len(rows) == 2
    assert all(25 < row.snr < 60 and not row.float_bytes and not row.quantized_bytes and not row.range for row in rows)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra: examples)")
    report.draw(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000
