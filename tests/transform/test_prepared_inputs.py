"""Inputs that are smoothed and rotated, against compositions by hand, in every type and layout, and the cost of that."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.comparison import assert_declined, assert_equal
from support.compositions import NumPy, Operators, Order, assert_equal_leaves, rotated
from support.draw import Draw, calibrated
from support.experts import ragged_product, selected_product
from support.formats import rounded, unpacked
from support.networks import SCHEMES, Float, recipe
from support.rounded import assert_close
from support.sampling import one_in

from jquant import transform
from jquant.transform import Scheme, adapters, compute, quantization_aware

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
    depth = order.weights(w).shape[1]
    return {"w": calibrated(-3, 2, channels=depth)}


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


@one_in(7, ("letters", "scheme", "dtype"), itertools.product(LAYOUTS, INTEGERS, TYPES), gate=5)
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


@one_in(7, ("letters", "scheme", "dtype"), itertools.product(LAYOUTS, FLOATS, TYPES), gate=4)
def test_products_of_floats(letters, scheme, dtype, count):
    """The composition of public operators, eagerly. (Compiled, XLA may add in another order.)"""
    quantized_apply, stored, _, x, by_hand = quantized_product(letters, dtype, FLOATS[scheme])
    expected = by_hand(Operators, x)
    assert_equal_leaves(quantized_apply(stored, x), expected)
    count("products of smoothed and rotated inputs", expected.size)


@pytest.mark.parametrize("scheme", ["int4, rotated", "int4, smoothed", "mxfp4, rotated"])
def test_sums_of_one_term(scheme):
    """Rows that are one-hot when they are multiplied: a factor times a stored weight, compiled as well as eagerly."""
    size, scheme = 16, FLOATS[scheme]
    weights, one_hot = Draw(0).weights(size, 8), np.eye(size, dtype=np.float32)
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


@pytest.mark.parametrize("scheme", ["row, rotated", "row, both", pytest.param("tensor, both", marks=pytest.mark.gate)])
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
