"""Attention to a cache of keys and values, against NumPy and against the public operators, in loops and on a mesh."""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.sampling import one_in

import jquant
from jquant import kv_cache
from jquant.kv_cache import arguments

INTEGERS = "INT8", "INT4"
LARGEST = {"INT8": 127, "INT4": 7}
SHAPES = 20  # of random cases, each with its own sizes
CASES = 10  # of one shape: programs are the same, values are not


class Sizes(NamedTuple):
    """What programs depend on."""

    dtype: str
    layers: int
    batch: int
    key_heads: int
    group: int
    length: int
    width: int
    chunks: tuple[int, ...]  # tokens that are appended together; the last of them are the queries
    position_for_each: bool
    mask: tuple[bool, ...] | None  # for each dimension of (batch, heads, tokens, length), whether it has its size, or 1
    has_window: bool

    @property
    def heads(self) -> int:
        return self.key_heads * self.group


def random_sizes(rng: np.random.Generator, number: int) -> Sizes:
    key_heads = int(rng.choice([1, 2, 3, 4, 8]))
    group = int(rng.choice([group for group in (1, 2, 3, 4, 8, 32) if group * key_heads <= 32]))
    chunks = tuple(map(int, rng.choice([1, 1, 2, 5], rng.integers(1, 4))))
    return Sizes(
        dtype=INTEGERS[number % 2],
        layers=int(rng.integers(1, 4)),
        batch=int(rng.integers(1, 4)),
        key_heads=key_heads,
        group=group,
        length=sum(chunks) + int(rng.integers(0, 40)),
        width=int(rng.choice([1, 5, 8, 16, 33, 64])),
        chunks=chunks,
        position_for_each=bool(rng.integers(2)),
        mask=tuple(map(bool, rng.integers(0, 2, 4))) if rng.integers(2) else None,
        has_window=bool(rng.integers(2)),
    )


