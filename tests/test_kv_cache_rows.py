"""Rows of every kind at every place of a cache, against attention by hand in float64: within half a step, and in decibels.

The rows are zeros, too small for a scale, far too large, NaN or infinite, or ordinary. A query sees them, or does not: they
come after it, lie outside of its window, or its mask hides them. Some rows of the cache were never written.
"""

import collections
import functools
import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jquant import kv_cache

BATCH, LENGTH, WIDTH, GROUP, KEY_HEADS = 2, 12, 5, 2, 2
HEADS = KEY_HEADS * GROUP
WRITTEN, QUERIES = 9, 3  # tokens that are appended, and those of them that are queries
SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = {"INT8": 127, "INT4": 7}
# The largest element of a row, or what the row consists of. A row counts as zeros if its scale is not a normal number.
KINDS = {
    "ordinary": 1.0,
    "zeros": 0.0,
    "one element": 1.0,
    "subnormal": 1e-40,
    "below a scale": 5e-38,
    "negligible": 1e-25,
    "huge": 1e15,
    "NaN": np.nan,
    "infinity": np.inf,
}
FINITE = [kind for kind, size in KINDS.items() if np.isfinite(size)]
PLACES = "seen", "after", "outside the window", "masked", "never written"


class Case(NamedTuple):
    """The arguments of `attended`, the kinds of the rows of queries, keys and values, and the size of ordinary values."""

    query: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    first: np.ndarray  # the position of the first token that is written, of each sequence
    own: np.ndarray  # the position of the first query
    mask: np.ndarray
    window: np.int32
    kinds: tuple[np.ndarray, ...] = ()  # of (batch, tokens, heads)
    size: float = 1.0


def rows(rng: np.random.Generator, kinds: np.ndarray, size: float) -> np.ndarray:
    """A row of each kind, the ordinary ones of about `size`."""
    x = rng.normal(size=(*kinds.shape, WIDTH))
    kinds = kinds[..., None]
    unit = x / np.abs(x).max(-1, keepdims=True)
    x = np.where((kinds == "one element") & (np.arange(WIDTH) != rng.integers(WIDTH)), 0, x) * size
    for kind in ("zeros", "subnormal", "below a scale", "negligible", "huge"):
        x = np.where(kinds == kind, unit * KINDS[kind], x)
    for kind in ("NaN", "infinity"):  # in one element, or in all of them
        there = rng.random(x.shape) < 0.4
        there[..., 0] |= ~there.any(-1)
        x = np.where((kinds == kind) & there, np.copysign(KINDS[kind], x), x)
    return x.astype(np.float32)


def random_case(rng: np.random.Generator) -> Case:
    """With unusual rows among the ordinary, and few of NaN or infinity, which would leave nothing to compare."""
    finite = rng.dirichlet([8, *[0.7] * (len(FINITE) - 1)])

    def kinds_of(tokens: int, heads: int) -> np.ndarray:
        kinds = rng.choice(FINITE, (BATCH, tokens, heads), p=finite).astype(object)
        for kind in ("NaN", "infinity"):
            kinds = np.where(rng.random(kinds.shape) < rng.choice([0, 0.05]), kind, kinds)
        return kinds

    kinds = kinds_of(QUERIES, HEADS), kinds_of(WRITTEN, KEY_HEADS), kinds_of(WRITTEN, KEY_HEADS)
    size = 10.0 ** rng.integers(-3, 3)
    query, keys, values = (rows(rng, kind, one) for kind, one in zip(kinds, (1, 1, size), strict=True))
    first = rng.integers(0, LENGTH - WRITTEN + 1, BATCH).astype(np.int32)
    own = first + rng.integers(0, WRITTEN - QUERIES + 1, BATCH).astype(np.int32)
    mask = rng.random((BATCH, HEADS, QUERIES, LENGTH)) < rng.choice([0.5, 0.9, 1.0])
    return Case(query, keys, values, first, own, mask, np.int32(rng.integers(1, LENGTH + 1)), kinds, size)


@functools.cache
def attention(dtype: str):
    """Of many cases at once."""

    def attended(query, keys, values, first, own, mask, window):
        cache = kv_cache.init(1, BATCH, KEY_HEADS, LENGTH, WIDTH, dtype)
        cache = kv_cache.append(cache, keys, values, first)
        return kv_cache.attend(query, cache, own, mask=mask, window=window)

    return jax.jit(jax.vmap(attended))


def place_of(case: Case, batch: int, head: int, query: int, token: int) -> str:
    """Where a row of the cache is, for a query."""
    own = case.own[batch] + query
    if not case.first[batch] <= token < case.first[batch] + WRITTEN:
        return "never written"
    if token > own:
        return "after"
    if own - token >= case.window:
        return "outside the window"
    return "seen" if case.mask[batch, head, query, token] else "masked"


def is_seen(case: Case, batch: int, head: int, query: int, token: int) -> bool:
    """Also rows that were never written, which are zeros."""
    own = case.own[batch] + query
    return own - case.window < token <= own and case.mask[batch, head, query, token]


class Rounded(NamedTuple):
    """Rows as ``integers * scale``, in float64."""

    integers: np.ndarray
    scale: np.ndarray

    @property
    def numbers(self) -> np.ndarray:
        return self.integers * self.scale


