"""`transform.adapters`: low-rank matrices that are trained beside frozen integers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.comparison import assert_declined, assert_equal
from support.compositions import numpy_calibration
from support.draw import Draw
from support.networks import SCHEMES, Float, recipe
from support.rounded import assert_close
from support.sampling import one_in
from support.small_functions import NETWORKS, draw_operands

import jquant
from jquant import transform
from jquant.transform import TransformError, TransformTypeError, adapters

KEY = jax.random.key(0)
FEW_BITS = {
    "int4": transform.Scheme(weight_type="INT4", block_size=16, activations="DYNAMIC_ROW"),
    "int2": transform.Scheme(weight_type="INT2", block_size=16, activations="FLOAT"),
}


# A language model in small: scanned layers with heads, and one table for embeddings and logits.


def language_model(params, tokens):
    x = params["embed"][tokens]

    @jax.checkpoint
    def layer(x, w):
        q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k) * np.float32(0.25)
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))[None, None]
        mixed = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)
        x = x + jnp.einsum("bhsk,hkd->bsd", mixed, w["o"])
        return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

    x, _ = lax.scan(layer, x, params["layers"])
    return x @ params["embed"].T


def draw_language_model():
    draw = Draw(0)
    shapes = {"q": (16, 2, 8), "k": (16, 2, 8), "v": (16, 2, 8), "o": (2, 8, 16), "up": (16, 32), "down": (32, 16)}
    layers = {name: draw.weights(3, *shape) * np.float32(0.1) for name, shape in shapes.items()}
    return {"embed": draw.weights(32, 16) * np.float32(0.5), "layers": layers}, draw.indices(8, 12, below=32)


def quantized_language_model(scheme, *, only_types=False):
    params, tokens = draw_language_model()
    params = jax.eval_shape(lambda: params) if only_types else params
    return *transform.quantize(language_model, params, recipe(FEW_BITS[scheme]), tokens), tokens


@pytest.mark.gate
@one_in(2, "scheme", FEW_BITS, others="full")
def test_training(scheme, count):
    """Sixty steps of optax teach a frozen model a sequence that it does not know; the packed weights stay as they are."""
    optax = pytest.importorskip("optax", reason="optax is not installed (extra: recipes)")
    quantized_apply, quantized_params, tokens = quantized_language_model(scheme)
    adapted = adapters.attach(quantized_apply, alpha=8)
    trained = adapters.init(quantized_apply, KEY, 4)
    before = jax.tree.map(np.asarray, quantized_params)
    optimizer = optax.adam(5e-3)

    def loss(trained, quantized_params):
        logits = adapted(trained, quantized_params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    @jax.jit
    def step(trained, state, quantized_params):
        value, gradient = jax.value_and_grad(loss)(trained, quantized_params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(trained, updates), state, value

    state, losses = optimizer.init(trained), []
    with jax.numpy_dtype_promotion("standard"):  # for optax
        for _ in range(60):
            trained, state, value = step(trained, state, quantized_params)
            losses.append(float(value))
    logits = quantized_apply(quantized_params, tokens)
    without = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()
    np.testing.assert_allclose(losses[0], without, 1e-6)
    assert losses[-1] < losses[0] / 3
    assert_equal(quantized_params, before)
    assert all(np.any(pair["a"] != 0) and np.any(pair["b"] != 0) for pair in trained.values())
    count("steps of training", len(losses))


def quantized(name, scheme="dynamic row"):
    network = NETWORKS[name]
    parameters, x = draw_operands(network, scheme, 7)
    exact = scheme.startswith("weights")
    calibration = numpy_calibration(network.function, parameters, x, exact=exact)
    apply = lambda params, x: network.function(Float(exact=exact), params, x)  # noqa: E731
    return *transform.quantize(apply, parameters, recipe(SCHEMES[scheme]), x, calibration=calibration), x


ADAPTED = ("heads", "batch_in_the_weights", "several_contracted_dimensions", "weights_on_the_left", "nested_loops", "branch")
ADAPTED += (
    "one_weight_twice",
    "recurrent",
    "tied_embedding",
    "cast_to_bfloat16",
    "shared_input",
    "rematerialized_layers",
    "cast_with_wider_sums",
)


@one_in(7, ("name", "scheme"), zip(itertools.cycle(ADAPTED), SCHEMES, strict=False), gate=2)
def test_adapters_of_zero(name, scheme, count):
    """At all sites, and at one: the bits of the quantized function."""
    quantized_apply, quantized_params, x = quantized(name, scheme)
    expected = jax.jit(quantized_apply)(quantized_params, x)
    adapted = jax.jit(adapters.attach(quantized_apply))
    zero = adapters.init(quantized_apply, KEY, 2)
    for chosen in (zero, dict([next(iter(zero.items()))])):
        assert_equal(adapted(chosen, quantized_params, x), expected)
        count("outputs with adapters of zero", sum(leaf.size for leaf in jax.tree.leaves(expected)))


def test_negative_zeros_are_kept():
    """-0.0 + 0.0 would be 0.0."""
    w, x = np.full((16, 16), -1e-20, np.float32), np.full((4, 16), 1e-30, np.float32)
    quantized_apply, quantized_params = transform.quantize(lambda w, x: x @ w, w, recipe(SCHEMES["weights alone"]), x)
    expected = quantized_apply(quantized_params, x)
    assert np.all(expected == 0)
    assert np.all(np.signbit(expected))
    output = adapters.attach(quantized_apply)(adapters.init(quantized_apply, KEY, 2), quantized_params, x)
    assert_equal(output, expected)


def test_product_by_hand():
    """Integers, whose sums are exact: of heads, with the batch of the weights, in layers, with a rank of their own."""
    draw = Draw(0, exact=True)
    w = {"q": draw.weights(2, 16, 2, 8, layers=1), "each": draw.weights(2, 2, 8, 8, layers=1)}
    x = draw.input(5, 16)

    def apply(params, x):
        def layer(_, w):
            heads = jnp.einsum("bd,dhk->bhk", x, w["q"])
            return None, (heads, jnp.einsum("bhk,hkn->bhn", x.reshape(5, 2, 8), w["each"]))

        return lax.scan(layer, None, params)[1]

    quantized_apply, quantized_params = transform.quantize(apply, w, recipe(SCHEMES["dynamic row"]), x)
    trained = {
        "q": {"a": draw.input(2, 16, 3), "b": draw.input(2, 3, 16)},
        "each": {"a": draw.input(2, 2, 8, 4), "b": draw.input(2, 2, 4, 8)},
    }
    initial = adapters.init(quantized_apply, KEY, 3)
    assert initial["q"]["a"].shape == (2, 16, 3)
    assert initial["each"]["b"].shape == (2, 2, 3, 8)
    without = jax.jit(quantized_apply)(quantized_params, x)
    with_adapters = jax.jit(adapters.attach(quantized_apply, alpha=12))(trained, quantized_params, x)
    q = jnp.einsum("bd,ldr,lrn->lbn", x, trained["q"]["a"], trained["q"]["b"]).reshape(2, 5, 2, 8) * np.float32(4)
    each = jnp.einsum("bhk,lhkr,lhrn->lbhn", x.reshape(5, 2, 8), *trained["each"].values()) * np.float32(3)
    assert_equal(with_adapters, (without[0] + q, without[1] + each))


@one_in(3, "scheme", ["dynamic row", "weights alone", "weights alone, mxfp4"])
def test_derivatives(scheme):
    """In the adapters, and in the input through both paths: those of the sum, written by hand."""
    draw = Draw(0)
    w, x = draw.weights(16, 8), draw.input(5, 16)
    quantized_apply, quantized_params = transform.quantize(lambda w, x: jnp.sin(x @ w), w, recipe(SCHEMES[scheme]), x)
    trained = {"matmul": {"a": draw.weights(16, 2), "b": draw.weights(2, 8)}}
    adapted = adapters.attach(quantized_apply, alpha=1)
    linear, _ = transform.quantize(lambda w, x: x @ w, w, recipe(SCHEMES[scheme]), x, derivative="STRAIGHT_THROUGH")
    output, pull_back = jax.vjp(functools.partial(linear, quantized_params), x)

    def by_hand(trained, x):
        a, b = trained["matmul"]["a"], trained["matmul"]["b"]
        rows = output + (x @ a) @ b * np.float32(0.5)
        cotangent = jnp.cos(rows)
        gradient = {"a": x.T @ (cotangent @ b.T), "b": (x @ a).T @ cotangent}
        halves = jax.tree.map(lambda each: each * np.float32(0.5), (gradient, cotangent @ b.T @ a.T))
        return {"matmul": halves[0]}, pull_back(cotangent)[0] + halves[1]

    actual = jax.grad(lambda trained, x: adapted(trained, quantized_params, x).sum(), (0, 1))(trained, x)
    assert_close(actual, by_hand(trained, x), 2**-18, scheme)


# Initial values


def test_initial_values():
    draw = Draw(0)
    w = draw.weights(256, 512)
    quantized_apply, _ = transform.quantize(lambda w, x: x @ w, w, transform.weight_only_int8, draw.input(1, 256))
    a, b = adapters.init(quantized_apply, KEY, 64, dtype="bfloat16")["matmul"].values()
    assert a.dtype == b.dtype == jnp.bfloat16
    assert not np.any(b)
    a = np.asarray(a, np.float32)
    assert abs(a.mean()) < 0.002
    assert abs(a.std() * 16 - 1) < 0.02
    other = adapters.init(quantized_apply, jax.random.key(1), 64)["matmul"]["a"]
    assert not np.array_equal(a, other.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ("*", ["layers/q", "layers/k", "layers/v", "layers/o", "layers/up", "layers/down", "embed#2"]),
        ("layers/[qv]", ["layers/q", "layers/v"]),
        (["embed*", "layers/up"], ["layers/up", "embed#2"]),
        ("matmul", ["layers/q", "layers/k", "layers/v", "layers/o", "layers/up", "layers/down", "embed#2"]),
    ],
)
def test_sites(sites, expected):
    """Products alone: the look-up of the table has none."""
    quantized_apply, _, _ = quantized_language_model("int4", only_types=True)
    trained = adapters.init(quantized_apply, KEY, 2, sites=sites)
    assert set(trained) == set(expected)
    if len(trained) > 1:
        first, second = (np.asarray(pair["a"]).ravel()[:8] for pair in list(trained.values())[:2])
        assert not np.array_equal(first, second)


# Merging


@one_in(2, "scheme", [transform.Scheme(), FEW_BITS["int4"]], ids=["int8", "int4"])
def test_merge(scheme, count):
    """The quantized form of the sum: of integers, bit for bit."""
    draw = Draw(0, exact=True)
    w = {"layers": np.clip(draw.weights(3, 2, 16, 16, layers=1), -7, 7), "other": np.clip(draw.weights(16, 16), -7, 7)}
    w["layers"][..., 0, :] = w["other"][0] = 7 if scheme.weight_type == "INT4" else 127
    x = draw.input(5, 2, 16)

    def apply(w, x):
        x, _ = lax.scan(lambda x, w: (jnp.einsum("bhk,hkn->bhn", x, w), None), x, w["layers"])
        return x @ w["other"]

    quantized_apply, quantized_params = transform.quantize(apply, w, recipe(scheme), x)
    trained = {"layers": {"a": draw.small(3 * 2 * 16, 2).reshape(3, 2, 16, 2), "b": draw.small(12, 16).reshape(3, 2, 2, 16)}}
    merged = adapters.merge(quantized_apply, quantized_params, trained, alpha=4)
    update = trained["layers"]["a"] @ trained["layers"]["b"] * np.float32(2)
    expected_apply, expected = transform.quantize(apply, {**w, "layers": w["layers"] + update}, recipe(scheme), x)
    assert_equal(merged, expected)
    assert not np.array_equal(*(jax.tree.leaves(p["sites"]["layers"])[0] for p in (merged, quantized_params)))
    np.testing.assert_array_equal(quantized_apply(merged, x), expected_apply(expected, x), strict=True)
    count("merged weights", w["layers"].size)


@pytest.mark.gate
def test_merge_loses_precision():
    """Of adapters with a tenth of the weights' size, int4 in blocks of 16 loses 74 %, and int8 12 %."""
    draw = Draw(0)
    w, x, errors = draw.weights(64, 64), draw.input(256, 64), []
    for weight_type in ("INT4", "INT8"):
        scheme = transform.Scheme(weight_type=weight_type, block_size=16, activations="FLOAT")
        quantized_apply, quantized_params = transform.quantize(lambda w, x: x @ w, w, recipe(scheme), x)
        trained = {"matmul": {"a": Draw(1).input(64, 4) / 20, "b": Draw(2).input(4, 64)}}
        expected = adapters.attach(quantized_apply)(trained, quantized_params, x)
        merged = quantized_apply(adapters.merge(quantized_apply, quantized_params, trained), x)
        added = expected - quantized_apply(quantized_params, x)
        errors.append(float(jnp.linalg.norm(merged - expected) / jnp.linalg.norm(added)))
    np.testing.assert_allclose(errors, (0.744, 0.115), atol=0.01)


