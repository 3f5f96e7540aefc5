"""Weights that an index or groups of rows select from a stack, such as those of experts."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.compositions import NumPy, Operators, assert_equal_leaves
from support.draw import Draw
from support.experts import ragged_product, selected_product
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range
from jquant.transform import Scheme

EXPERTS, DEPTH, WIDTH, TOKENS = 5, 32, 24, 6
INTEGERS = {
    "dynamic": Scheme(),
    "static": Scheme(activations="STATIC"),
    "row": Scheme(activations="DYNAMIC_ROW"),
    "int4 by row": Scheme(weight_type="INT4", block_size=8, scale_type="FLOAT16", activations="DYNAMIC_ROW"),
    "mxfp4 by row": Scheme(weight_type="MXFP4", activations="DYNAMIC_ROW", block_size=8),
    "uint8": Scheme(weight_type="UINT8"),
}
FLOATS = {
    "int8": Scheme(activations="FLOAT"),
    "int4": Scheme(weight_type="INT4", block_size=8, activations="FLOAT"),
    "int2": Scheme(weight_type="INT2", block_size=16, activations="FLOAT"),
    "mxfp4": Scheme(weight_type="MXFP4", activations="FLOAT"),
    "float8": Scheme(weight_type="FLOAT8E4M3FN", activations="FLOAT"),
}
ONE_SCALE = {  # for the whole stack
    "uint8 by tensor": Scheme(weight_type="UINT8", weights="PER_TENSOR"),
    "nvfp4": Scheme(weight_type="NVFP4", activations="FLOAT"),
    "nvfp4 by row": Scheme(weight_type="NVFP4", activations="DYNAMIC_ROW"),
    "float8 by tensor": Scheme(weight_type="FLOAT8E4M3FN", weights="PER_TENSOR", activations="FLOAT"),
}


def by_index(w, index):
    return w[index]


def by_take(w, index):
    return jnp.take(w, index, axis=0)


def by_vmap(w, index):
    select = lambda number: w[number]  # noqa: E731
    for _ in range(index.ndim):
        select = jax.vmap(select)
    return select(index)


def by_dynamic_index(w, index):
    return lax.dynamic_index_in_dim(w, index, keepdims=False)


FORMS = {  # how the matrices are selected, and the einsum and the shapes of x, the stack and the index
    "one": (by_index, "td,df->tf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), ()),
    "dynamic index": (by_dynamic_index, "td,df->tf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), ()),
    "one by token": (by_index, "td,tdf->tf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), (TOKENS,)),
    "take": (by_take, "td,tkdf->tkf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), (TOKENS, 2)),
    "vmap": (by_vmap, "td,tkdf->tkf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), (TOKENS, 2)),
    "for all tokens": (by_index, "td,kdf->ktf", (TOKENS, DEPTH), (EXPERTS, DEPTH, WIDTH), (3,)),
    "heads": (by_index, "thd,thdf->thf", (TOKENS, 2, DEPTH), (EXPERTS, 2, DEPTH, WIDTH), (TOKENS,)),
    "another order": (by_index, "thd,tfdh->fth", (TOKENS, 2, DEPTH), (EXPERTS, WIDTH, DEPTH, 2), (TOKENS,)),
}


def select_function(form):
    select, letters, *_ = FORMS[form]
    return lambda params, x, index: jnp.einsum(letters, x, select(params["w"], index))


def draw_form(form, seed=0):
    _, _, x_shape, w_shape, index_shape = FORMS[form]
    draw = Draw(seed)
    index = np.random.default_rng(seed).integers(0, EXPERTS, index_shape, np.int32)
    return {"w": draw.weights(*w_shape)}, draw.input(*x_shape), index


def calibration_of(scheme, x):
    if scheme.activations != "STATIC":
        return {}
    return {"w": Range(*(np.float32(0.75 * extreme) for extreme in (x.min(), x.max())))}


@one_in(19, ("form", "scheme"), itertools.product(FORMS, INTEGERS), gate=6)
def test_selected_by_an_index(form, scheme, count):
    """One product by hand for each matrix that is selected, also in NumPy; jitted, exported and mapped."""
    params, x, index = draw_form(form)
    quantization, calibration = recipe(INTEGERS[scheme]), calibration_of(INTEGERS[scheme], x)
    quantized_apply, stored = transform.quantize(
        select_function(form), params, quantization, x, index, calibration=calibration
    )
    assert not stored["float"]
    letters, w = FORMS[form][1], params["w"]
    expected = selected_product(NumPy(quantization, calibration), letters, x, w, index, site="w")
    composed = selected_product(Operators(quantization, calibration), letters, *map(jnp.asarray, (x, w)), index, site="w")
    jitted = jax.jit(quantized_apply)
    exported = export.export(jitted)(stored, *(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (x, index)))
    for result in (composed, quantized_apply(stored, x, index), jitted(stored, x, index), exported.call(stored, x, index)):
        assert_equal_leaves(result, expected)
    mapped = jax.vmap(quantized_apply, (None, None, 0))(stored, x, np.stack([index, (index + 1) % EXPERTS]))
    assert_equal_leaves(mapped[0], expected)
    count("selected products", 6 * max(index.size, 1))


@one_in(7, ("form", "scheme"), itertools.product(FORMS, FLOATS), gate=5)
def test_selected_and_multiplied_by_floats(form, scheme):
    """By rows of the identity, whose sums have one term: the numbers of the selected matrices."""
    params, x, index = draw_form(form)
    x = (np.arange(x.size).reshape(x.shape) % (DEPTH + 1) == 3).astype(np.float32)
    quantization = recipe(FLOATS[scheme])
    quantized_apply, stored = transform.quantize(select_function(form), params, quantization, x, index)
    assert not stored["float"]
    expected = selected_product(NumPy(quantization, {}), FORMS[form][1], x, params["w"], index, site="w")
    for function in (quantized_apply, jax.jit(quantized_apply)):
        np.testing.assert_array_equal(function(stored, x, index), expected, strict=True)


SIZES = (1, 2, 0, 2, 1), (0, 0, 6, 0, 0), (0, 1, 2, 0, 0), (0, 0, 0, 0, 0), (40, 0, 3, 60, 17)


@one_in(13, ("sizes", "scheme"), itertools.product(SIZES, [*INTEGERS, *FLOATS]), gate=5)
def test_groups_of_rows(sizes, scheme, count):
    """`jax.lax.ragged_dot`: a product by hand for each group. Rows behind the last group are 0."""
    draw = Draw(1)
    rows = max(sum(sizes), TOKENS)
    params, x = {"w": draw.weights(EXPERTS, DEPTH, WIDTH)}, draw.input(rows, DEPTH)
    if scheme in FLOATS:
        x = np.eye(DEPTH, dtype=np.float32)[np.arange(rows) % DEPTH]
    quantization = recipe({**INTEGERS, **FLOATS}[scheme])
    calibration = calibration_of(quantization.rules[0][1], x)
    apply = lambda params, x, sizes: lax.ragged_dot(x, params["w"], sizes)  # noqa: E731
    sizes = np.int32(sizes)
    quantized_apply, stored = transform.quantize(apply, params, quantization, x, sizes, calibration=calibration)
    assert not stored["float"]
    expected = ragged_product(NumPy(quantization, calibration), x, params["w"], sizes, site="w")
    for function in (quantized_apply, jax.jit(quantized_apply)):
        np.testing.assert_array_equal(function(stored, x, sizes), expected, strict=True)
    count("groups", 2 * len(sizes))


@pytest.mark.gate
@one_in(3, "scheme", ONE_SCALE)
def test_one_scale_for_the_stack(scheme):
    """The products with all matrices, of which some are taken, are those with some matrices, and those by groups."""
    params, x, index = draw_form("one by token")
    if ONE_SCALE[scheme].activations == "FLOAT":
        x = np.eye(DEPTH, dtype=np.float32)[:TOKENS]
    index = np.sort(index)
    sizes = np.bincount(index, minlength=EXPERTS).astype(np.int32)
    results = []
    for apply, arguments in (
        (lambda p, x: jnp.einsum("td,edf->tef", x, p["w"]), (x,)),
        (select_function("one by token"), (x, index)),
        (lambda p, x, sizes: lax.ragged_dot(x, p["w"], sizes), (x, sizes)),
    ):
        quantized_apply, stored = transform.quantize(apply, params, recipe(ONE_SCALE[scheme]), *arguments)
        results.append(np.asarray(jax.jit(quantized_apply)(stored, *arguments)))
    expected = results[0][np.arange(TOKENS), index]
    for result in results[1:]:
        np.testing.assert_array_equal(result, expected, strict=True)


def test_indices_beyond_the_stack():
    """As the function has it: NaN from `jnp.take`, the last matrix from an index, and the first from the end if negative."""
    for form in ("take", "one by token"):
        params, x, index = draw_form(form)
        index.reshape(-1)[:3] = EXPERTS + 2, -1, -EXPERTS
        params, x, index = jax.tree.map(jnp.asarray, (params, x, index))
        quantized_apply, stored = transform.quantize(select_function(form), params, transform.dynamic_int8, x, index)
        result = jax.jit(quantized_apply)(stored, x, index)
        expected = select_function(form)(params, x, index)
        np.testing.assert_array_equal(jnp.isnan(result), jnp.isnan(expected))
        assert jnp.nanmax(jnp.abs(result - expected)) < 0.05 * jnp.nanmax(jnp.abs(expected))


@one_in(3, ("layers", "experts"), [(3, EXPERTS), (1, EXPERTS), (None, 1)])
def test_a_stack_of_stacks(layers, experts):
    """Each layer has an expert of its own, mapped over the layers; and a stack of one expert."""
    draw, sizes = Draw(6), () if layers is None else (layers,)
    w, x = draw.weights(*sizes, experts, DEPTH, WIDTH), draw.input(*sizes, TOKENS, DEPTH)
    index = np.int32([experts - 1, 0, experts // 2])[:layers] if sizes else np.int32(0)

    def apply(params, x, index):
        product = lambda w, x, i: x @ w[i]  # noqa: E731
        return (jax.vmap(product) if sizes else product)(params["w"], x, index)

    scheme = recipe(INTEGERS["row"])
    quantized_apply, stored = transform.quantize(apply, {"w": w}, scheme, x, index)
    assert not stored["float"]
    expected = np.empty((*sizes, TOKENS, WIDTH), np.float32)
    for layer in np.ndindex(sizes):
        each = (array[layer] for array in (x, w, index))
        expected[layer] = selected_product(NumPy(scheme, {}), "td,df->tf", *each, site="w")
    np.testing.assert_array_equal(jax.jit(quantized_apply)(stored, x, index), expected, strict=True)


def test_two_indices():
    """One of layers, and one of experts; the stack is transposed and cast before."""
    draw = Draw(2)
    params, x = {"w": draw.weights(3, WIDTH, EXPERTS, DEPTH)}, draw.input(TOKENS, DEPTH)
    experts = np.random.default_rng(2).integers(0, EXPERTS, TOKENS, np.int32)

    def apply(params, x, layer, experts):
        w = params["w"].transpose(0, 2, 3, 1).astype(jnp.bfloat16).astype(jnp.float32)
        return jnp.einsum("td,tdf->tf", x, w[layer, experts])

    scheme = recipe(INTEGERS["row"])
    quantized_apply, stored = transform.quantize(apply, params, scheme, x, jnp.int32(1), experts)
    expected = selected_product(NumPy(scheme, {}), "td,tdf->tf", x, params["w"][1].transpose(1, 2, 0), experts, site="w")
    np.testing.assert_array_equal(jax.jit(quantized_apply)(stored, x, jnp.int32(1), experts), expected, strict=True)


def mixture(params, x, select):
    """A router, and two experts for each token; `select` computes an expert's layer."""
    weights, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
    hidden = jax.nn.relu(select(x, params["up"], chosen, "first"))
    return (select(hidden, params["down"], chosen, "second") * weights[..., None]).sum(1)


