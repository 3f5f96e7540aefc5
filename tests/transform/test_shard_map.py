"""Sites inside `jax.shard_map`: their weights are packed outside, and enter it in parts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from support import formats
from support.compositions import NumPy, Operators
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import Scheme

P = PartitionSpec
ROWS, DEPTH, WIDTH, PARTS = 6, 128, 64, 4
INTEGERS = {
    "row": Scheme(activations="DYNAMIC_ROW", k_parts=4),
    "tensor": Scheme(weights="PER_TENSOR", weight_type="UINT8", k_parts=4),
    "int4 by row": Scheme(weight_type="INT4", block_size=32, scale_type="FLOAT16", activations="DYNAMIC_ROW"),
    "uint4": Scheme(weight_type="UINT4", block_size=16),
    "mxfp4 by row": Scheme(weight_type="MXFP4", activations="DYNAMIC_ROW", k_parts=4),
    "nvfp4 by row": Scheme(weight_type="NVFP4", activations="DYNAMIC_ROW", k_parts=2),
    "one block each in 4 parts": Scheme(weight_type="INT4", block_size=32, activations="DYNAMIC_ROW", k_parts=4),
}
FLOATS = {
    "int8": Scheme(weight_type="INT8", block_size=32, activations="FLOAT"),
    "int2": Scheme(weight_type="INT2", block_size=16, activations="FLOAT"),
    "mxfp4": Scheme(weight_type="MXFP4", activations="FLOAT"),
    "mxfp6": Scheme(weight_type="MXFP6E2M3FN", activations="FLOAT"),
    "nvfp4": Scheme(weight_type="NVFP4", activations="FLOAT"),
    "float8": Scheme(weight_type="FLOAT8E4M3FN", block_size=32, activations="FLOAT"),
}
ALL = {**INTEGERS, **FLOATS}


@functools.cache
def mesh():
    return jax.make_mesh((2, PARTS), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def draw(scheme):
    """Weights, and rows of the identity for products of floats: their sums have one term."""
    weights, x = Draw(0).weights(DEPTH, WIDTH), Draw(1).input(ROWS, DEPTH)
    if ALL[scheme].activations == "FLOAT":
        x = np.eye(DEPTH, dtype=np.float32)[[0, 31, 32, 64, 100, 127]]
    return {"w": weights}, x


def plain(params, x):
    return x @ params["w"]


def by_columns(params, x, check_vma=True):
    specs = P(None, "model"), P("data") if check_vma else P()
    out_specs = P("data" if check_vma else None, "model")
    body = lambda w, x: x @ w  # noqa: E731
    return jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=out_specs, check_vma=check_vma)(params["w"], x)


def by_rows(params, x):
    """The product of each part of the rows, before they are added."""
    body = lambda w, x: (x @ w)[None]  # noqa: E731
    specs = P("model", None), P(None, "model")
    return jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P("model"))(params["w"], x)


@one_in(3, "scheme", ALL)
def test_split_columns(scheme, count):
    """The bits of the function without `shard_map`."""
    params, x = draw(scheme)
    expected_apply, expected_stored = transform.quantize(plain, params, recipe(ALL[scheme]), x)
    expected = jax.jit(expected_apply)(expected_stored, x)
    for check_vma in (True, False):
        if check_vma and ALL[scheme].activations == "DYNAMIC":
            continue  # each device has a range of its own
        apply = functools.partial(by_columns, check_vma=check_vma)
        quantized_apply, stored = transform.quantize(apply, params, recipe(ALL[scheme]), x)
        assert not stored["float"]
        jax.tree.map(np.testing.assert_array_equal, stored, expected_stored)
        np.testing.assert_array_equal(jax.jit(quantized_apply)(stored, x), expected, strict=True)
        count("results of split columns", expected.size)


@one_in(3, "scheme", ALL)
def test_split_rows(scheme, count):
    """Each part is the product by hand of the parts of the input and of the quantized weights."""
    params, x = draw(scheme)
    quantization = recipe(ALL[scheme])
    quantized_apply, stored = transform.quantize(by_rows, params, quantization, x)
    assert not stored["float"]
    actual = jax.jit(quantized_apply)(stored, x)
    rows = DEPTH // PARTS
    for part in range(PARTS):
        own = slice(part * rows, (part + 1) * rows)
        for ops in (NumPy(quantization, {}), Operators(quantization, {})):
            expected = part_by_hand(ops, ALL[scheme], ops.array.asarray(x[:, own]), ops.array.asarray(params["w"]), own)
            np.testing.assert_array_equal(actual[part], expected, strict=True)
        count("results of split rows", 2 * expected.size)


def part_by_hand(ops, scheme, x, w, own):
    if scheme.activations == "FLOAT":
        return x @ formats.rounded(ops.array, w, (0,), scheme, np.float32)[own]
    quantized = ops._quantized_input(x, "w", scheme, (1,) if scheme.activations == "DYNAMIC_ROW" else None, None)
    if not formats.is_in_columns(scheme):
        whole = formats.quantize(ops.array, w[None], scheme)
        blocks = slice(own.start // whole.block_size, own.stop // whole.block_size)
        point = whole.zero_point if np.ndim(whole.zero_point) == 0 else whole.zero_point[:, blocks]
        part = whole._replace(values=whole.values[:, own], scale=whole.scale[:, blocks], zero_point=point)
        return ops.multiply("bd,dn->bn", quantized, w[own], scheme, np.dtype("float32"), part)
    values, scale, zero_point = ops._quantized_weights(w, scheme, (0,))
    return ops._integer_product("bd,dn->bn", quantized, values[own], scale, zero_point, np.dtype("float32"))


def block(up, down, x):
    return lax.psum(jax.nn.relu(x @ up) @ down, "model")


def layers_inside(params, x):
    def body(up, down, x):
        return lax.scan(lambda x, layer: (x + block(*layer, x), None), x, (up, down))[0]

    specs = P(None, None, "model"), P(None, "model", None), P("data")
    return jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P("data"))(params["up"], params["down"], x)


def layers_outside(params, x):
    mapped = jax.shard_map(block, mesh=mesh(), in_specs=(P(None, "model"), P("model", None), P("data")), out_specs=P("data"))
    return lax.scan(lambda x, layer: (x + mapped(layer["up"], layer["down"], x), None), x, params)[0]


@pytest.fixture(scope="module")
def layers():
    drawn = Draw(2)
    params = {"up": drawn.weights(3, 64, 256, layers=1) / 16, "down": drawn.weights(3, 256, 64, layers=1) / 32}
    return jax.tree.map(jnp.asarray, params), jnp.asarray(drawn.input(8, 64))


@pytest.mark.gate
@one_in(3, "scheme", ["row", "int4 by row", "mxfp4"], others="full")
def test_a_tensor_parallel_network(layers, scheme):
    """Loops inside and outside have the same parameters and results; training and adapters see through."""
    params, x = layers
    quantization, results = recipe(ALL[scheme]), []
    exact = layers_inside(params, x)
    for apply in (layers_inside, layers_outside):
        quantized_apply, stored = transform.quantize(apply, params, quantization, x, derivative="STRAIGHT_THROUGH")
        assert not stored["float"]
        results.append((stored, jax.jit(quantized_apply)(stored, x)))
        aware = jax.jit(transform.quantization_aware(apply, quantization))
        np.testing.assert_allclose(aware(params, x), results[-1][1], rtol=1e-3, atol=1e-3)
        adapters = transform.adapters.init(quantized_apply, jax.random.key(0), 2)
        adapted = jax.jit(transform.adapters.attach(quantized_apply))
        np.testing.assert_array_equal(adapted(adapters, stored, x), results[-1][1])
        gradient = jax.jit(jax.grad(lambda adapters, f=adapted, p=stored: jnp.square(f(adapters, p, x)).sum()))
        gradients = gradient(adapters)
        assert all(jnp.abs(pair["b"]).max() > 0 for pair in gradients.values())
    jax.tree.map(np.testing.assert_array_equal, *results)
    noise = 10 * jnp.log10(jnp.var(exact) / jnp.var(results[0][1] - exact))
    assert noise > (30 if scheme == "row" else 10)


def test_the_parts_of_weights_are_not_gathered(layers):
    """The program sends the sums of the function's own `psum`, and no weights."""
    params, x = layers
    quantized_apply, stored = transform.quantize(layers_outside, params, recipe(ALL["row"]), x)
    text = jax.jit(quantized_apply).lower(stored, x).compile().as_text()
    kinds = re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", text)
    assert set(kinds) == {"all-reduce"}
    float_text = jax.jit(layers_outside).lower(params, x).compile().as_text()
    assert kinds == re.findall(r" (all-reduce)(?:-start)?\(", float_text)