# Saving, and meshes


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed (extra: recipes)")
    quantized_apply, _, _ = quantized_language_model("int4", only_types=True)
    trained = jax.tree.map(lambda each: np.array(each) + 1, adapters.init(quantized_apply, KEY, 2))
    flat = {f"{site}/{factor}": matrix for site, pair in trained.items() for factor, matrix in pair.items()}
    safetensors.save_file(flat, tmp_path / "adapters.safetensors")
    restored: dict = {}
    for name, matrix in safetensors.load_file(tmp_path / "adapters.safetensors").items():
        site, factor = name.rsplit("/", 1)
        restored.setdefault(site, {})[factor] = matrix
    assert_equal(restored, trained)


def test_orbax(tmp_path):
    """With the shapes of `jax.eval_shape` as the target."""
    ocp = pytest.importorskip("orbax.checkpoint", reason="orbax.checkpoint is not installed (extra: recipes)")
    quantized_apply, _, _ = quantized_language_model("int4", only_types=True)
    init = functools.partial(adapters.init, quantized_apply, rank=2)
    trained = jax.tree.map(lambda each: each + 1, jax.jit(init)(KEY))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "adapters", trained)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "adapters", jax.eval_shape(init, KEY))
    assert_equal(restored, trained)


@pytest.mark.gate
def test_on_a_mesh():
    """Weights split by columns, and then by rows, with adapters that are split alike: the gradient of one device."""
    draw = Draw(0, exact=True)
    params, x = {"up": draw.weights(64, 256), "down": draw.weights(256, 64)}, draw.input(8, 64)
    apply = lambda params, x: x @ params["up"] @ params["down"]  # noqa: E731
    scheme = transform.Scheme(activations="DYNAMIC_ROW", k_parts=8)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe(scheme), x)
    trained = {name: {"a": draw.input(len(w), 2), "b": draw.input(2, len(w.T))} for name, w in params.items()}
    adapted = adapters.attach(quantized_apply)
    gradient = jax.jit(jax.grad(lambda trained, params, x: adapted(trained, params, x).sum()))
    expected = gradient(trained, quantized_params, x)

    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    P, on = PartitionSpec, functools.partial(NamedSharding, mesh)
    placed = jax.device_put(quantized_params, on(P()))
    for name, spec in {"up": P(None, "d"), "down": P("d")}.items():
        weights = quantized_params["sites"][name]["values"]
        placed["sites"][name]["values"] = jax.device_put(weights, weights.sharding_for(on(spec)))
    shardings = {"up": {"a": on(P()), "b": on(P(None, "d"))}, "down": {"a": on(P("d")), "b": on(P())}}
    actual = gradient(jax.device_put(trained, shardings), placed, x)
    assert_close(actual, expected, 2**-18, "on a mesh")