def with_index(x, w, chosen, layer):
    letters = {"first": "td,tkdf->tkf", "second": "tkd,tkdf->tkf"}[layer]
    return jnp.einsum(letters, x, w[chosen])


def with_groups(x, w, chosen, layer):
    """Rows sorted by their experts, multiplied by groups, and put back."""
    rows = jnp.repeat(x, 2, axis=0) if layer == "first" else x.reshape(-1, x.shape[-1])
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=len(w)).astype(jnp.int32)
    return lax.ragged_dot(rows[order], w, sizes)[jnp.argsort(order)].reshape(*chosen.shape, -1)


def with_every_expert(x, w, chosen, layer):
    """All experts for all tokens, of which the chosen ones are taken."""
    letters = {"first": "td,edf->tef", "second": "tkd,edf->tkef"}[layer]
    every = jnp.einsum(letters, x, w)
    if layer == "first":
        return jnp.take_along_axis(every, chosen[:, :, None], axis=1)
    return jnp.take_along_axis(every, chosen[:, :, None, None], axis=2)[:, :, 0]


@pytest.fixture(scope="module")
def mixture_operands():
    draw = Draw(3)
    shapes = {"router": (64, 8), "up": (8, 64, 128), "down": (8, 128, 64)}
    params = {name: jnp.asarray(draw.weights(*shape) / np.float32(16)) for name, shape in shapes.items()}
    return params, jnp.asarray(draw.input(12, 64))