def rounded(x: np.ndarray, largest: int) -> Rounded:
    """Scales and quotients are those of float32, in which an element may be halfway between two integers."""
    x = x.astype(np.float32)
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(largest)
    is_zeros = scale < SMALLEST
    integers = np.where(is_zeros, 0, np.rint(x / np.where(is_zeros, np.float32(1), scale)))
    return Rounded(integers.astype(np.float64), np.where(is_zeros, 0, scale).astype(np.float64))


def softmax(scores: np.ndarray, moved: np.ndarray | float = 0.0) -> np.ndarray:
    """Where each score in turn is moved, and all others are moved the other way."""
    exponents = (scores - moved) - (scores + moved)[:, None]
    np.fill_diagonal(exponents, 0)
    return 1 / np.exp(np.minimum(exponents, 700)).sum(-1)


def by_hand(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of one query to the values that it sees, (tokens, width)."""
    return softmax(scores / np.sqrt(WIDTH)) @ values


def bound(scores: np.ndarray, values: Rounded) -> np.ndarray:
    """How far the output may be from `by_hand` of rows that are rounded.

    The shares, the products of weights and scales of values, are rounded to int8: by half a step of the largest share. The
    scores and exponentials are rounded to float32, which moves weights by far less. Shares that are too small for a scale
    of their own count as zeros.
    """
    scores = scores / np.sqrt(WIDTH)
    moved = 2.0**-20 * (1 + np.abs(scores) + np.abs(scores).max())
    low, weights, high = (softmax(scores, moved * side) for side in (-1, 0, 1))
    half_a_step = (high[:, None] * values.scale).max() / LARGEST["INT8"] / 2 + LARGEST["INT8"] * SMALLEST
    moved = np.maximum(high - weights, weights - low) + 2 * SMALLEST
    return (moved @ np.abs(values.numbers) + half_a_step * np.abs(values.integers).sum(0)) * (1 + 1e-6)


def compared(dtype: str, case: Case, output: np.ndarray, count) -> tuple[collections.Counter, np.ndarray]:
    """Compares the outputs of a case with those by hand.

    Returns:
      How often rows of each kind were met at each place, and the sums of the squares of outputs and of their errors, for
      queries that meet nothing huge, relative to the size of the values.
    """
    met, squares = collections.Counter(), np.zeros(2)
    padded = np.zeros((2, BATCH, LENGTH, KEY_HEADS, WIDTH))
    kinds = np.full(padded.shape[:-1], "zeros", object)
    for batch, first in enumerate(case.first):
        written = slice(first, first + WRITTEN)
        padded[:, batch, written] = case.keys[batch], case.values[batch]
        kinds[:, batch, written] = case.kinds[1][batch], case.kinds[2][batch]
    for batch, query, head in itertools.product(range(BATCH), range(QUERIES), range(HEADS)):
        key_head = head // GROUP
        for token, part in itertools.product(range(LENGTH), range(2)):
            met[part, kinds[part, batch, token, key_head], place_of(case, batch, head, query, token)] += 1
        tokens = [token for token in range(LENGTH) if is_seen(case, batch, head, query, token)]
        found = output[batch, query, head].astype(np.float64)
        if not tokens:
            np.testing.assert_array_equal(found, 0)
            continue
        seen = case.query[batch, query, head].astype(np.float64), *padded[:, batch, tokens, key_head]
        if not all(np.isfinite(x).all() for x in seen):
            np.testing.assert_array_equal(found, np.nan)
            count("attention that meets NaN or infinity", 1)
            continue
        one, keys, values = (rounded(x, LARGEST[each]) for x, each in zip(seen, ("INT8", dtype, dtype), strict=True))
        scores = (keys.integers @ one.integers) * (keys.scale @ one.scale)  # the integers may cancel
        expected = by_hand(scores, values.numbers)
        is_near = np.abs(found - expected) <= bound(scores, values)
        assert is_near.all(), f"{found} for {expected}: {case}, {batch, query, head}"
        count("outputs of attention within half a step of rounding", WIDTH)
        if max(map(np.max, map(np.abs, seen))) < KINDS["huge"] / 2:
            exact = by_hand(seen[1] @ seen[0], seen[2])
            squares += np.array([np.square(x / case.size).sum() for x in (exact, found - exact)])
    return met, squares


@pytest.mark.parametrize(("dtype", "decibels"), [("INT8", 35), ("INT4", 13)])
def test_rows_of_every_kind(dtype, decibels, gate, full, count):
    """Each row that a query sees counts as what it is, and a row that it does not see for nothing, whatever it is."""
    rng = np.random.default_rng(0)
    met, squares = collections.Counter(), np.zeros(2)
    for _ in range(120 if full else 2 if gate else 1):
        cases = [random_case(rng) for _ in range(40)]
        outputs = attention(dtype)(*(np.stack(x) for x in list(zip(*cases, strict=True))[:7]))
        for case, output in zip(cases, np.asarray(outputs), strict=True):
            found, sums = compared(dtype, case, output, count)
            met, squares = met + found, squares + sums
    assert 10 * np.log10(squares[0] / squares[1]) > decibels
    written = {(part, kind, place) for part in range(2) for kind in KINDS for place in PLACES if place != "never written"}
    assert set(met) == written | {(part, "zeros", "never written") for part in range(2)}
