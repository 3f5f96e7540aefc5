"""Programs of more than 2**15 rows: XLA:CPU fuses no product of theirs with a reduction, which jaxlib 0.10.2 gets wrong.

That jaxlib is wrong from row 32,768 on where its fusion `__ynn_fusion` has both. `python -m jquant` reports it.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_equal
from support.sampling import one_in

from jquant import cases, kv_cache, transform

ROWS = 2**15 + 1
ALL_CASES = cases.CASES | cases.VARIANTS
PRODUCTS = [name for name in ALL_CASES if re.search("matmul|gemm|dot_general|convolution", name)]
REDUCTIONS = {
    "no reduction": lambda x: x,
    "a sum of squares": lambda x: jnp.sum(lax.square(x.astype(jnp.float32)), -1),
    "a maximum": lambda x: jnp.max(x, -1),
    "a sum over the rows": lambda x: jnp.sum(x.astype(jnp.float32), 0),
}


def fusions(function, *arguments) -> list[set[str]]:
    """The names of the operations in each `__ynn_fusion` of the compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text() or ""
    names = re.findall(r"calls=%(\S+?),[^\n]*__ynn_fusion", text)
    bodies = (text.partition(f"\n%{name} (")[2].partition("\n}")[0] for name in names)
    return [set(re.findall(r"= \S+ ([a-z\-]+)\(", body)) for body in bodies]


def assert_no_product_is_reduced(function, *arguments) -> int:
    """Returns the number of fusions with a product."""
    found = [operations for operations in fusions(function, *arguments) if {"dot", "convolution"} & operations]
    assert not any("reduce" in operations for operations in found), found
    return len(found)


def test_a_product_that_is_reduced_is_found():
    x = np.ones((ROWS, 3), np.float32)
    found = fusions(jax.vmap(lambda row: jnp.sum(lax.square(jnp.eye(3, dtype=np.float32) @ row))), x)
    assert any({"dot", "reduce"} <= operations for operations in found)


@one_in(49, ("name", "reduction"), [(name, reduction) for name in PRODUCTS for reduction in REDUCTIONS], others="full")
def test_no_product_is_fused_with_a_reduction(name, reduction, count, xla_by_default):
    """Neither by itself, nor where `jax.vmap` maps it over rows, nor in a caller's program that reduces its results."""
    case, reduce = ALL_CASES[name], REDUCTIONS[reduction]

    def caller(*arguments):
        return [reduce(x) if x.ndim > 1 else x for x in jax.tree.leaves(case.function(*arguments))]

    shapes = case.shapes(ROWS)
    axes = tuple(0 if index in case.rows else None for index in range(len(shapes)))
    one_row = case.shapes(1)
    mapped = tuple(
        one if axis is None else jax.tree.map(lambda x: jax.ShapeDtypeStruct((ROWS, *x.shape), x.dtype), one)
        for one, axis in zip(one_row, axes, strict=True)
    )
    found = assert_no_product_is_reduced(caller, *shapes) + assert_no_product_is_reduced(jax.vmap(caller, axes), *mapped)
    count("fusions with a product, of more than 2**15 rows", found)


@one_in(59, ("name", "rows"), [(name, rows) for name in ALL_CASES for rows in (40_961, 2**16 + 1)], others="full")
def test_every_operator(name, rows):
    case = ALL_CASES[name]
    arguments = case.arguments(rows=rows)
    assert_equal(jax.jit(case.function)(*arguments), case.formula(*arguments), name)


def assert_same_in_parts(function, *arrays, tolerance: float = 0):
    """All rows at once have the results of 8,192 at a time, within a relative tolerance."""
    call = jax.jit(function)
    parts = [call(*(x[first : first + 2**13] for x in arrays)) for first in range(0, ROWS, 2**13)]
    np.testing.assert_allclose(call(*arrays), np.concatenate(parts), rtol=tolerance, atol=tolerance, strict=True)


@one_in(2, "activations", ["FLOAT", "DYNAMIC_ROW"], others="full")
def test_transform(activations):
    """A network whose products have 3 inputs, as jaxlib 0.10.2 needs them to be wrong, and a reduction of each result."""
    rng = np.random.default_rng(0)
    weights = {name: rng.integers(-9, 9, (3, 3)).astype(np.float32) for name in "ab"}
    x = rng.integers(-9, 9, (ROWS, 3)).astype(np.float32)

    def network(weights, x):
        hidden = jnp.maximum(x @ weights["a"], np.float32(0))
        return jnp.max((weights["b"] @ hidden.T), 0)

    recipe = transform.Recipe([("*", transform.Scheme(activations=activations))], smallest=1)
    function, stored = transform.quantize(network, weights, recipe, x[:8])
    assert any({"dot", "reduce"} <= operations for operations in fusions(network, weights, x))  # the float program is
    assert_no_product_is_reduced(function, stored, x)
    # XLA rounds the float sums of one row, which is the last part, in another order.
    tolerance = 1e-4 if activations == "FLOAT" else 0
    assert_same_in_parts(lambda x: function(stored, x), x, tolerance=tolerance)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["INT8", "INT4"])
def test_attention(dtype):
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(ROWS, tokens, 1, 3)).astype(np.float32) for tokens in (1, 2, 2))

    def attend(queries, keys, values):
        cache = kv_cache.append(kv_cache.init(1, len(keys), 1, 2, 3, dtype), keys, values, 0, layer=0)
        return kv_cache.attend(queries, cache, 1, layer=0)

    assert_no_product_is_reduced(attend, queries, keys, values)
    assert_same_in_parts(attend, queries, keys, values)
