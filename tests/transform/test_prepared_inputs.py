"""Inputs that are smoothed and rotated, against compositions by hand, in every type and layout, and the cost of that."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.comparison import assert_equal
from support.compositions import NumPy, Operators, Order, assert_equal_leaves, rotated
from support.draw import Draw, calibrated
from support.experts import ragged_product, selected_product
from support.formats import dequantize, rounded, unpacked
from support.networks import Float, recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import Scheme, adapters

ROTATED, SMOOTHED = {"rotation": "HADAMARD"}, {"smoothing": ("SMOOTHQUANT", 0.75)}
BOTH = {**ROTATED, **SMOOTHED}
INTEGERS = {
    "row, rotated": Scheme(activations="DYNAMIC_ROW", **ROTATED),
    "row, smoothed": Scheme(activations="DYNAMIC_ROW", **SMOOTHED),
    "row, both": Scheme(activations="DYNAMIC_ROW", **BOTH),
    "tensor, both": Scheme(**BOTH),
    "static, rotated": Scheme(activations="STATIC", **ROTATED),
    "int4 by row, both": Scheme(weight_type="INT4", block_size=4, activations="DYNAMIC_ROW", **BOTH),
}
FLOATS = {
    "int4, rotated": Scheme(weight_type="INT4", block_size=4, activations="FLOAT", **ROTATED),
    "int4, smoothed": Scheme(weight_type="INT4", block_size=4, activations="FLOAT", smoothing="AWQ"),
    "int4, both": Scheme(weight_type="INT4", block_size=4, activations="FLOAT", **BOTH),
    "mxfp4, rotated": Scheme(weight_type="MXFP4", activations="FLOAT", **ROTATED),
    "mxfp4, both": Scheme(weight_type="MXFP4", activations="FLOAT", **BOTH),
}
LAYOUTS = {  # the sizes of the letters of einsums; b is the batch, and the products sum over up to 2 ** 5 channels
    "bd,dn->bn": {"d": 24, "n": 6},
    "bhk,hkn->bn": {"h": 4, "k": 8, "n": 6},
    "bhk,nkh->nb": {"h": 3, "k": 4, "n": 6},
    "hbk,hkn->bhn": {"h": 3, "k": 8, "n": 6},
    "btk,hkn->bhtn": {"t": 2, "h": 3, "k": 16, "n": 4},
    "khb,hnk->bn": {"k": 4, "h": 8, "n": 6},
    "bd,dn->nb": {"d": 7, "n": 6},
}
TYPES = "float32", "float16", "bfloat16"
ROWS = 5


def draw_product(letters: str, dtype: str):
    x, w = letters.partition("->")[0].split(",")
    sizes, draw = {"b": ROWS, **LAYOUTS[letters]}, Draw(len(letters))
    spread = 2.0 ** np.arange(-3, 4)[np.arange(sizes[x[-1]]) % 7]  # so that factors differ
    inputs = draw.input(*(sizes[letter] for letter in x)) * (spread if x[-1] != "b" else 1)
    return {"w": draw.weights(*(sizes[letter] for letter in w))}, inputs.astype(jnp.dtype(dtype))


def calibration_of(letters, x, w):
    """A range, and statistics whose channels differ."""
    order = Order(letters, x, w)
    batch, depth, _ = order.weights(w).shape
    observed = calibrated(-3, 2, channels=depth)
    products = np.broadcast_to(observed.products, (batch, depth, depth)) if order.has_batch else observed.products
    return {"w": observed._replace(products=products)}


def quantized_product(letters, dtype, scheme, **options):
    """The quantized function, its parameters and input, and the compositions by hand with NumPy and with operators."""
    params, x = draw_product(letters, dtype)
    calibration = calibration_of(letters, x, params["w"])

    def function(ops, p, x):
        return ops.product(letters, x, ops.cast_weights(p["w"], x.dtype), site="w")

    apply = lambda p, x: function(Float(), p, x)  # noqa: E731
    quantized_apply, stored = transform.quantize(apply, params, recipe(scheme), x, calibration=calibration, **options)
    assert not stored["float"]
    assert set(stored["sites"]["w"]) >= ({"smoothing"} if scheme.smoothing else set())

    def by_hand(kind, x):
        ops = kind(recipe(scheme), calibration, stored=stored["sites"])
        arrays = (params, x) if kind is NumPy else jax.tree.map(jnp.asarray, (params, x))
        return function(ops, *arrays)

    return quantized_apply, stored, params, x, by_hand


@one_in(63, ("letters", "scheme", "dtype"), itertools.product(LAYOUTS, INTEGERS, TYPES), gate=40)
def test_products_of_integers(letters, scheme, dtype, count):
    """Both compositions: eagerly, jitted, rematerialized, mapped, and exported for any number of rows."""
    quantized_apply, stored, _, x, by_hand = quantized_product(letters, dtype, INTEGERS[scheme])
    expected = by_hand(NumPy, x)
    (rows,) = export.symbolic_shape("rows")
    axis = letters.index("b")
    shape = jax.ShapeDtypeStruct([rows if d == axis else size for d, size in enumerate(x.shape)], x.dtype)
    jitted = jax.jit(quantized_apply)
    exported = export.export(jitted)(stored, shape)
    rematerialized = jax.jit(jax.checkpoint(quantized_apply))
    results = (function(stored, x) for function in (quantized_apply, jitted, exported.call, rematerialized))
    for result in (by_hand(Operators, x), *results):
        assert_equal_leaves(result, expected)
    halved = x * x.dtype.type(0.5)
    mapped = jax.jit(jax.vmap(quantized_apply, (None, 0)))(stored, np.stack([x, halved]))
    assert_equal_leaves(mapped, np.stack([expected, by_hand(NumPy, halved)]))
    count("products of smoothed and rotated inputs", 7 * expected.size)


@one_in(31, ("letters", "scheme", "dtype"), itertools.product(LAYOUTS, FLOATS, TYPES), gate=24)
def test_products_of_floats(letters, scheme, dtype, count):
    """The composition of public operators, eagerly. (Compiled, XLA may add in another order.)"""
    quantized_apply, stored, _, x, by_hand = quantized_product(letters, dtype, FLOATS[scheme])
    expected = by_hand(Operators, x)
    assert_equal_leaves(quantized_apply(stored, x), expected)
    count("products of smoothed and rotated inputs", expected.size)


@pytest.mark.parametrize("letters", ["hbk,hkn->bhn", "btk,hkn->bhtn"])
def test_awq_of_batches(letters):
    """X^T X of each matrix of a batch, in the strict mode of JAX."""
    quantized_apply, stored, _, x, by_hand = quantized_product(letters, "float32", FLOATS["int4, smoothed"])
    assert_equal_leaves(quantized_apply(stored, x), by_hand(Operators, x))


@one_in(3, "scheme", ["int4, rotated", "int4, smoothed", "mxfp4, rotated"], first=1)
def test_sums_of_one_term(scheme):
    """Rows that are one-hot when they are multiplied: a factor times a stored weight, compiled as well as eagerly."""
    size, scheme = 16, FLOATS[scheme]
    weights, one_hot = Draw(2).weights(size, 8), np.eye(size, dtype=np.float32)
    x = one_hot if scheme.rotation is None else rotated(one_hot)
    calibration = {"matmul": calibrated(0, 1)}
    quantized_apply, stored = transform.quantize(lambda w, x: x @ w, weights, recipe(scheme), x, calibration=calibration)
    if scheme.rotation is not None:
        expected = rounded(np, rotated(weights.T).T, (0,), scheme, np.float32)
    else:
        factors = np.asarray(stored["sites"]["matmul"]["smoothing"])[:, None]
        assert len(set(factors.ravel().tolist())) == size
        expected = factors * rounded(np, weights / factors, (0,), scheme, np.float32)
    for function in (quantized_apply, jax.jit(quantized_apply)):
        np.testing.assert_array_equal(function(stored, x), expected, strict=True)


@pytest.mark.parametrize("scheme", ["row, both", "int4, both"])
@pytest.mark.parametrize("letters", ["bhk,nkh->nb", "hbk,hkn->bhn"])
def test_stored_weights(letters, scheme):
    """The weights over the factors, rotated with the channels of the input, and quantized."""
    scheme = {**INTEGERS, **FLOATS}[scheme]
    _, stored, params, x, _ = quantized_product(letters, "float32", scheme)
    order, site = Order(letters, x, params["w"]), stored["sites"]["w"]
    matrix = order.weights(params["w"]) / np.asarray(site["smoothing"])[:, None]
    block = matrix.shape[1] & -matrix.shape[1]
    matrix = rotated(matrix.swapaxes(1, 2)).swapaxes(1, 2) * np.float32(1 if block.bit_length() % 2 else 2)
    actual = unpacked(np, site)
    if scheme.block_size is None:
        scale = abs(matrix).max(1, keepdims=True) / np.float32(127)
        np.testing.assert_array_equal(actual.scale, scale)
        np.testing.assert_array_equal(actual.values, np.rint(matrix / scale).astype(np.int8))
    else:
        in_blocks = matrix.reshape(len(matrix), -1, 4, matrix.shape[-1])
        scale = abs(in_blocks).max(2) / np.float32(7)
        np.testing.assert_array_equal(actual.scale, scale)
        values = np.rint(in_blocks / scale[:, :, None]).reshape(matrix.shape)
        np.testing.assert_array_equal(actual.values.astype(np.float32), values)


def test_an_input_without_rows():
    quantized_apply, stored, _, x, by_hand = quantized_product("bhk,hkn->bn", "float32", INTEGERS["row, both"])
    assert quantized_apply(stored, x[:0]).shape == by_hand(NumPy, x)[:0].shape


@pytest.mark.gate
@one_in(3, "scheme", ["row, rotated", "row, both", "tensor, both"], first=1)
def test_experts(scheme, count):
    """Selected by an index, and by groups of rows: all have the factors of the whole stack."""
    draw, scheme = Draw(1), INTEGERS[scheme]
    params, x = {"w": draw.weights(4, 32, 8)}, draw.input(6, 32)
    index, sizes = np.int32([3, 0, 0, 2, 1, 3]), np.int32([2, 0, 3, 1])
    calibration = {"w": calibrated(-3, 2, channels=32)}
    by_index = lambda p, x, index: jnp.einsum("td,tdf->tf", x, p["w"][index])  # noqa: E731
    by_groups = lambda p, x, sizes: lax.ragged_dot(x, p["w"], sizes)  # noqa: E731
    for function, numbers in ((by_index, index), (by_groups, sizes)):
        quantized_apply, stored = transform.quantize(function, params, recipe(scheme), x, numbers, calibration=calibration)
        assert not stored["float"]
        ops = NumPy(recipe(scheme), calibration, stored=stored["sites"])
        changed = ops.prepared_weights("td,edf->etf", params["w"], "w", scheme)
        rows = ops.prepared_input("td,df->tf", x, "w", scheme)
        plain = NumPy(recipe(Scheme(activations=scheme.activations)), calibration)
        expected = (
            selected_product(plain, "td,tdf->tf", rows, changed, index, site="w")
            if function is by_index
            else ragged_product(plain, rows, changed, sizes, site="w")
        )
        for result in (quantized_apply(stored, x, numbers), jax.jit(quantized_apply)(stored, x, numbers)):
            assert_equal_leaves(result, expected)
        count("products of smoothed and rotated inputs", 2 * expected.size)


# Training


PREPARATIONS = {
    "gptq": {"weight_type": "INT4", "block_size": 4, "weight_rounding": "GPTQ"},
    "awq and gptq": {"weight_type": "INT4", "block_size": 4, "weight_rounding": "GPTQ", "smoothing": "AWQ"},
    "smoothed, searched": {"weight_range": "mean_squared_error", **SMOOTHED},
    "rotated, gptq": {"weight_type": "UINT4", "block_size": 8, "weight_rounding": ("GPTQ", 0.05, False), **ROTATED},
}


@pytest.mark.gate
@one_in(4, "preparation", PREPARATIONS)
def test_training_rounds_to_the_stored_numbers(preparation, count):
    """Of each layer, with a type of its own for the input: rows that are one-hot when they are multiplied."""
    scheme, draw, size = Scheme(activations="FLOAT", **PREPARATIONS[preparation]), Draw(3), 16
    weights, rows = draw.weights(3, size, 24), draw.input(3, 40, size)
    x = np.eye(size, dtype=np.float32)
    x = x if scheme.rotation is None else rotated(x)
    observed = calibrated(0, 1, 3, channels=size)._replace(products=rows.swapaxes(1, 2) @ rows)
    calibration = {"w": observed}
    apply = lambda params, x: lax.scan(lambda _, w: (None, x @ w), None, params["w"])[1]  # noqa: E731
    aware = transform.quantization_aware(apply, recipe(scheme), calibration)
    quantized_apply, stored = transform.quantize(apply, {"w": weights}, recipe(scheme), x, calibration=calibration)
    expected = []
    for layer in range(3):
        site = jax.tree.map(lambda array, layer=layer: array[layer], stored["sites"]["w"])
        factors = np.asarray(site.get("smoothing", np.ones(size, np.float32)))
        expected.append(factors[:, None] * dequantize(np, unpacked(np, site), scheme, np.float32)[0])
    np.testing.assert_allclose(quantized_apply(stored, x), expected, 2**-21)
    for function in (aware, jax.jit(aware)):
        np.testing.assert_array_equal(function({"w": weights}, x), expected, strict=True)
    count("weights rounded for training", weights.size)


@pytest.mark.gate
@one_in(2, "scheme", ["row, both", "int4, both"])
def test_adapters(scheme, count):
    """A merge of zeros changes no weight, and any other is the sum, smoothed and rotated, within half a step."""
    scheme, draw = {**INTEGERS, **FLOATS}[scheme], Draw(4)
    w, x = draw.weights(32, 24), draw.input(5, 32)
    calibration = {"matmul": calibrated(0, 1, channels=32)}
    quantized_apply, stored = transform.quantize(lambda w, x: x @ w, w, recipe(scheme), x, calibration=calibration)
    zeros = adapters.init(quantized_apply, jax.random.key(0), 2)
    assert_equal(jax.jit(adapters.attach(quantized_apply))(zeros, stored, x), jax.jit(quantized_apply)(stored, x))
    before = unpacked(np, stored["sites"]["matmul"])
    unchanged = unpacked(np, adapters.merge(quantized_apply, stored, zeros)["sites"]["matmul"])
    np.testing.assert_array_equal(unchanged.values, before.values)
    np.testing.assert_allclose(unchanged.scale, before.scale, 2**-22)

    trained = {"matmul": {"a": draw.input(32, 2), "b": draw.input(2, 24)}}
    adapted = adapters.attach(quantized_apply, alpha=1)(trained, stored, x)
    update = trained["matmul"]["a"] @ trained["matmul"]["b"] * np.float32(0.5)
    np.testing.assert_allclose(adapted, quantized_apply(stored, x) + x @ update, rtol=2e-5, atol=2e-5)
    merged = adapters.merge(quantized_apply, stored, trained, alpha=1)["sites"]["matmul"]
    factors = np.asarray(stored["sites"]["matmul"]["smoothing"])
    np.testing.assert_array_equal(merged["smoothing"], factors)
    changed = rotated((update / factors[:, None]).T).T * np.float32(2)
    after, steps = unpacked(np, merged), []
    for matrix in (before, after):
        groups = matrix.scale.shape[1]
        in_blocks = matrix.values.astype(np.float32).reshape(groups, -1, 24) * matrix.scale[0][:, None]
        steps.append(in_blocks.reshape(32, 24))
    error = abs(steps[1] - (steps[0] + changed)).reshape(groups, -1, 24)
    assert error.max() > 0
    assert np.all(error <= after.scale[0][:, None] * 0.5001)
    count("merged weights", error.size)


# Measuring


@one_in(2, "scheme", ["static, rotated", "row, both"])
def test_report(scheme):
    """The range, the clipped share and the noise are those of what is quantized: the input as it is prepared."""
    letters, scheme = "bhk,hkn->bn", INTEGERS[scheme]
    quantized_apply, stored, params, x, _ = quantized_product(letters, "float32", scheme)
    calibration = calibration_of(letters, x, params["w"])
    apply = lambda p, x: Float().product(letters, x, p["w"], site="w")  # noqa: E731
    (row,) = transform.report(apply, params, recipe(scheme), x, calibration=calibration).sites
    prepared = NumPy(recipe(scheme), calibration, stored=stored["sites"]).prepared_input(letters, x, "w", scheme)
    assert (row.low, row.high) == (prepared.min(), prepared.max())
    exact, noisy = apply(params, x), quantized_apply(stored, x)
    np.testing.assert_allclose(row.snr, 10 * np.log10(np.sum(exact**2) / np.sum((exact - noisy) ** 2)), rtol=1e-4)
    assert row.snr > 10
    if scheme.activations == "STATIC":
        half = float(np.asarray(stored["inputs"]["w"].scale)) / 2
        np.testing.assert_allclose(row.clipped, np.mean((prepared < -3 - half) | (prepared > 2 + half)), atol=0.02)
        assert row.clipped > 0


# Cost


ROWS_AND_CHANNELS = (256, 576), (1, 576), (256, 1536)


@pytest.mark.gate
@one_in(3, "shape", ROWS_AND_CHANNELS)
@one_in(2, "scheme", ["row", "int4"])
def test_cost(scheme, shape):
    """What comes before is computed once. Smoothing needs no memory of its own, and a rotation that of two more inputs."""
    options = {"activations": "DYNAMIC_ROW"} if scheme == "row" else {"weight_type": "INT4", "activations": "FLOAT"}
    x, w = jax.ShapeDtypeStruct(shape, np.float32), np.ones((shape[1], 96), np.float32)
    temporaries = {}
    for name, changes in (("plain", {}), ("smoothed", SMOOTHED), ("both", BOTH)):
        scheme = Scheme(**options, **changes)
        calibration = {"matmul": calibrated(0, 1, channels=shape[1])}
        apply = lambda w, x: jnp.exp(x) @ w  # noqa: E731
        quantized_apply, stored = transform.quantize(apply, w, recipe(scheme), x, calibration=calibration)
        compiled = jax.jit(quantized_apply).lower(stored, x).compile()
        assert len(re.findall(r" exponential\(", compiled.as_text())) == 1
        temporaries[name] = compiled.memory_analysis().temp_size_in_bytes
    slack = 2**14
    assert temporaries["smoothed"] <= temporaries["plain"] + slack
    assert temporaries["both"] <= temporaries["plain"] + 2 * 4 * shape[0] * shape[1] + slack