@pytest.mark.gate
@one_in(
    2,
    ("name", "share"),
    [("int8", 0.28), ("int4_by_rows", 0.145), ("weight_only_int4", 0.145), ("weight_only_mxfp4", 0.135)],
    others="full",
)
def test_a_mixture_of_experts(mixture_operands, name, share):
    """Each way of writing it has the same sites; by an index and by groups, with the same parameters and, by rows, bits."""
    params, x = mixture_operands
    by_rows = transform.Recipe([("*", Scheme(activations="DYNAMIC_ROW"))])
    quantization = by_rows if name == "int8" else getattr(transform, name)
    results, sites = [], []
    for select in (with_index, with_groups, with_every_expert):
        apply = functools.partial(mixture, select=select)
        quantized_apply, stored = transform.quantize(apply, params, quantization, x)
        assert set(stored["sites"]) == {"router", "up", "down"}
        assert not stored["float"]
        sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (stored, params)]
        assert sizes[0] <= share * sizes[1]
        sites.append(stored)
        results.append(jax.jit(quantized_apply)(stored, x))
        exact = apply(params, x)
        noise = 10 * jnp.log10(jnp.var(exact) / jnp.var(results[-1] - exact))
        assert noise > (30 if name == "int8" else 10)
    if quantization is by_rows or name == "int4_by_rows":
        np.testing.assert_array_equal(results[1], results[0], strict=True)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)
    if name == "int8":
        np.testing.assert_allclose(results[2], results[0], rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, sites[1], sites[0])  # the third has the matrices of all experts as one