# Misuse


def misuse():
    draw = Draw(0)
    w, x = draw.weights(16, 16), draw.input(2, 16)
    apply = lambda params, x: x @ params["w"]  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(apply, {"w": w}, recipe(transform.Scheme()), x)
    return quantized_apply, quantized_params, x


A, B = np.ones((16, 2), np.float32), np.ones((2, 16), np.float32)
INIT = {
    "a compiled function": (lambda f: {"quantized_apply": jax.jit(f)}, "itself and not under", TransformTypeError),
    "rank 0": (lambda f: {"rank": 0}, "rank is 0; it must be a number of columns, at least 1", TransformError),
    "rank 1.5": (lambda f: {"rank": 1.5}, "rank is the float 1.5", TransformTypeError),
    "no such site": (lambda f: {"sites": "v*"}, "sites has 'v*', which matches no product; products: w", TransformError),
    "no pattern": (lambda f: {"sites": []}, "sites is [], without a pattern", TransformError),
    "sites 3": (lambda f: {"sites": 3}, "sites is 3; it must be a pattern", TransformTypeError),
    "key None": (lambda f: {"key": None}, "key is None; it must be one key of jax.random", TransformTypeError),
    "integers": (lambda f: {"dtype": "int8"}, "dtype", TransformTypeError),
}