@pytest.mark.gate
def test_experts_and_products_of_activations():
    """Inside, an index selects from a stack, and two activations are multiplied."""
    drawn = Draw(3)
    params, x = {"w": drawn.weights(5, 32, 64)}, drawn.input(ROWS, 32)
    index = np.random.default_rng(3).integers(0, 5, ROWS, np.int32)

    def body(w, x, index):
        hidden = jnp.einsum("td,tdf->tf", x, w[index])
        return hidden @ hidden.T

    def apply(params, x, index):
        mapped = jax.shard_map(
            lambda w, x, index: body(w, x, index)[None],
            mesh=mesh(),
            in_specs=(P(None, None, "model"), P(), P()),
            out_specs=P("model"),
        )
        return mapped(params["w"], x, index)

    by_row = Scheme(activations="DYNAMIC_ROW")
    quantization = transform.Recipe([("activation_matmul", by_row), ("*", by_row)])
    quantized_apply, stored = transform.quantize(apply, params, quantization, x, index)
    assert not stored["float"]
    actual = jax.jit(quantized_apply)(stored, x, index)
    for part in range(PARTS):
        columns = {"w": params["w"][..., part * 16 : (part + 1) * 16]}
        alone, alone_stored = transform.quantize(lambda p, x, i: body(p["w"], x, i), columns, quantization, x, index)
        np.testing.assert_array_equal(actual[part], alone(alone_stored, x, index))


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (Scheme(), "4 devices would split the blocks of column sums of its 128 rows: pass k_parts=4"),
        (Scheme(weight_type="INT4", block_size=64), "4 devices would split blocks of 64 of its 128 rows"),
        (Scheme(weight_type="INT4"), "4 devices would split blocks of 128 of its 128 rows: pass another block_size"),
        (Scheme(weight_type="MXFP4", block_size=64, activations="FLOAT"), "4 devices would split blocks of 64"),
        (Scheme(activations="STATIC", k_parts=4), "it is inside shard_map, where ranges are not observed"),
    ],
)
def test_schemes_that_cannot_be_split(scheme, reason):
    params, x = {"w": Draw(0).weights(DEPTH, WIDTH)}, Draw(1).input(ROWS, DEPTH)
    (row,) = transform.sites(by_rows, params, x, recipe=recipe(scheme))
    assert reason in str(row.reason)