def test_experts_in_every_layer():
    """In a loop over stacked layers, inside `jit` and `checkpoint`."""
    draw = Draw(4)
    params, x = {"w": draw.weights(3, EXPERTS, WIDTH, WIDTH, layers=1)}, draw.input(TOKENS, WIDTH)
    index = np.random.default_rng(4).integers(0, EXPERTS, (3, TOKENS), np.int32)

    def apply(params, x, index):
        @jax.checkpoint
        def layer(x, slices):
            w, index = slices
            return jax.nn.relu(jnp.einsum("td,tdf->tf", x, jax.jit(by_take)(w, index))), ()

        return lax.scan(layer, x, (params["w"], index))[0]

    scheme = recipe(INTEGERS["row"])
    quantized_apply, stored = transform.quantize(apply, params, scheme, x, index)
    assert stored["sites"]["w"]["values"].shape == (3, EXPERTS, WIDTH, WIDTH)
    expected = x
    for w, numbers in zip(params["w"], index, strict=True):
        product = selected_product(NumPy(scheme, {}), "td,tdf->tf", expected, w, numbers, site="w")
        expected = np.maximum(product, np.float32(0))
    np.testing.assert_array_equal(jax.jit(quantized_apply)(stored, x, index), expected, strict=True)


def test_selected_matrices_that_are_read_in_other_ways_stay_float():
    """A branch, a loop and a sum read them as they are; the product beside is quantized all the same."""
    params, x, index = draw_form("one by token")

    def apply(params, x, index):
        w = params["w"][index]
        other = lax.cond(x.sum() > 0, lambda w: w + 1, lambda w: w, w)
        total = lax.fori_loop(0, 2, lambda _, total: total + w.sum(), 0.0)
        return jnp.einsum("td,tdf->tf", x, w), other, total, w

    quantized_apply, stored = transform.quantize(apply, params, transform.dynamic_int8, x, index)
    assert list(stored["float"]) == ["w"]
    result, *others = jax.jit(quantized_apply)(stored, x, index)
    exact, *expected = apply(params, x, index)
    assert 0 < jnp.abs(result - exact).max() < 0.05 * jnp.abs(exact).max()
    for other, wanted in zip(others, expected, strict=True):
        np.testing.assert_allclose(other, wanted, rtol=1e-6)