@pytest.mark.parametrize("case", INIT)
def test_wrong_arguments_of_init(case):
    change, message, error = INIT[case]
    quantized_apply, _, _ = misuse()
    arguments = {"quantized_apply": quantized_apply, "key": KEY, "rank": 2, **change(quantized_apply)}
    assert_declined(lambda: adapters.init(**arguments), message, error)


ADAPTERS = {
    "none": (None, "adapters is None; it must be a dict of the names of products", TransformTypeError),
    "another site": ({"v": {"a": A, "b": B}}, "adapters has 'v', which is no product; products: w", TransformError),
    "one matrix": ({"w": {"a": A}}, "adapters['w'] is {'a': float32[16,2]}; it must be a dict with", TransformTypeError),
    "integers": ({"w": {"a": A.astype(int), "b": B}}, "adapters['w']['a'] is", TransformTypeError),
    "a number": ({"w": {"a": 1.0, "b": B}}, "adapters['w']['a'] is 1.0; it must be an array of", TransformTypeError),
    "two ranks": (
        {"w": {"a": A, "b": B[:1]}},
        "shapes (16, 2) and (1, 16); they must be (16, rank) and (rank, 16)",
        TransformError,
    ),
    "no rank": ({"w": {"a": A[:, :0], "b": B[:0]}}, "with a rank of at least 1", TransformError),
    "a vector": ({"w": {"a": A[0], "b": B}}, "has the shapes (2,) and (2, 16)", TransformError),
}