def quantized(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Integers and the scale of each row, step by step in float32; the scale of zeros is 0."""
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(LARGEST[dtype])
    is_zeros = scale < np.finfo(np.float32).tiny
    integers = np.rint(x / np.where(is_zeros, np.float32(1), scale)).astype(np.int8)
    return integers, np.where(is_zeros, np.float32(0), scale)[..., 0]


def seen_tokens(sizes: Sizes, position: np.ndarray, tokens: int, mask, window) -> np.ndarray:
    """Token by token: which tokens of the cache each query sees, of shape (batch, heads, tokens, length)."""
    seen = np.zeros((sizes.batch, sizes.heads, tokens, sizes.length), bool)
    for batch, start in enumerate(np.broadcast_to(position, sizes.batch)):
        for token in range(tokens):
            own = start + token
            first = 0 if window is None else max(0, own - window + 1)
            seen[batch, :, token, first : own + 1] = True
    return seen if mask is None else seen & mask


def expected_scores(sizes: Sizes, query: np.ndarray, keys: np.ndarray, key_scale: np.ndarray, scale) -> np.ndarray:
    """(batch, heads, tokens, length), head by head."""
    integers, row_scale = quantized(query, "INT8")
    scores = np.zeros((sizes.batch, sizes.heads, query.shape[1], sizes.length), np.float32)
    for head in range(sizes.heads):
        rows, columns = integers[:, :, head].astype(np.int32), keys[:, head // sizes.group].astype(np.int32)
        product = rows @ columns.swapaxes(1, 2)
        scales = (row_scale[:, :, head] * scale)[:, :, None] * key_scale[:, head // sizes.group][:, None]
        scores[:, head] = product.astype(np.float32) * scales
    return scores


def expected_weights(exponentials: np.ndarray) -> np.ndarray:
    """Divided by their sum, of digits of 20 bits."""
    first = np.floor(exponentials * np.float32(2**20))
    second = np.floor((exponentials * np.float32(2**20) - first) * np.float32(2**20))
    sums = (digit.astype(np.int64).sum(-1, keepdims=True).astype(np.float32) for digit in (first, second))
    total = next(sums) / np.float32(2**20) + next(sums) / np.float32(2**40)
    return exponentials / np.where(total == 0, np.float32(1), total)


def expected_output(sizes: Sizes, weights: np.ndarray, values: np.ndarray, value_scale: np.ndarray):
    """The integers of the weights (batch, heads, tokens, length), and (batch, tokens, heads, width)."""
    weights = weights * value_scale.repeat(sizes.group, 1)[:, :, None]
    integers, row_scale = quantized(weights, "INT8")
    product = integers.astype(np.int32) @ values.repeat(sizes.group, 1).astype(np.int32)
    return integers, (product.astype(np.float32) * row_scale[..., None]).swapaxes(1, 2)


BY_ROW = {"axis": -1, "symmetric": True, "output_dtype": "INT8", "feature_level": "EXTENDED"}


def multiplied(a, a_scale, b, b_scale):
    """The operator for each key head of each sequence."""
    multiply = functools.partial(jquant.matmul_integer_to_float, a_zero_point=None)
    return jax.vmap(jax.vmap(lambda a, a_scale, b, b_scale: multiply(a, a_scale=a_scale, b=b, b_scale=b_scale)))(
        a, a_scale, b, b_scale
    )


def by_group(x, sizes: Sizes):
    """(batch, heads, tokens, n) as (batch, key heads, tokens, group, n)."""
    return x.reshape(sizes.batch, sizes.key_heads, sizes.group, *x.shape[2:]).swapaxes(2, 3)


def by_head(x, sizes: Sizes):
    """The inverse of `by_group`."""
    return x.swapaxes(2, 3).reshape(sizes.batch, sizes.heads, x.shape[2], x.shape[-1])


@functools.partial(jax.jit, static_argnames="sizes")
def exponentials_by_hand(sizes: Sizes, query, keys, key_scale, seen, scale):
    """With public operators: the integers of the queries, and the exponentials, (batch, heads, tokens, ...)."""
    rows = by_group(query.swapaxes(1, 2), sizes)
    integers, row_scale, _ = jquant.dynamic_quantize_linear(rows.reshape(*rows.shape[:2], -1, sizes.width), **BY_ROW)
    row_scale = jquant.exact.product(row_scale[..., 0], scale)
    scores = multiplied(integers, row_scale, keys.swapaxes(-1, -2), key_scale)
    scores = by_head(scores.reshape(*rows.shape[:-1], sizes.length), sizes)
    highest = jnp.where(seen, scores, -jnp.inf).max(-1, keepdims=True)
    exponentials = jnp.where(seen, jnp.exp(jquant.exact.difference(scores, highest)), 0)
    return by_head(integers.reshape(rows.shape), sizes), exponentials


@functools.partial(jax.jit, static_argnames="sizes")
def output_by_hand(sizes: Sizes, weights, values, value_scale):
    """With public operators: the integers of the weights, and the output."""
    shares = jquant.exact.product(by_group(weights, sizes), value_scale[:, :, None, None])
    integers, row_scale, _ = jquant.dynamic_quantize_linear(shares.reshape(*shares.shape[:2], -1, sizes.length), **BY_ROW)
    output = multiplied(integers, row_scale[..., 0], values, jnp.ones(value_scale.shape[:2]))
    integers, output = (x.reshape(*shares.shape[:-1], x.shape[-1]) for x in (integers, output))
    return by_head(integers, sizes), by_head(output, sizes).swapaxes(1, 2)


def unpacked(stored, sizes: Sizes):
    return np.asarray(jquant.unpack_integers(stored, "INT4", size=sizes.width) if sizes.dtype == "INT4" else stored, np.int8)


@one_in(8, "number", range(SHAPES))
def test_random_cases(number, count):
    """Cached rows and outputs against NumPy and against the public operators, bit for bit.

    NumPy takes the exponentials from JAX, after comparing them with its own, to within 4 units in the last place.
    """
    rng = np.random.default_rng(number)
    sizes = random_sizes(rng, number)
    for _ in range(CASES):
        cache = kv_cache.init(sizes.layers, sizes.batch, sizes.key_heads, sizes.length, sizes.width, sizes.dtype)
        rows = np.zeros((2, sizes.layers, sizes.batch, sizes.key_heads, sizes.length, sizes.width), np.int8)
        scales = np.zeros(rows.shape[:-1], np.float32)
        room = sizes.length - sum(sizes.chunks)
        start = rng.integers(0, room + 1, sizes.batch if sizes.position_for_each else ()).astype(np.int32)
        layer = np.int32(rng.integers(sizes.layers))
        for tokens in sizes.chunks:
            shape = sizes.batch, tokens, sizes.key_heads, sizes.width
            new = rng.normal(0, 10.0 ** rng.integers(-2, 3), (2, *shape)).astype(np.float32)
            new[rng.random(new.shape[:-1]) < 0.05] = 0
            position = start
            cache = kv_cache.append(cache, new[0], new[1], position, layer=layer)
            for batch, first in enumerate(np.broadcast_to(position, sizes.batch)):
                integers, scale = quantized(new[:, batch].swapaxes(1, 2), sizes.dtype)
                rows[:, layer, batch, :, first : first + tokens] = integers
                scales[:, layer, batch, :, first : first + tokens] = scale
            start = start + np.int32(tokens)
        stored = [unpacked(x, sizes) for x in (cache.keys, cache.values)]
        np.testing.assert_array_equal(np.stack(stored), rows)
        np.testing.assert_array_equal(np.stack([cache.key_scale, cache.value_scale]), scales)

        query = rng.normal(0, 10.0 ** rng.integers(-2, 2), (sizes.batch, tokens, sizes.heads, sizes.width)).astype(
            np.float32
        )
        mask = None
        if sizes.mask is not None:
            full = sizes.batch, sizes.heads, tokens, sizes.length
            mask = rng.random([size if own else 1 for size, own in zip(full, sizes.mask, strict=True)]) < 0.7
        window = np.int32(rng.integers(1, sizes.length + 1)) if sizes.has_window else None
        scale = np.float32(1 / np.sqrt(sizes.width)) if rng.integers(2) else np.float32(rng.uniform(0.01, 1))
        output = kv_cache.attend(query, cache, position, layer=layer, mask=mask, window=window, scale=scale)

        of_layer = [x for one, scale_of_one in zip(rows, scales, strict=True) for x in (one[layer], scale_of_one[layer])]
        seen = seen_tokens(sizes, position, tokens, mask, window)
        integers, exponentials = exponentials_by_hand(sizes, query, *of_layer[:2], seen, scale)
        weights = expected_weights(np.asarray(exponentials))
        shares, by_operators = output_by_hand(sizes, weights, *of_layer[2:])
        np.testing.assert_array_equal(output, by_operators)
        np.testing.assert_array_equal(integers, quantized(query.swapaxes(1, 2), "INT8")[0])
        scores = np.where(seen, expected_scores(sizes, query, *of_layer[:2], scale), -np.inf)
        highest = scores.max(-1, keepdims=True, initial=np.finfo(np.float32).min)
        exact_exponentials = np.exp((scores - highest).astype(np.float64))
        np.testing.assert_allclose(exponentials, exact_exponentials, rtol=2.0**-22, atol=2.0**-126)
        expected_shares, expected = expected_output(sizes, weights, *of_layer[2:])
        np.testing.assert_array_equal(shares, expected_shares)
        np.testing.assert_array_equal(output, expected)
        count("rows of a cache", rows[..., 0].size)
        count("outputs of attention", expected.size)
    count("random cases of attention", CASES)


LAYERS, BATCH, KEY_HEADS, GROUP, LENGTH, WIDTH = 3, 2, 8, 2, 16, 32
HEADS = KEY_HEADS * GROUP


def empty(dtype: str, **sizes) -> kv_cache.KeyValueCache:
    default = {"layers": LAYERS, "batch": BATCH, "heads": KEY_HEADS, "length": LENGTH, "width": WIDTH}
    return kv_cache.init(**default | sizes, dtype=dtype)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(dtype: str, **sizes) -> kv_cache.KeyValueCache:
    """A cache whose layers have different rows everywhere."""
    cache = empty(dtype, **sizes)
    layers, batch, heads, length, width = cache.shape
    for layer in range(layers):
        cache = kv_cache.append(cache, *normal(2, batch, length, heads, width, seed=layer), 0, layer=layer)
    return cache


def assert_same(cache: kv_cache.KeyValueCache, expected: kv_cache.KeyValueCache) -> None:
    assert jax.tree.structure(cache) == jax.tree.structure(expected)
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), cache, expected)


def layers_of_model(x, cache, position, keys_of, values_of):
    """Several layers with grouped heads, whose cache is a part of the state of a scan."""

    def layer(state, number):
        x, cache = state
        cache = kv_cache.append(cache, keys_of(x, number), values_of(x, number), position, layer=number)
        return (x + kv_cache.attend(x, cache, position, layer=number), cache), None

    return jax.lax.scan(layer, (x, cache), jnp.arange(cache.shape[0], dtype=np.int32))[0]


def keys_of(x, number):
    return x[:, :, :KEY_HEADS] + number.astype(np.float32)


def values_of(x, number):
    return x[:, :, KEY_HEADS:] * (1 + number.astype(np.float32))


@pytest.mark.parametrize("dtype", [*INTEGERS, "FLOAT32"])
def test_a_loop_over_tokens(dtype, count):
    """Token by token in one program, scanned over layers, it computes what one pass over all tokens does."""
    x = normal(BATCH, LENGTH, HEADS, WIDTH)

    @jax.jit
    def decode(x, cache):
        def step(state):
            token, cache, outputs = state
            one = jax.lax.dynamic_slice_in_dim(x, token, 1, 1)
            output, cache = layers_of_model(one, cache, token, keys_of, values_of)
            return token + 1, cache, jax.lax.dynamic_update_slice_in_dim(outputs, output, token, 1)

        _, cache, outputs = jax.lax.while_loop(
            lambda state: state[0] < LENGTH, step, (np.int32(0), cache, jnp.zeros_like(x))
        )
        return outputs, cache

    outputs, cache = decode(x, empty(dtype))
    expected, expected_cache = jax.jit(layers_of_model, static_argnums=(3, 4))(x, empty(dtype), 0, keys_of, values_of)
    if dtype == "FLOAT32":  # whose sums are in another order
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
        return
    np.testing.assert_array_equal(outputs, expected)
    assert_same(cache, expected_cache)
    count("outputs of attention in a loop", expected.size)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_scan_over_the_cache(dtype):
    """A scan gives each step the cache of one layer, which has the results of that layer."""
    cache, query, new = filled(dtype), normal(BATCH, 1, HEADS, WIDTH), normal(2, BATCH, 1, KEY_HEADS, WIDTH, seed=9)

    def step(_, one):
        one = kv_cache.append(one, *new, 5)
        return None, (one, kv_cache.attend(query, one, 5))

    _, (caches, outputs) = jax.lax.scan(step, None, cache)
    for layer in range(LAYERS):
        cache = kv_cache.append(cache, *new, 5, layer=layer)
        np.testing.assert_array_equal(outputs[layer], kv_cache.attend(query, cache, 5, layer=layer))
    assert_same(caches, cache)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_vmap(dtype):
    """Mapped over sequences, with a position for each, and over layers."""
    cache, query = filled(dtype), normal(BATCH, 2, HEADS, WIDTH)
    new, position = normal(2, BATCH, 2, KEY_HEADS, WIDTH, seed=9), np.array([3, 11], np.int32)

    def one_sequence(cache, query, keys, values, position):
        cache = jax.tree.map(lambda x: x[:, None], cache)
        cache = kv_cache.append(cache, keys[None], values[None], position, layer=1)
        output = kv_cache.attend(query[None], cache, position, layer=1)[0]
        return jax.tree.map(lambda x: x[:, 0], cache), output

    mapped = jax.vmap(one_sequence, (1, 0, 0, 0, 0), (1, 0))
    appended, output = mapped(cache, query, *new, position)
    expected = kv_cache.append(cache, *new, position, layer=1)
    assert_same(appended, expected)
    np.testing.assert_array_equal(output, kv_cache.attend(query, expected, position, layer=1))
    by_layer = jax.vmap(lambda one: kv_cache.attend(query, one, position))(cache)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(by_layer[layer], kv_cache.attend(query, cache, position, layer=layer))


@pytest.mark.parametrize("position", [1, (1, 9)], ids=["one position", "each its own"])
def test_64_bit_types(position):
    """Where they are enabled, positions and layers may be int64, and nothing else changes."""
    new, query = normal(2, BATCH, 2, KEY_HEADS, WIDTH), normal(BATCH, 2, HEADS, WIDTH)
    cache = kv_cache.append(filled("INT4"), *new, np.array(position, np.int32), layer=1)
    expected = kv_cache.attend(query, cache, np.array(position, np.int32), layer=1, window=4)
    with jax.enable_x64(True):
        position, layer = jnp.array(position, jnp.int64), jnp.int64(1)
        assert_same(kv_cache.append(filled("INT4"), *new, position, layer=layer), cache)
        output = kv_cache.attend(query, cache, position, layer=layer, window=jnp.int64(4))
    np.testing.assert_array_equal(output, expected, strict=True)


SMALLEST, MOST = -(2**31), 2**31 - 1


def test_positions_layers_and_windows_outside():
    """Traced, tokens move back into the cache, whether the position is one for all sequences, or one for each."""
    new, query = normal(2, BATCH, 2, KEY_HEADS, WIDTH), normal(BATCH, 2, HEADS, WIDTH)
    positions = np.int32([SMALLEST, -15, -1, 0, 5, 14, 15, 16, MOST, 3, 3, 9, 9, 9, 9, 9])
    layers = np.int32([1, 1, 1, 1, 1, 1, 1, 1, 1, -1, MOST, SMALLEST, 3, 2, 0, 1])
    windows = np.uint32([9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, LENGTH, MOST, 2**31, 2**32 - 1])
    cache = filled("FLOAT32")

    @jax.jit
    @jax.vmap
    def steps(position, layer, window):
        def step(position):
            appended = kv_cache.append(cache, *new, position, layer=layer)
            return appended, kv_cache.attend(query, appended, position, layer=layer, window=window)

        return step(position), step(jnp.full(BATCH, position))

    one, for_each = steps(positions, layers, windows)
    assert_same(one[0], for_each[0])
    np.testing.assert_array_equal(one[1], for_each[1])
    inside = np.clip(positions, 0, LENGTH - 2), np.clip(layers, 0, LAYERS - 1), np.minimum(windows, np.uint32(LENGTH))
    expected, _ = steps(*inside)
    assert_same(one[0], expected[0])
    np.testing.assert_array_equal(one[1], expected[1])
    for number, (position, layer, _) in enumerate(zip(*inside, strict=True)):
        rows = np.array(cache.keys)
        rows[layer, :, :, position : position + 2] = new[0].swapaxes(1, 2)
        np.testing.assert_array_equal(one[0].keys[number], rows)


def test_windows_of_every_type():
    """A known window is that of int32, or as long as the cache."""
    cache, query = jax.tree.map(lambda x: x[0], filled("INT8")), normal(BATCH, 2, HEADS, WIDTH)
    expected = {window: np.asarray(kv_cache.attend(query, cache, 9, window=window)) for window in (3, 100)}
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32):
        for window in (3, int(np.iinfo(dtype).max)):
            output = kv_cache.attend(query, cache, 9, window=dtype(window))
            np.testing.assert_array_equal(output, expected[min(window, 100)])
    with pytest.raises(jquant.DescriptorError, match=r"window is 2147483648, outside the range of INT32"):
        kv_cache.attend(query, cache, 9, window=2**31)


@pytest.mark.parametrize("bits", [32, 64])
def test_within(bits):
    """Integers of every type are compared in their own."""
    with jax.enable_x64(bits == 64):
        for dtype in map(np.dtype, ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")):
            if dtype.itemsize * 8 > bits:
                continue
            limits = np.iinfo(dtype)
            numbers = [limits.min, limits.min + 1, 0, 1, 6, 7, 8, limits.max - 1, limits.max]
            numbers += [-1] if limits.min else [2**31 + 5] if dtype.itemsize >= 4 else []
            for largest in (0, 7, MOST):
                found = arguments.within(jnp.array(numbers, dtype), largest)
                np.testing.assert_array_equal(
                    found, np.int32([max(0, min(number, largest)) for number in numbers]), strict=True
                )


def test_export():
    """The cache is an argument and a result of an exported program, and each kind is serialized with it."""

    @jax.jit
    def step(cache, query, keys, values, position):
        cache = kv_cache.append(cache, keys, values, position, layer=2)
        return cache, kv_cache.attend(query, cache, position, layer=2)

    operands = normal(BATCH, 1, HEADS, WIDTH), *normal(2, BATCH, 1, KEY_HEADS, WIDTH), np.int32(7)
    for dtype in (*INTEGERS, "BFLOAT16"):
        cache = filled(dtype)
        program = jax.export.deserialize(jax.export.export(step)(cache, *operands).serialize())
        exported, expected = program.call(cache, *operands), step(cache, *operands)
        assert_same(exported[0], expected[0])
        if dtype in INTEGERS:
            np.testing.assert_array_equal(exported[1], expected[1])


SPLITS = {"heads": P(None, None, "x"), "batch": P(None, "x")}


@one_in(3, ("dtype", "split", "kind"), itertools.product(INTEGERS, SPLITS, (AxisType.Auto, AxisType.Explicit)))
def test_on_a_mesh(dtype, split, kind, count):
    """With heads or sequences split over 8 devices, no device communicates, and the bits are those of one."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    cache = filled(dtype, batch=8)
    new, query = normal(2, 8, 2, KEY_HEADS, WIDTH, seed=9), normal(8, 2, HEADS, WIDTH)
    mask = np.random.default_rng(0).random((8, HEADS, 2, LENGTH)) < 0.8
    of_tokens, of_mask = (P(None, None, "x"), P(None, "x")) if split == "heads" else (P("x"), P("x"))
    for position in (np.int32(5), np.arange(8, dtype=np.int32)):

        @jax.jit
        def step(cache, keys, values, query, mask, position, layer):
            cache = kv_cache.append(cache, keys, values, position, layer=layer)
            return cache, kv_cache.attend(query, cache, position, layer=layer, mask=mask, window=4)

        expected_cache, expected = step(cache, *new, query, mask, position, np.int32(1))
        with jax.set_mesh(mesh):

            def put(x, spec):
                return jax.device_put(x, NamedSharding(mesh, spec))

            of_position = P("x") if split == "batch" and position.ndim else P()
            operands = (
                put(cache, SPLITS[split]),
                *(put(x, of_tokens) for x in (*new, query)),
                *(put(mask, of_mask), put(position, of_position), put(np.int32(1), P())),
            )
            program = step.lower(*operands).compile()
            sharded_cache, output = program(*operands)
        assert collectives(program.as_text()) == []
        np.testing.assert_array_equal(output, expected)
        assert_same(sharded_cache, expected_cache)
        for array in jax.tree.leaves(sharded_cache):
            assert array.sharding.is_equivalent_to(NamedSharding(mesh, SPLITS[split]), array.ndim)
        assert output.sharding.is_equivalent_to(NamedSharding(mesh, of_tokens), output.ndim)
        count("outputs of attention on 8 devices", expected.size)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("position", [0, (0, 0)], ids=["one position", "each its own"])
def test_updated_in_place(dtype, position):
    """A decoding step over all layers has the memory of its cache, and needs less than that of one layer beside it."""
    cache = empty(dtype, length=4096)
    position = np.array(position, np.int32)

    def step(cache, x, position):
        return layers_of_model(x, cache, position, keys_of, values_of)

    program = jax.jit(step, donate_argnums=0).lower(cache, normal(BATCH, 1, HEADS, WIDTH), position).compile()
    memory, size = program.memory_analysis(), sum(x.nbytes for x in jax.tree.leaves(cache))
    assert memory.alias_size_in_bytes >= size
    bytes_of_a_layer = 2 * BATCH * KEY_HEADS * 4096 * (WIDTH + 4)  # unpacked
    scores = 4 * BATCH * HEADS * 4096
    assert memory.temp_size_in_bytes < bytes_of_a_layer + 4 * scores < size


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_is_not_seen(dtype):
    """It does not matter, even where it is NaN; a query that sees nothing gives zeros."""
    cache, query = filled(dtype), normal(BATCH, 3, HEADS, WIDTH)
    nan = np.full((2, BATCH, 4, KEY_HEADS, WIDTH), np.nan, np.float32)
    after = kv_cache.append(cache, *nan, 7, layer=1)
    everything = np.ones((BATCH, 1, 3, LENGTH), bool)
    nothing = everything.copy()
    nothing[0, :, 1] = False

    def attended(cache, position, mask=everything, window=LENGTH):  # has one program
        return np.array(kv_cache.attend(query, cache, position, layer=1, mask=mask, window=window))

    expected = attended(cache, 4)
    np.testing.assert_array_equal(attended(after, 4), expected)
    assert np.isnan(attended(after, 5)[:, 2]).all()
    output = attended(cache, 4, nothing)
    np.testing.assert_array_equal(output[0, 1], np.zeros((HEADS, WIDTH), np.float32))
    output[0, 1] = expected[0, 1]
    np.testing.assert_array_equal(output, expected)
    outside = attended(cache, 4, everything & ~(np.arange(LENGTH) <= 2), 2)
    np.testing.assert_array_equal(outside, attended(cache, 4, window=2))
    np.testing.assert_array_equal(kv_cache.attend(query, cache, 4, layer=1), expected)  # without mask and window


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_16_bit_floats(dtype):
    """They are widened, and the result is rounded once more."""
    new, query = (x.astype(dtype) for x in (normal(2, BATCH, LENGTH, KEY_HEADS, WIDTH), normal(BATCH, 3, HEADS, WIDTH)))
    cache = kv_cache.append(empty("INT8"), *new, 0, layer=0)
    assert_same(cache, kv_cache.append(empty("INT8"), *new.astype(np.float32), 0, layer=0))
    output = kv_cache.attend(query, cache, 6, layer=0)
    expected = np.asarray(kv_cache.attend(query.astype(np.float32), cache, 6, layer=0)).astype(dtype)
    np.testing.assert_array_equal(output, expected, strict=True)


@pytest.mark.parametrize(("dtype", "decibels"), [("FLOAT32", 120), ("BFLOAT16", 45), ("INT8", 35), ("INT4", 12)])
def test_near_attention_in_floats(dtype, decibels):
    """Causal, with grouped heads and a window, as JAX has it; floats are stored as they are, rounded."""
    keys, values = normal(2, BATCH, LENGTH, KEY_HEADS, WIDTH)
    query = normal(BATCH, LENGTH, HEADS, WIDTH, seed=1)
    cache = kv_cache.append(empty(dtype), keys, values, 0, layer=1)
    if dtype not in INTEGERS:
        np.testing.assert_array_equal(cache.values[1], values.swapaxes(1, 2).astype(cache.dtype))
    for window in (None, 5):
        exact = jax.nn.dot_product_attention(
            query, keys, values, is_causal=True, local_window_size=None if window is None else (window - 1, 0)
        )
        output = kv_cache.attend(query, cache, 0, layer=1, window=window)
        assert 10 * np.log10(np.var(exact) / np.var(output - exact)) > decibels


def test_a_cache_describes_itself():
    shape = LAYERS, BATCH, KEY_HEADS, LENGTH, 33
    rows = LAYERS * BATCH * KEY_HEADS * LENGTH
    for dtype, width in (("INT8", 33 + 4), ("INT4", 17 + 4), ("FLOAT32", 4 * 33), ("BFLOAT16", 2 * 33)):
        cache = empty(dtype, width=33)
        assert cache.shape == shape
        assert repr(cache) == f"KeyValueCache({dtype.lower()}[3,2,8,16,33])"
        assert cache.nbytes == sum(x.nbytes for x in jax.tree.leaves(cache)) == 2 * rows * width
        assert repr(jax.tree.map(lambda x: x[0], cache)) == f"KeyValueCache({dtype.lower()}[2,8,16,33])"
    assert "P('x',)" in repr(jax.tree.map(lambda x: P("x"), cache))


@pytest.mark.parametrize(
    ("sizes", "dtype", "shape", "num_bytes"),
    [
        ((2**30, 2**30, 2**30, 1, 1), "INT8", r"\(1073741824, 1073741824, 1073741824, 1, 1\)", 2**92),
        ((2, 2**30, 2**30, 1, 3), "INT8", r"\(2, 1073741824, 1073741824, 1, 3\)", 2**63),  # of scales
        ((1, 2**30, 2**30, 1, 15), "INT4", r"\(1, 1073741824, 1073741824, 1, 15\)", 2**63),
        ((1, 2**30, 2**30, 1, 2), "FLOAT32", r"\(1, 1073741824, 1073741824, 1, 2\)", 2**63),
    ],
)
def test_sizes_that_no_array_has(sizes, dtype, shape, num_bytes):
    """XLA of some versions ends the process, so that they are refused even without assertions."""
    chex.disable_asserts()
    try:
        message = rf"^init: a cache of shape {shape} takes an array of {num_bytes} bytes; it must be less than 2\*\*63$"
        with pytest.raises(jquant.DescriptorError, match=message):
            kv_cache.init(*sizes, dtype=dtype)
    finally:
        chex.enable_asserts()


QUERY, NEW = np.zeros((BATCH, 1, HEADS, WIDTH), np.float32), np.zeros((BATCH, 1, KEY_HEADS, WIDTH), np.float32)
CACHE = kv_cache.init(LAYERS, BATCH, KEY_HEADS, LENGTH, WIDTH)
ONE_LAYER = jax.tree.map(lambda x: x[0], CACHE)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: kv_cache.init(0, 1, 1, 1, 1), jquant.DescriptorError, "init: layers is 0; it must be an integer from 1 to"),
        (lambda: kv_cache.init(1, 1, 1, 1, 2.0), TypeError, "init: width is the float 2.0; it must be an integer from 1 to"),
        (lambda: kv_cache.init(1, 1, 1, 1, 1, "UINT8"), TypeError, "init: dtype is UINT8; it must be one of INT8, INT4"),
        (lambda: kv_cache.init(1, 1, 1, 1, 1, "int"), TypeError, "init: dtype is INT.*; it must be one of INT8, INT4"),
        (lambda: kv_cache.init(1, 1, 1, 1, 1, "int9"), TypeError, "dtype is 'int9'; it must be a dtype or one of"),
        (lambda: kv_cache.append({}, NEW, NEW, 0), TypeError, "append: cache is of type dict; it must be a KeyValueCache"),
        (
            lambda: kv_cache.attend(QUERY, jax.tree.map(lambda x: x.astype(jnp.float32), CACHE), 0, layer=0),
            TypeError,
            r"attend: keys of the cache has dtype float32; init made it int8\. \(Was it changed by a cast",
        ),
        (
            lambda: kv_cache.attend(QUERY, jax.tree.map(lambda x: x[..., :1], CACHE), 0, layer=0),
            jquant.DescriptorError,
            "attend: the arrays of the cache do not fit rows of 32 elements",
        ),
        (
            lambda: kv_cache.append(CACHE, NEW[..., :31], NEW, 0, layer=0),
            jquant.DescriptorError,
            r"append: keys has shape \(2, 1, 8, 31\); for this cache it must be .* = \(2, tokens, 8, 32\)",
        ),
        (
            lambda: kv_cache.append(CACHE, NEW, NEW[:1], 0, layer=0),
            jquant.DescriptorError,
            r"append: values has shape \(1, 1, 8, 32\); it must have that of keys, \(2, 1, 8, 32\)",
        ),
        (lambda: kv_cache.append(CACHE, NEW.astype(int), NEW, 0, layer=0), TypeError, "append: keys has data type INT64"),
        (
            lambda: kv_cache.append(CACHE, np.repeat(NEW, 17, 1), np.repeat(NEW, 17, 1), 0, layer=0),
            jquant.DescriptorError,
            "append: there are 17 tokens; the cache has room for 16",
        ),
        (
            lambda: kv_cache.append(CACHE, NEW, NEW, 16, layer=0),
            jquant.DescriptorError,
            "append: position is 16; it must be from 0 to 15, so that 1 tokens fit",
        ),
        (
            lambda: kv_cache.append(CACHE, NEW, NEW, np.array([0, -1], np.int32), layer=0),
            jquant.DescriptorError,
            r"append: position is \[0, -1\]; it must be from 0 to 15",
        ),
        (lambda: kv_cache.attend(QUERY, CACHE, 1.0, layer=0), TypeError, "attend: position is 1.0, but must be an integer"),
        (
            lambda: kv_cache.attend(QUERY, CACHE, jnp.float32(1), layer=0),
            TypeError,
            "attend: position has data type FLOAT32; it must be an integer",
        ),
        (
            lambda: kv_cache.attend(QUERY, CACHE, np.zeros(3, np.int32), layer=0),
            jquant.DescriptorError,
            r"attend: position has shape \(3,\); it must be a scalar, or have shape \(2,\), one for each sequence",
        ),
        (
            lambda: kv_cache.attend(QUERY, CACHE, 0),
            jquant.DescriptorError,
            "attend: layer is None, but the cache has 3 layers",
        ),
        (lambda: kv_cache.attend(QUERY, CACHE, 0, layer=3), jquant.DescriptorError, "layer is 3; it must be from 0 to 2"),
        (
            lambda: kv_cache.attend(QUERY, ONE_LAYER, 0, layer=0),
            jquant.DescriptorError,
            r"attend: layer must be None for a cache without a dimension of layers, KeyValueCache\(int8\[2,8,16,32\]\)",
        ),
        (lambda: kv_cache.attend(QUERY, CACHE, 0, layer="0"), TypeError, "attend: layer must be an array or a Python int"),
        (
            lambda: kv_cache.attend(QUERY[:, :, :9], CACHE, 0, layer=0),
            jquant.DescriptorError,
            "attend: query has 9 heads; it must have a multiple of the 8 heads of the cache",
        ),
        (
            lambda: kv_cache.attend(QUERY[..., :9], CACHE, 0, layer=0),
            jquant.DescriptorError,
            r"attend: query has shape \(2, 1, 16, 9\); for this cache it must be .* = \(2, tokens, heads, 32\)",
        ),
        (
            lambda: kv_cache.attend(QUERY, CACHE, 0, layer=0, mask=np.ones((BATCH, 1, 1, LENGTH), np.float32)),
            TypeError,
            "attend: mask has data type FLOAT32; it must be BOOL",
        ),
        (
            lambda: kv_cache.attend(QUERY, CACHE, 0, layer=0, mask=np.ones((BATCH, 9, 1, 1), bool)),
            jquant.DescriptorError,
            r"mask has shape \(2, 9, 1, 1\); it must broadcast to \(batch, heads, tokens, length\) = \(2, 16, 1, 16\)",
        ),
        (lambda: kv_cache.attend(QUERY, CACHE, 0, layer=0, window=0), jquant.DescriptorError, "window is 0; it must be at"),
        (
            lambda: kv_cache.attend(QUERY, CACHE, 0, layer=0, window=2.0),
            TypeError,
            "attend: window is 2.0, but must be an int",
        ),
        (
            lambda: kv_cache.attend(QUERY, CACHE, 0, layer=0, scale=np.ones(2, np.float32)),
            jquant.DescriptorError,
            r"attend: scale has shape \(2,\), but must have 1 element",
        ),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, jquant.Error)