def test_a_sum_over_the_index_stays_float():
    params, x, index = draw_form("one by token")
    apply = lambda p, x, i: jnp.einsum("tkd,kdf->tf", jnp.stack([x, x], axis=1), p["w"][i[:2]])  # noqa: E731
    (row,) = transform.sites(apply, params, x, index)
    assert row.reason == "it sums over the matrices that an index selects"


@pytest.mark.gate
@one_in(2, "select", [with_index, with_groups], others="full", ids=lambda select: select.__name__)
def test_training(mixture_operands, select):
    """Quantization-aware training, the straight-through derivative, and adapters of each expert."""
    params, x = mixture_operands
    apply = functools.partial(mixture, select=select)
    quantization = transform.Recipe([("*", Scheme(activations="DYNAMIC_ROW"))])
    straight, stored = transform.quantize(apply, params, quantization, x, derivative="STRAIGHT_THROUGH")
    aware = transform.quantization_aware(apply, quantization)
    np.testing.assert_allclose(jax.jit(aware)(params, x), jax.jit(straight)(stored, x), rtol=1e-3, atol=1e-4)
    exact = jax.jit(jax.grad(lambda x: apply(params, x).sum()))(x)
    for function, arguments in ((aware, params), (straight, stored)):
        gradient = jax.jit(jax.grad(lambda x, f=function, p=arguments: f(p, x).sum()))(x)
        assert jnp.abs(gradient - exact).max() < 0.1 * jnp.abs(exact).max()
    adapters = transform.adapters.init(straight, jax.random.key(0), 2)
    assert adapters["up"]["a"].shape == (8, 64, 2)
    adapted = transform.adapters.attach(straight)
    np.testing.assert_array_equal(jax.jit(adapted)(adapters, stored, x), jax.jit(straight)(stored, x))
    gradients = jax.jit(jax.grad(lambda adapters: jnp.square(adapted(adapters, stored, x)).sum()))(adapters)
    assert all(jnp.abs(pair["b"]).max() > 0 for pair in gradients.values())