@pytest.mark.parametrize(
    ("body", "spec", "reason"),
    [
        (lambda w, x: x @ (w * 2), P(), "it is inside shard_map, where its weights are computed"),
        (lambda w, x: w[x[0].astype(jnp.int32)], P(), "it is inside shard_map, and no product"),
        (
            lambda w, x: jnp.einsum("bd,dkn->bkn", x, w.reshape(DEPTH, 2, -1)),
            P(),
            "it is inside shard_map, where its weights are computed",
        ),
    ],
    ids=["computed", "embedding", "reshaped"],
)
def test_what_stays_float(body, spec, reason):
    params, x = {"w": Draw(0).weights(DEPTH, WIDTH)}, Draw(1).input(ROWS, DEPTH)
    apply = lambda p, x: jax.shard_map(body, mesh=mesh(), in_specs=(spec, P()), out_specs=P())(p["w"], x)  # noqa: E731
    (row,) = transform.sites(apply, params, x)
    assert row.reason == reason


@pytest.mark.parametrize("fields", [{"rotation": "HADAMARD"}, {"smoothing": "AWQ"}, {"weight_rounding": "GPTQ"}])
def test_inputs_are_not_changed(fields):
    params, x = draw("row")
    (row,) = transform.sites(by_columns, params, x, recipe=recipe(Scheme(activations="DYNAMIC_ROW", k_parts=4, **fields)))
    assert row.reason == "it is inside shard_map, where inputs are neither observed nor changed"


@pytest.mark.gate
def test_dimensions_that_are_joined():
    """Heads and their widths are one dimension of a matrix, of which only the first may be split."""
    params, x = {"w": Draw(0).weights(4, 16, WIDTH)}, Draw(1).input(ROWS, 4, 16)
    body = lambda w, x: jnp.einsum("bhd,hdn->bn", x, w)[None]  # noqa: E731

    def apply(spec, x_spec):
        mapped = jax.shard_map(body, mesh=mesh(), in_specs=(spec, x_spec), out_specs=P("model"))
        return lambda p, x: mapped(p["w"], x)

    scheme = recipe(INTEGERS["row"])
    (row,) = transform.sites(apply(P(None, "model"), P(None, None, "model")), params, x, recipe=scheme)
    assert "which splits no matrix of them into parts" in str(row.reason)
    split = apply(P("model"), P(None, "model"))
    quantized_apply, stored = transform.quantize(split, params, scheme, x)
    assert not stored["float"]
    exact = split(params, x)
    assert 0 < jnp.abs(jax.jit(quantized_apply)(stored, x) - exact).max() < 0.05 * jnp.abs(exact).max()
