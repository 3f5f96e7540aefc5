"""`transform.shardings`: a transformer on eight devices has the integers of one, and what cannot be split is said before."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import saved_models

from jquant import transform
from jquant.transform import Recipe, Scheme, TransformError

P = PartitionSpec
WIDTH, HEADS, HIDDEN, LAYERS, WORDS = 128, 8, 256, 2, 32
MESH = functools.cache(lambda: jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,)))
RULES = [  # of the parameters as the float transformer would have them
    ("embed", P("model", None)),
    ("layers/[qkv]", P(None, None, "model", None)),
    ("layers/o", P(None, "model", None, None)),
    ("layers/up", P(None, None, "model")),
    ("layers/down", P(None, "model", None)),
]
RECIPES = {
    "int8": Scheme(activations="DYNAMIC_ROW", k_parts=8),
    "int4 in blocks": Scheme(weight_type="INT4", block_size=16, scale_type="FLOAT16", activations="DYNAMIC_ROW", k_parts=8),
    "mxfp4 by integers": Scheme(weight_type="MXFP4", block_size=16, activations="DYNAMIC_ROW", k_parts=8),
    "nvfp4": Scheme(weight_type="NVFP4", activations="FLOAT"),
}


def transformer(params, tokens, replicated=lambda x: x):
    """Each device computes all of the float code, so that it has the bits of one."""

    def product(letters, x, w):
        return replicated(jnp.einsum(letters, replicated(x), w))

    def norm(x):
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))

    def layer(x, w):
        y = norm(x) * w["scale"][None, None]
        q, k, v = (product("bsd,dhk->bhsk", y, w[name]) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k))
        x = x + product("bhsk,hkd->bsd", jnp.einsum("bhst,bhtk->bhsk", scores, v), w["o"])
        return x + product("bsf,fd->bsd", jax.nn.relu(product("bsd,df->bsf", norm(x), w["up"])), w["down"]), None

    x, _ = jax.lax.scan(layer, replicated(params["embed"][tokens]), params["layers"])
    return product("bsd,vd->bsv", norm(x), params["embed"])


def draw():
    rng = np.random.default_rng(0)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(WIDTH)).astype(np.float32)  # noqa: E731
    heads = WIDTH, HEADS, WIDTH // HEADS
    shapes = {**dict.fromkeys("qkv", heads), "o": heads[1:] + heads[:1], "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    layers = {name: normal(LAYERS, *shape) for name, shape in shapes.items()}
    return {"embed": normal(WORDS, WIDTH), "layers": {**layers, "scale": np.ones((LAYERS, WIDTH), np.float32)}}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.gate if name == "int4 in blocks" else pytest.mark.full) for name in RECIPES],
)
def test_a_transformer(name, tmp_path, count):
    """Split by heads, columns and rows at the first try: from memory, and read from a file by each device."""
    params, tokens = draw(), np.arange(10, dtype=np.int32).reshape(2, 5)
    quantization = Recipe([("*", RECIPES[name])])
    one_apply, target = transform.quantize(transformer, jax.eval_shape(lambda: params), quantization, tokens)
    quantized = saved_models.drawn(target, np.random.default_rng(1))
    expected = jax.jit(one_apply)(quantized, tokens)
    assert np.isfinite(expected).all()

    replicated = functools.partial(jax.lax.with_sharding_constraint, shardings=NamedSharding(MESH(), P()))
    on_mesh = functools.partial(transformer, replicated=replicated)
    transform.save(tmp_path / "a.safetensors", one_apply, quantized)
    types = jax.eval_shape(lambda: params)
    split_apply, loaded = transform.load(tmp_path / "a.safetensors", on_mesh, types, tokens, mesh=MESH(), rules=RULES)
    placed = jax.device_put(quantized, transform.shardings(split_apply, quantized, MESH(), RULES))
    assert saved_models.digest(placed) == saved_models.digest(loaded) == saved_models.digest(quantized)
    for leaf in jax.tree.leaves({path: each["values"] for path, each in loaded["sites"].items()}):
        assert leaf.addressable_shards[0].data.size == leaf.size // 8
    actual = jax.jit(split_apply)(loaded, tokens)
    if name == "nvfp4":  # its products are sums of floats, in another order: 2**-20 for 15 products one after the other
        bound = 2.0**-20 * np.abs(expected).max()
        assert np.abs(np.asarray(actual) - expected).max() < bound
    else:
        np.testing.assert_array_equal(actual, expected, strict=True)
        count("logits of a transformer on eight devices", expected.size)


def obstacles(scheme, shape, spec, function=lambda p, x: x @ p["w"], mesh=None, x=None):
    """What `shardings` says about one weight."""
    types = {"w": jax.ShapeDtypeStruct(shape, jnp.float32), "bias": jax.ShapeDtypeStruct((shape[-1],), jnp.float32)}
    apply = lambda p, x: (function(p, x), p["bias"] * np.float32(2))  # noqa: E731
    x = jax.ShapeDtypeStruct((4, shape[-2]), jnp.float32) if x is None else x
    quantized_apply, target = transform.quantize(apply, types, Recipe([("*", scheme)], smallest=1), x)
    return transform.shardings(quantized_apply, target, mesh or MESH(), [("w", spec)])


REFUSED = {
    "column sums": (Scheme(), (64, 8), P("model"), "split the blocks of column sums of its 64 rows: pass k_parts=8"),
    "int4 in blocks": (
        Scheme(weight_type="INT4", block_size=32),
        (64, 8),
        P("model"),
        "split blocks of 32 of its 64 rows: pass another block_size",
    ),
    "order of sums": (
        Scheme(weight_type="INT4", block_size=8, k_parts=4),
        (64, 8),
        P("model"),
        "would add the sums of its blocks in another order than one: pass k_parts=8",
    ),
    "order of sums of mxfp4": (
        Scheme(weight_type="MXFP4", block_size=8, k_parts=4),
        (64, 8),
        P("model"),
        "would add the sums of its blocks in another order than one: pass k_parts=8",
    ),
    "mxfp4 by integers": (
        Scheme(weight_type="MXFP4"),
        (64, 8),
        P("model"),
        "split blocks of 32 of its 64 rows: pass another",
    ),
    "nvfp4 by integers": (Scheme(weight_type="NVFP4"), (64, 8), P("model"), "split blocks of 16 .*: NVFP4 has no other"),
    "nvfp4": (RECIPES["nvfp4"], (64, 8), P("model"), "split blocks of 16 of its 64 rows: NVFP4 has no other"),
    "int2": (
        Scheme(weight_type="INT2", block_size=16, activations="FLOAT"),
        (64, 8),
        P("model"),
        "split blocks of 16 of its 64 rows: pass another block_size",
    ),
    "columns": (Scheme(), (64, 12), P(None, "model"), "its 12 columns have no 8 equal parts: leave them whole"),
    "rank": (Scheme(), (64, 8), P(None, None, "model"), "the rule of 'w' is .*, but it has 2 dimensions"),
}


def test_what_cannot_be_split():
    """By site and by what helps; with that, it can."""
    start = r"transform.shardings: the mesh \(model=8\) cannot split:\n- w: (8 devices )?(would )?"
    for scheme, shape, spec, message in REFUSED.values():
        with pytest.raises(TransformError, match=start + message):
            obstacles(scheme, shape, spec)
        if field := re.search(r"k_parts=(\d+)", message):
            fields = {"weight_type": scheme.weight_type, "block_size": scheme.block_size, "k_parts": int(field[1])}
            values = obstacles(Scheme(**fields), shape, spec)["sites"]["w"]["values"]
            assert all("model" in leaf.spec for leaf in jax.tree.leaves(values))


def test_all_obstacles_at_once():
    """Of sites and of what stays float, before anything is moved."""
    types = {"a": jax.ShapeDtypeStruct((64, 64), jnp.float32), "b": jax.ShapeDtypeStruct((36,), jnp.float32)}
    types["heads"] = jax.ShapeDtypeStruct((64, 8, 8), jnp.float32)

    def apply(p, x):
        return x @ p["a"], p["b"] * np.float32(2), jnp.einsum("bd,dhk->bhk", x, p["heads"])

    quantized_apply, target = transform.quantize(
        apply, types, transform.dynamic_int8, jax.ShapeDtypeStruct((4, 64), "float32")
    )
    rules = [("a", P("model")), ("b", P("model")), ("heads", P(None, None, "model"))]
    with pytest.raises(TransformError) as raised:
        transform.shardings(quantized_apply, target, MESH(), rules)
    _, *lines = str(raised.value).split("\n- ")
    assert [line.split(": ")[0] for line in lines] == ["a", "heads", "b"]
    assert "splits another than the first of several dimensions" in lines[1]
    assert lines[2] == "b: its 36 elements along dimension 0 have no 8 equal parts: leave them whole"
    whole = transform.shardings(quantized_apply, target, MESH(), [("*", None)])
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(whole))


def test_two_levels_of_layers():
    """The scale of a tensor of NVFP4 has dimensions of layers alone, which no rule about columns splits."""

    def nested(p, x):
        row = lambda x, w: (jnp.tanh(x @ w), None)  # noqa: E731
        return jax.lax.scan(lambda x, w: (jax.lax.scan(row, x, w)[0], None), x, p["w"])[0]

    scheme, x = RECIPES["nvfp4"], jax.ShapeDtypeStruct((4, 32), jnp.float32)
    site = obstacles(scheme, (3, 2, 32, 32), P(None, None, None, "model"), nested, x=x)["sites"]["w"]
    assert (site["values"].spec, site["tensor_scale"].spec) == (P(None, None, None, "model"), P())


def test_filters_and_experts():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    convolve = lambda p, x: jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME")  # noqa: E731
    images = jax.ShapeDtypeStruct((2, 4, 3, 3), jnp.float32)
    site = obstacles(Scheme(), (8, 4, 3, 3), P("model", "data"), convolve, mesh, images)["sites"]["w"]
    assert (site["values"].spec, site["scale"].spec) == (P("model", "data", None, None), P("model"))
    with pytest.raises(TransformError, match="w: its 6 elements along dimension 0 have no 4 equal parts"):
        obstacles(Scheme(), (6, 4, 3, 3), P("model"), convolve, mesh, images)
    select = lambda p, x: jnp.einsum("td,tdn->tn", x, p["w"][jnp.arange(4) % 2])  # noqa: E731
    site = obstacles(Scheme(activations="DYNAMIC_ROW"), (2, 32, 8), P("data", None, "model"), select, mesh)["sites"]["w"]
    assert (site["values"].data.spec, site["scale"].spec) == (P("data", "model", None), P("data", "model"))


def test_wrong_arguments():
    apply, types = lambda p, x: x @ p["w"], {"w": jax.ShapeDtypeStruct((16, 16), jnp.float32)}
    quantized_apply, target = transform.quantize(
        apply, types, transform.dynamic_int8, jax.ShapeDtypeStruct((4, 16), "float32")
    )
    shardings, mesh = functools.partial(transform.shardings, quantized_apply, target), MESH()
    for call, message in (
        (lambda: transform.shardings(apply, target, mesh, []), "quantized_apply is .*; it must be the function that"),
        (lambda: transform.shardings(quantized_apply, {}, mesh, []), "params is {}; it must be the quantized parameters"),
        (lambda: shardings(3, []), "mesh is 3; it must be a mesh"),
        (lambda: shardings(mesh, 3), "rules is 3; it must be a list of pairs"),
        (lambda: shardings(mesh, [("w", "model")]), "rules is .*; it must be a list of pairs"),
        (lambda: shardings(mesh, [("w", P("data"))]), "the rule of 'w' is .*, and the mesh has no axis 'data', but model"),
        (
            lambda: shardings(mesh, [("w", P("model", "model"))]),
            "the rule of 'w' is .*, in which an axis splits two dimensions",
        ),
        (lambda: shardings(mesh, [("w", P()), ("v", P())]), "no parameter matches the patterns 'v'"),
    ):
        with pytest.raises(TransformError, match=f"transform.shardings: {message}"):
            call()
