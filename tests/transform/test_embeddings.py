"""Tables: an embedding of the quantized function equals the same look-up in the rounded table."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import PartitionSpec as P
from support import formats
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

import jquant
from jquant import transform
from jquant.transform import Scheme

ROWS, WIDTH = 24, 16
INDICES = np.int32([[0, 23, 5, 7], [-1, -24, 30, 15]])
SCALARS = *(np.int32(index) for index in (0, 23, -1, -24, 30, -40)), np.uint8(5)

BY_ARRAY = {
    "indexing": lambda table, i: table[i],
    "take": lambda table, i: jnp.take(table, i, axis=0),  # NaN beyond the table
    "clipped": lambda table, i: jnp.take(table, i, axis=0, mode="clip"),
    "filled": lambda table, i: table.at[i].get(mode="fill", fill_value=7),
    "columns": lambda table, i: table[:, i],
    "rows of the transposed": lambda table, i: table.T[i],
    "in bfloat16": lambda table, i: table.astype(jnp.bfloat16)[i],
}
BY_SCALAR = {
    **BY_ARRAY,
    "promised": lambda table, i: table.at[jnp.clip(i, 0, WIDTH - 1)].get(mode="promise_in_bounds"),
    "wrapped": lambda table, i: jnp.take(table, i, axis=0, mode="wrap"),
    "dynamic index": lambda table, i: lax.dynamic_index_in_dim(table, i),
    "dynamic index, a column": lambda table, i: lax.dynamic_index_in_dim(table, i, 1, keepdims=False),
    "a new dimension": lambda table, i: table[i, None],
    "contiguous rows": lambda table, i: lax.dynamic_slice_in_dim(table, i, 3),
    "contiguous columns": lambda table, i: lax.dynamic_slice_in_dim(table, i, 5, axis=1),
}
BY_VMAP = {f"{name}, vmap": jax.vmap(function, (None, 0)) for name, function in BY_SCALAR.items()}
BY_TWO_VMAPS = {f"{name}, vmap of vmap": jax.vmap(function, (None, 0)) for name, function in BY_VMAP.items()}
FORMS = {  # the look-up, and its indices, one after the other
    **{f"{name}, array": (function, [INDICES]) for name, function in BY_ARRAY.items()},
    **{f"{name}, scalar": (function, SCALARS) for name, function in BY_SCALAR.items()},
    **{name: (function, [INDICES[0], INDICES[1]]) for name, function in BY_VMAP.items()},
    **{name: (function, [INDICES]) for name, function in BY_TWO_VMAPS.items()},
}


def draw_table(*shape):
    table = Draw(0).weights(*shape)
    return table * np.float32(2) ** np.arange(shape[-2], dtype=np.float32)[:, None]


def rounded(table, over, granularity="PER_CHANNEL"):
    scale = np.max(abs(table), over if granularity == "PER_CHANNEL" else None, keepdims=True) / np.float32(127)
    return jnp.asarray(np.rint(table / scale) * scale)


def quantize(apply, params, *inputs, scheme=Scheme(), **options):  # noqa: B008
    """The jitted function and its parameters, of which none stays float."""
    quantized_apply, stored = transform.quantize(apply, params, recipe(scheme), *inputs, **options)
    assert not stored["float"]
    return jax.jit(quantized_apply), stored


@one_in(11, ("name", "granularity"), itertools.product(FORMS, ["PER_CHANNEL", "PER_TENSOR"]), gate=6)
def test_rounded_table(name, granularity, count):
    """Also for indices beyond the table."""
    apply, indices = FORMS[name]
    table = draw_table(ROWS, WIDTH)
    takes_columns = "column" in name or "transposed" in name
    expected_table = rounded(table, 0 if takes_columns else 1, granularity)
    for index in indices:
        jitted, stored = quantize(apply, table, index, scheme=Scheme(weights=granularity))
        assert list(stored["sites"]) == ["embedding"]
        np.testing.assert_array_equal(jitted(stored, index), apply(expected_table, index), strict=True)
        count("look-ups", 1)


@one_in(2, "shape", [(1, 300), (300, 1)])
def test_a_single_row_or_column(shape):
    table = Draw(1).weights(*shape)
    for apply, index in itertools.product((lambda p, i: p[i], lambda p, i: p[:, i]), (np.int32(0), np.int32([0, 0]))):
        jitted, stored = quantize(apply, table, index)
        axis = 1 if apply(np.arange(300).reshape(shape), 0).shape == (shape[1],) else 0
        np.testing.assert_array_equal(jitted(stored, index), apply(rounded(table, axis), index), strict=True)


STACKS = {  # look-ups in one of several tables
    "by two indices": lambda tables, layer, i: tables[layer, i],
    "by two scalars": lambda tables, layer, i: jax.vmap(lambda i: tables[layer, i])(i),
    "of all": lambda tables, layer, i: jax.vmap(lambda table: table[i])(tables) + layer,
    "of each its own": lambda tables, layer, i: jax.vmap(lambda table, i: table[i])(tables, i[:3]),
    "in a loop over their numbers": lambda tables, layer, i: lax.fori_loop(
        0, 3, lambda number, total: total + tables[number, i], jnp.zeros((len(i), WIDTH))
    ),
    "in a loop over the tables": lambda tables, layer, i: lax.scan(lambda _, table: (0, table[i[0]]), 0, tables)[1],
}


@one_in(3, "name", [name for name in STACKS if name != "of all"])
def test_a_stack_of_tables(name):
    """Also for numbers of a table beyond the stack."""
    tables, i = draw_table(3, ROWS, WIDTH), np.int32([0, 23, -2, 30])
    for layer in map(np.int32, (1, -1, 3)):
        jitted, stored = quantize(STACKS[name], tables, layer, i)
        assert list(stored["sites"]) == ["embedding"]
        expected = jax.jit(STACKS[name])(rounded(tables, 2), layer, i)
        np.testing.assert_array_equal(jitted(stored, layer, i), expected, strict=True)


def decode(params, token, look_up):
    """Eight tokens, each of which is the best one for a row of the last, in a loop; the table is tied."""

    def step(state):
        number, token, tokens = state
        row = jnp.roll(look_up(params["table"], token), number + 1)
        token = jnp.argmax(row @ params["table"].T).astype(jnp.int32)
        return number + 1, token, tokens.at[number].set(token)

    return lax.while_loop(lambda state: state[0] < 8, step, (0, token, jnp.zeros(8, jnp.int32)))[2]


@one_in(3, "name", ["indexing", "take", "dynamic index"])
def test_one_token_at_a_time(name):
    """By hand, with public operators; the table is stored once."""
    table = Draw(2).weights(ROWS, WIDTH)
    apply = functools.partial(decode, look_up=lambda table, token: jnp.reshape(BY_SCALAR[name](table, token), WIDTH))
    jitted, stored = quantize(apply, {"table": table}, np.int32(3))
    assert [row.kind for row in transform.sites(apply, {"table": table}, np.int32(3))] == ["embedding", "matmul"]
    assert set(stored["sites"]) == {"table"}
    values, scale = stored["sites"]["table"]["values"], stored["sites"]["table"]["scale"]
    expected, token = [], 3
    for number in range(8):
        row = jnp.roll(jquant.dequantize_linear(values.unpack()[:, token], scale[token]), number + 1)
        token = int(jnp.argmax(jquant.matmul_integer_to_float(*jquant.dynamic_quantize_linear(row[None]), values, scale)))
        expected.append(token)
    assert len(set(expected)) > 2
    np.testing.assert_array_equal(jitted(stored, np.int32(3)), np.int32(expected), strict=True)


def branched(params, token):
    return lax.cond(token > 3, lambda t: jax.jit(lambda p, t: p[t])(params, t), lambda t: jnp.take(params, t, axis=0), token)


def scanned(params, tokens):
    return lax.scan(lambda total, token: (total, jax.checkpoint(lambda t: params[t])(token)), 0, tokens)[1]


@pytest.mark.gate
def test_inside_control_flow():
    """Jitted, exported and mapped."""
    table = draw_table(ROWS, WIDTH)
    for apply, index in ((branched, np.int32(2)), (branched, np.int32(5)), (scanned, np.int32([4, 23, 0]))):
        jitted, stored = quantize(apply, table, index)
        assert len(stored["sites"]) == 1
        expected = apply(rounded(table, 1), index)
        np.testing.assert_array_equal(jitted(stored, index), expected, strict=True)
        exported = export.export(jitted)(stored, jax.ShapeDtypeStruct(index.shape, index.dtype))
        np.testing.assert_array_equal(exported.call(stored, index), expected, strict=True)
        mapped = jax.vmap(jitted, (None, 0))(stored, np.stack([index, index]))
        np.testing.assert_array_equal(mapped, np.stack([expected, expected]), strict=True)


@pytest.mark.gate
def test_differentiated():
    """Training moves the rows that are looked up; the quantized function has a derivative in what is around it."""
    table, token, scheme = Draw(3).weights(ROWS, WIDTH), np.int32(5), Scheme(activations="FLOAT")
    apply = lambda p, i: (p["table"][i] * p["scale"]).sum()  # noqa: E731
    params = {"table": table, "scale": np.arange(WIDTH, dtype=np.float32)}
    quantization = transform.Recipe([("table", scheme)])
    row = formats.rounded(np, table, (1,), scheme, np.float32)[token]
    gradients = jax.grad(transform.quantization_aware(apply, quantization))(jax.tree.map(jnp.asarray, params), token)
    np.testing.assert_array_equal(gradients["scale"], row)
    expected = np.zeros_like(table)
    expected[token] = params["scale"]
    np.testing.assert_array_equal(gradients["table"], expected)
    straight, stored = transform.quantize(apply, params, quantization, token, derivative="STRAIGHT_THROUGH")
    gradients = jax.grad(lambda stored: straight(stored, token), allow_int=True)(stored)
    np.testing.assert_array_equal(gradients["float"]["scale"], row)
    plain, stored = transform.quantize(apply, params, quantization, token)
    with pytest.raises(transform.TransformError, match="no derivative through table"):
        jax.grad(lambda stored: plain(stored, token), allow_int=True)(stored)


def test_the_report_measures_it():
    table, token = draw_table(ROWS, WIDTH), np.int32(5)
    report = transform.report(lambda p, i: p[i], table, recipe(Scheme()), token)
    (site,) = report.sites
    row, noisy = table[token], np.asarray(rounded(table, 1))[token]
    assert site.kind == "embedding"
    assert site.snr == pytest.approx(10 * np.log10((row**2).sum() / ((row - noisy) ** 2).sum()), rel=1e-4)
    assert site.quantized_bytes < 0.4 * site.float_bytes == 0.4 * table.nbytes


def in_shard_map(p, i):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(lambda p, i: p[i], mesh=mesh, in_specs=(P(), P()), out_specs=P())(p, i)


OTHER_PARTS = "what it takes are not whole rows or columns of a table"
MATRICES = "it takes matrices of a stack, and no product reads these as they are"
TABLE, TABLES = Draw(4).weights(ROWS, WIDTH), Draw(4).weights(3, ROWS, WIDTH)
STAY_FLOAT = {  # function, parameters, the reasons
    "an element": (lambda p, i: p[i, i], TABLE, [OTHER_PARTS]),
    "elements": (lambda p, i: jax.vmap(lambda i: p[i, 2])(jnp.stack([i, i])), TABLE, [OTHER_PARTS]),
    "a part of a row": (lambda p, i: p[i, :4], TABLE, [OTHER_PARTS]),
    "along an axis": (lambda p, i: jnp.take_along_axis(p, jnp.full((1, WIDTH), i), axis=0), TABLE, [OTHER_PARTS]),
    "a part of a matrix": (lambda p, i: lax.dynamic_slice(p, (0, i, i), (3, 4, 4)), TABLES, [OTHER_PARTS]),
    "a matrix": (lambda p, i: p[i], TABLES, [MATRICES]),
    "matrices, changed": (
        lambda p, i: jnp.full(ROWS, i, np.float32) @ (p[i] * 2),
        TABLES,
        ["only the pattern activation_matmul matches it", MATRICES],
    ),
    "several tables at once": (STACKS["of all"], TABLES, [MATRICES]),
    "a row of a matrix": (lambda p, i: p[i][i], TABLES, ["its table is a matrix that an index selects"]),
    "small": (lambda p, i: p[i], TABLE[:, :8], ["its weights have 192 elements, fewer than 256"]),
    "parts of a small one": (lambda p, i: p[i, i], TABLE[:, :8], ["its weights have 192 elements, fewer than 256"]),
    "shard_map": (in_shard_map, TABLE, ["it is inside shard_map, and no product"]),
}


@one_in(3, "name", STAY_FLOAT)
def test_what_stays_float(name):
    """It is listed with the reason, by the name of the table, and computed as before."""
    apply, table, reasons = STAY_FLOAT[name]
    if apply is STACKS["of all"]:
        apply = lambda p, i: STACKS["of all"](p, 0, i)  # noqa: E731
    params, i, x = {"table": table, "w": TABLE}, np.int32(1), Draw(5).input(4, ROWS)

    def both(params, i, x):
        return apply(params["table"], i), x @ params["w"]

    site, *others = transform.sites(both, params, i, x)
    assert (site.name, site.reason) == ("w", None)
    assert [row.reason for row in others] == reasons
    assert (others[-1].name, others[-1].kind) == ("table", "embedding")
    quantized_apply, stored = transform.quantize(both, params, transform.dynamic_int8, i, x)
    assert set(stored["float"]) == {"table"}
    np.testing.assert_array_equal(jax.jit(quantized_apply)(stored, i, x)[0], jax.jit(apply)(table, i), strict=True)


@pytest.mark.parametrize(
    "apply",
    [
        lambda p, i, x: x @ p[i],
        lambda p, i, x: x @ p[i].reshape(ROWS, 4, 4).reshape(ROWS, -1),
        lambda p, i, x: x @ lax.cond(i > 1, lambda w: w, lambda w: w + 1, p[0]),
        lambda p, i, x: x @ p[0] + jnp.arange(WIDTH, dtype=np.float32)[i],
    ],
    ids=["a site", "a product that stays float", "a branch", "a constant"],
)
def test_what_a_product_reads_is_listed_once(apply):
    """Matrices that a product reads are no table, and constants are none of the function's parameters."""
    rows = transform.sites(apply, TABLES, np.int32(1), Draw(5).input(4, ROWS))
    assert [row.kind for row in rows] == ["matmul"]


@pytest.mark.parametrize("bound", [3, None])
def test_vectors_of_layers_stay_float(bound):
    """In a loop over layers, of known length or not, matrices that it takes by number are sites, and biases are not."""

    def apply(params, x, length):
        def layer(number, x):
            return jnp.tanh(x @ params["kernels"][number] + params["biases"][number][None])

        return lax.fori_loop(0, length if bound is None else bound, layer, x)

    params = {"kernels": draw_table(3, WIDTH, WIDTH), "biases": draw_table(3, WIDTH)}
    rows = transform.sites(apply, params, jnp.ones((2, WIDTH)), 3, recipe=recipe(Scheme()))
    assert [(row.name, row.kind, row.reason) for row in rows] == [
        ("kernels", "matmul", None),
        ("biases", "embedding", "each pass of a loop takes a vector of its own"),
    ]