@pytest.mark.parametrize("case", ADAPTERS)
def test_wrong_adapters(case):
    wrong, message, error = ADAPTERS[case]
    quantized_apply, quantized_params, x = misuse()
    assert_declined(lambda: adapters.attach(quantized_apply)(wrong, quantized_params, x), message, error)
    assert_declined(lambda: adapters.merge(quantized_apply, quantized_params, wrong), message, error)


@pytest.mark.parametrize(("alpha", "error"), [(float("nan"), TransformError), ("1", TransformTypeError)])
def test_wrong_alpha(alpha, error):
    quantized_apply, quantized_params, _ = misuse()
    assert_declined(lambda: adapters.attach(quantized_apply, alpha=alpha), "attach: alpha is", error)
    assert_declined(lambda: adapters.merge(quantized_apply, quantized_params, {}, alpha=alpha), "merge: alpha is", error)


def test_wrong_order_and_other_errors():
    """The parameters in the place of the adapters, and errors of the quantized function."""
    quantized_apply, quantized_params, x = misuse()
    trained = adapters.init(quantized_apply, KEY, 2)
    adapted = adapters.attach(quantized_apply)
    assert_declined(lambda: adapted(quantized_params, trained, x), "adapters has 'sites', which is no product")
    assert_declined(lambda: adapted(trained, trained, x), "it must be the quantized parameters", TransformTypeError)
    trained["w"]["a"].delete()
    assert_declined(lambda: adapted(trained, quantized_params, x), "adapters['w']['a'] has been deleted")


def test_merging_shared_weights():
    """Of a table that is also looked up."""
    quantized_apply, quantized_params, _ = quantized_language_model("int4")
    trained = adapters.init(quantized_apply, KEY, 2, sites="embed*")
    call = lambda: adapters.merge(quantized_apply, quantized_params, trained)  # noqa: E731
    assert_declined(call, "the weights of embed#2 are those of embed as well, which merging would change: keep this adapter")


@pytest.mark.parametrize(("dtype", "options"), [("int8", {}), ("uint4", {"zero_point": True}), ("uint8", {"minimum": True})])
@pytest.mark.parametrize("permuted", [False, True])
def test_merging_into_weights_of_a_checkpoint(dtype, options, permuted):
    """They keep their type and blocks: an adapter of zeros changes them by half a step at most, or one with a zero point."""
    rng, rows, columns, block_size = np.random.default_rng(0), 64, 24, 16
    limits = jnp.iinfo(dtype)
    params, x = {"w": rng.normal(size=(rows, columns)).astype(np.float32)}, np.eye(rows, dtype=np.float32)
    quantized_apply, stored = transform.quantize(lambda p, x: x @ p["w"], params, transform.weight_only_int4, x)
    values = jnp.asarray(rng.integers(limits.min, limits.max + 1, (rows, columns)), dtype)
    scale = rng.uniform(0.01, 0.1, (rows // block_size, columns)).astype(np.float32)
    arrays = {"zero_point": jnp.full(scale.shape, 7, dtype)} if "zero_point" in options else {}
    arrays |= {"minimum": -scale * 100} if "minimum" in options else {}
    site = {"values": jquant.pack_matrix(values, scale=scale, block_size=block_size, **arrays)}
    site |= {"permutation": rng.permutation(rows).astype(np.int32)} if permuted else {}
    stored = {**stored, "sites": {"w": site}}
    adapters = {"w": {"a": np.zeros((rows, 1), np.float32), "b": np.zeros((1, columns), np.float32)}}
    merged = transform.adapters.merge(quantized_apply, stored, adapters)
    result = merged["sites"]["w"]
    assert (result["values"].dtype, result["values"].block_size) == (values.dtype, block_size)
    assert result.keys() == site.keys()
    change = np.abs(np.asarray(quantized_apply(merged, x)) - np.asarray(quantized_apply(stored, x)))
    step = np.repeat(scale, block_size, 0)[np.argsort(site["permutation"]) if permuted else slice(None)]
    assert (change <= step * 1.2).all()
