"""Weights in every format: their bits, their bytes, and the products that they are part of."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax
from support import formats
from support.compositions import NumPy, Operators, assert_equal_leaves, numpy_calibration
from support.draw import Draw
from support.networks import Float, recipe
from support.sampling import one_in
from support.small_functions import NETWORKS, draw_operands

from jquant import transform
from jquant.transform import Scheme
from jquant.transform.formats import weight_formats

TYPES = weight_formats.WEIGHT_TYPES
PRODUCTS = weight_formats.INTEGER_PRODUCTS
WITH_SCALES = *PRODUCTS, *formats.FLOAT8
NAMES = "products", "batch_in_the_weights", "several_contracted_dimensions", "heads", "stacked_layers", "tied_embedding"
ROWS = 7


def schemes() -> list[Scheme]:
    """Each type of weights with each kind of scale, and with each kind of activations."""
    found = [
        Scheme(weight_type=name, activations=activations, activation_type=activation_type, **options)
        for name in PRODUCTS
        for activations, activation_type in (
            ("STATIC", "UINT8"),
            ("DYNAMIC", "INT8"),
            ("DYNAMIC_ROW", "INT8"),
            ("FLOAT", "UINT8"),
        )
        for options in ({"scale_type": "FLOAT16"}, {"weights": "PER_TENSOR"}, {"block_size": 8, "scale_type": "BFLOAT16"})
    ]
    found += [
        Scheme(weight_type=name, activations="FLOAT", **options)
        for name in formats.FLOAT8
        for options in ({}, {"weights": "PER_TENSOR", "scale_type": "FLOAT16"}, {"block_size": 5})
    ]
    found += [Scheme(weight_type=name, activations="FLOAT") for name in weight_formats.WITH_OWN_SCALES]
    found += [Scheme(weight_type=name, activations="FLOAT", block_size=6) for name in formats.MICROSCALING]
    found += [Scheme(weight_type=name, activations="DYNAMIC_ROW") for name in weight_formats.FLOATS_IN_INTEGER_PRODUCTS]
    found += [
        Scheme(weight_type="MXFP4", activations="STATIC", block_size=6),
        Scheme(weight_type="MXFP4", activation_type="INT8", block_size=8),
        Scheme(weight_type="NVFP4", activations="STATIC", activation_type="INT8"),
    ]
    return [*found, Scheme(weight_type="INT2", activations="FLOAT", block_size=16, scale_type="FLOAT16")]


def title(scheme: Scheme) -> str:
    return f"{scheme.format.title}, {scheme.activations}"


def test_every_type_has_a_scheme():
    assert {scheme.weight_type for scheme in schemes()} == set(TYPES)


CASES = [(name, scheme) for scheme, name in itertools.product(schemes(), NAMES)]


@pytest.mark.gate
@one_in(23, ("name", "scheme"), CASES, others="full", ids=lambda value: value if isinstance(value, str) else title(value))
def test_equal_bits(name, scheme, count):
    """The composition of public operators; products of integers also jitted, exported and mapped, and in NumPy.

    Compiled, XLA may add the terms of a product of floats in another order; `test_by_hand` has such with exact sums.
    """
    network, quantization = NETWORKS[name], recipe(scheme)
    parameters, x = draw_operands(network, "dynamic", ROWS)
    calibration = numpy_calibration(network.function, parameters, x, fraction=0.75)
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, parameters, quantization, x, calibration=calibration)
    operators = Operators(quantization, calibration)
    expected = network.function(operators, *jax.tree.map(jnp.asarray, (parameters, x)))
    assert_equal_leaves(quantized_apply(quantized_params, x), expected)
    if scheme.activations == "FLOAT":
        count(f"results of {scheme.weight_type}", 1)
        return
    jitted = jax.jit(quantized_apply)
    exported = export.export(jitted)(quantized_params, jax.ShapeDtypeStruct(x.shape, x.dtype))
    for result in (jitted(quantized_params, x), exported.call(quantized_params, x)):
        assert_equal_leaves(result, expected)
    by_numpy = lambda x: network.function(NumPy(quantization, calibration), parameters, x)  # noqa: E731
    assert_equal_leaves(by_numpy(x), expected)
    mapped = jax.vmap(quantized_apply, (None, 0))(quantized_params, x[:2, None])
    assert_equal_leaves(mapped, jax.tree.map(lambda *rows: np.stack(rows), *(by_numpy(row[None]) for row in x[:2])))
    count(f"results of {scheme.weight_type}", 4)


@one_in(13, "scheme", [scheme for scheme in schemes() if scheme.activations == "FLOAT"], ids=title, gate=3)
def test_the_numbers_that_are_stored(scheme, count):
    """The product with the identity, whose sums have one term, is the weights that NumPy rounds."""
    weights = Draw(1).weights(45, 24)
    weights[:, 3] = 0
    weights[32:, 5] = 0
    quantized_apply, quantized_params = transform.quantize(
        lambda w, x: x @ w, weights, recipe(scheme), np.eye(45, dtype=np.float32)
    )
    for rows in (1, 45):  # a few rows are multiplied in another way
        identity = np.eye(45, dtype=np.float32)[:rows]
        result = jax.jit(quantized_apply)(quantized_params, identity)
        expected = formats.rounded(np, weights, (0,), scheme, np.float32)[:rows]
        np.testing.assert_array_equal(result, expected, strict=True)
    count("stored numbers", weights.size)


BY_INTEGERS = [Scheme(weight_type=name, activations="DYNAMIC_ROW") for name in weight_formats.FLOATS_IN_INTEGER_PRODUCTS]
BY_INTEGERS += [Scheme(weight_type="MXFP4", activations="DYNAMIC_ROW", block_size=size) for size in (6, 8)]


@pytest.mark.parametrize("scheme", [pytest.param(each, marks=pytest.mark.gate) for each in BY_INTEGERS], ids=title)
def test_floats_as_integers(scheme, count):
    """Sums of blocks in float64, where they are exact, as each of them is in float32, too."""
    rng, w = np.random.default_rng(5), Draw(1).weights(45, 24)
    x = rng.integers(-127, 128, (3, 45))
    x[:, 7] = 127, -127, 127  # so that the scales of rows are a half
    values, scale, tensor_scale, size = formats.quantize(np, w[None], scheme)
    if scheme.weight_type == "MXFP6E2M3FN":  # codes
        values = values.view(ml_dtypes.float6_e2m3fn)
    number = values[0].astype(np.float64) * (2.0**-6 if scheme.weight_type == "MXINT8" else 1)
    terms = x[:, :, None] * number * np.repeat(scale[0].astype(np.float64), size, 0)[:45]
    total = np.zeros((3, 24), np.float32)
    for start in range(0, 45, size):
        block = terms[:, start : start + size].sum(1)
        np.testing.assert_array_equal(block.astype(np.float32), block)
        total += block.astype(np.float32)
    expected = total * (np.float32(0.5) * np.float32(tensor_scale if scheme.weight_type == "NVFP4" else 1))
    quantized_apply, quantized_params = transform.quantize(lambda w, x: x @ w, w, recipe(scheme), np.float32(x / 2))
    np.testing.assert_array_equal(jax.jit(quantized_apply)(quantized_params, np.float32(x / 2)), expected, strict=True)
    count("products of floats as integers", expected.size)


@one_in(23, "scheme", schemes(), ids=title, gate=11)
def test_looked_up_rows(scheme):
    """With the parameters in 16 bits, and beyond the table."""
    table, indices = Draw(2).weights(24, 45).astype(np.float16), np.int32([[0, 23, 5], [-1, -30, 40]])
    for apply in (
        lambda p, i: jnp.take(p, i, axis=0),
        lambda p, i: p.T.at[:, i].get(mode="fill", fill_value=7),
        lambda p, i: (p[i[0, 0]], p.T[:, i[1, 1]], jax.vmap(lambda i: p[i])(i[0]), lax.dynamic_slice_in_dim(p, i[0, 1], 3)),
    ):
        quantized_apply, quantized_params = transform.quantize(apply, table, recipe(scheme), indices)
        assert len(quantized_params["sites"]) == 1
        assert not quantized_params["float"]
        expected = apply(jnp.asarray(formats.rounded(np, table, (1,), scheme, np.float16)), indices)
        assert_equal_leaves(jax.jit(quantized_apply)(quantized_params, indices), expected)


BITS = {  # of each weight, with its share of the scales, where blocks have 32 elements
    **dict.fromkeys(("INT8", "FLOAT8E4M3FN", "FLOAT8E5M2"), 8 + 16 / 32),
    **{"UINT8": 8 + 24 / 32, "INT4": 4 + 16 / 32, "UINT4": 4 + 24 / 32, "INT2": 2 + 16 / 32},
    **{"MXFP8E4M3FN": 8 + 8 / 32, "MXFP8E5M2": 8 + 8 / 32, "MXINT8": 8 + 8 / 32},
    **{"MXFP6E2M3FN": 6 + 8 / 32, "MXFP6E3M2FN": 6 + 8 / 32, "MXFP4": 4 + 8 / 32, "NVFP4": 4 + 8 / 16},
}


@one_in(3, "name", TYPES)
def test_bytes(name):
    """Every element takes its own bits, in arrays of types that NumPy can write."""
    own_scales = name in weight_formats.WITH_OWN_SCALES
    options = {} if own_scales else {"block_size": 32, "scale_type": "FLOAT16"}
    scheme = Scheme(weight_type=name, activations="FLOAT", **options)
    weights, x = Draw(3).weights(256, 128), np.ones((2, 256), np.float32)
    _, quantized_params = transform.quantize(lambda w, x: x @ w, weights, recipe(scheme), x)
    leaves = jax.tree.leaves(quantized_params)
    of_the_tensor = 4 if name == "NVFP4" else 0
    assert sum(leaf.nbytes for leaf in leaves) == weights.size * BITS[name] / 8 + of_the_tensor
    assert {leaf.dtype.name for leaf in leaves} <= {"int8", "uint8", "uint16", "float16", "float32"}


def transformer(params, tokens):
    """Two layers with attention, and a table that is tied to the last product."""
    x = params["table"][tokens]

    def layer(x, p):
        q, k, v = (jnp.einsum("bld,dhe->blhe", x, p[name]) for name in ("q", "k", "v"))
        mixed = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k)), v)
        x = x + jnp.einsum("bqhe,hed->bqd", mixed, p["out"])
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["table"].T


@pytest.fixture(scope="module")
def transformer_operands():
    draw = Draw(4)
    shapes = dict.fromkeys(("q", "k", "v"), (2, 128, 4, 32)) | {"out": (2, 4, 32, 128)}
    shapes |= {"up": (2, 128, 512), "down": (2, 512, 128)}
    layers = {name: draw.weights(*shape) / np.float32(math.prod(shape[1:]) ** 0.25) for name, shape in shapes.items()}
    return {"table": draw.weights(256, 128), "layers": layers}, draw.indices(2, 9, below=256)


@pytest.mark.gate
@one_in(
    7,
    ("name", "most"),
    [
        ("weight_only_int4", 0.145),
        ("int4_by_rows", 0.145),
        ("weight_only_mxfp4", 0.135),
        ("weight_only_nvfp4", 0.145),
        ("weight_only_int8", 0.26),
        ("weight_only_float8", 0.26),
        ("dynamic_int8", 0.29),
    ],
    gate=2,
)
def test_bytes_of_a_transformer(transformer_operands, name, most):
    """All parameters over float32; nothing is stored twice, and nothing stays float."""
    params, tokens = transformer_operands
    quantized_apply, quantized_params = transform.quantize(transformer, params, getattr(transform, name), tokens)
    assert set(quantized_params["sites"]) == {"table", *(f"layers/{weights}" for weights in params["layers"])}
    assert not quantized_params["float"]
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (quantized_params, params)]
    assert sizes[0] <= most * sizes[1]
    assert np.isfinite(jax.jit(quantized_apply)(quantized_params, tokens)).all()


@pytest.mark.parametrize("name", ["UINT8", "INT4", "MXFP4", "NVFP4"])
def test_convolutions_stay_float(name):
    """With the reason, whatever the recipe has for products."""
    rules = [("*", Scheme(weight_type=name, activations="FLOAT"))]
    filter, x = jnp.ones((8, 4, 3, 3)), jnp.ones((1, 4, 6, 6))
    convolution = lambda w, x: jax.lax.conv(x, w, (1, 1), "SAME")  # noqa: E731
    (row,) = transform.sites(convolution, filter, x, recipe=transform.Recipe(rules))
    assert row.reason is not None
    assert "convolutions take INT8 and 8-bit floats without blocks" in row.reason
    assert name.lower() in row.reason


@pytest.mark.parametrize("name", formats.FLOAT8)
@pytest.mark.parametrize("weights", ["PER_CHANNEL", "PER_TENSOR"])
def test_filters_of_8_bit_floats(name, weights):
    """A convolution with an image that has a single 1 is the filter, in reverse."""
    scheme = Scheme(weight_type=name, weights=weights, activations="FLOAT", scale_type="FLOAT16")
    filter, x = Draw(5).weights(3, 3, 1, 8), np.zeros((1, 3, 3, 1), np.float32)
    x[0, 1, 1, 0] = 1
    layout = ("NHWC", "HWIO", "NHWC")
    convolution = lambda w, x: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(convolution, filter, recipe(scheme), x)
    expected = formats.rounded(np, filter, (0, 1, 2), scheme, np.float32)
    np.testing.assert_array_equal(quantized_apply(quantized_params, x)[0, ::-1, ::-1], expected[:, :, 0])
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(quantized_params)) == filter.size + (16 if "CH" in weights else 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_type": "MXFP8E4M3FN"}, "MXFP8E4M3FN, which is multiplied by floats alone: pass activations='FLOAT'"),
        ({"weight_type": "INT2", "block_size": 16}, "INT2, which is multiplied by floats alone"),
        ({"weight_type": "INT2", "activations": "FLOAT"}, "INT2 and block_size None; it must be a power of two"),
        ({"weight_type": "INT2", "activations": "FLOAT", "block_size": 24}, "block_size 24; it must be a power of two"),
        ({"weight_type": "NVFP4", "activations": "FLOAT", "block_size": 32}, "its blocks have 16 elements"),
        ({"weight_type": "INT4", "block_size": 6}, "INT4 and block_size 6; it must be a multiple of 4"),
        ({"weights": "PER_TENSOR", "block_size": 32}, "block_size is 32, but weights are PER_TENSOR"),
        ({"weight_type": "MXFP4", "activations": "FLOAT", "weights": "PER_TENSOR"}, "MXFP4, which has blocks"),
        ({"weight_type": "MXFP4", "activations": "FLOAT", "scale_type": "FLOAT16"}, "leave out scale_type"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": "32"}, "block_size is the str '32'"),
        ({"scale_type": "INT8"}, "scale_type is INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16"),
        ({"k_parts": 3}, "k_parts is 3; it must be a power of two"),
        ({"k_parts": 0}, "k_parts is 0"),
        ({"k_parts": 2, "activations": "FLOAT"}, "k_parts is 2, but sums of floats depend on how they are split"),
        ({"k_parts": 2, "weight_type": "UINT4"}, "k_parts is 2, but a column is one block: pass block_size"),
        ({"weight_type": "FLOAT16"}, "weight_type is FLOAT16; it must be one of INT8, UINT8, INT4"),
        ({"weight_type": "INT3"}, "weight_type is 'INT3'; it must be one of INT8, UINT8, INT4"),
    ],
)
def test_refused_schemes(fields, message):
    with pytest.raises(transform.TransformError, match=re.escape(message)):
        Scheme(**fields)
