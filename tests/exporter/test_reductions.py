"""Reductions and cumulative functions, exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.errors import ModelError
from jquant.onnx.exporter import export

from .running import FLOATS, INTEGERS, assert_exported, in_type, numbers, sample

REDUCTIONS = {
    "sum": lambda x: lax.reduce_sum(x, (1,)),
    "product": lambda x: lax.reduce_prod(x, (0, 2)),
    "argmax": lambda x: lax.argmax(x, 1, jnp.int32),
}
EXTREMES = {
    "max": lambda x: lax.reduce_max(x, (2,)),
    "min": lambda x: lax.reduce_min(x, (0, 1, 2)),
    "of no dimension": lambda x: lax.reduce_max(x, ()),
    "argmin": lambda x: lax.argmin(x, 2, jnp.uint8),
    "from a start": lambda x: lax.reduce(x, jnp.ones((), x.dtype), lax.max, (1,)),
}
LOGICAL = {
    "and": lambda x: lax.reduce_and(x, (1, 2)),
    "or": lambda x: lax.reduce_or(x, (1,)),
    "xor": lambda x: lax.reduce_xor(x, (0, 2)),
}
CUMULATIVE = {
    "sum": lambda x: lax.cumsum(x, 1),
    "sum from behind": lambda x: lax.cumsum(x, 1, reverse=True),
    "product": lambda x: lax.cumprod(x, 1),
    "product from behind": lambda x: lax.cumprod(x, 0, reverse=True),
    "max": lambda x: lax.cummax(x, 1),
    "min from behind": lambda x: lax.cummin(x, 1, reverse=True),
}


def each(functions):
    return lambda x: {name: function(x) for name, function in functions.items()}


@pytest.mark.parametrize("dtype", sample(INTEGERS, "int32", "uint16"))
def test_reductions_of_integers(dtype):
    """Sums and products wrap, where onnxruntime would hold them within the range."""
    added = lambda x: lax.reduce(x, jnp.ones((), x.dtype), lax.add, (1,))  # noqa: E731
    assert_exported(each(REDUCTIONS | EXTREMES | LOGICAL | {"added to a start": added}), numbers(dtype, 3, 5, 4))


@pytest.mark.parametrize("dtype", sample(FLOATS, "float32", marker="gate"))
def test_reductions_of_floats(dtype):
    x = numbers("float32", 3, 5, 4)
    assert_exported(in_type(dtype)(each(EXTREMES)), x)
    assert_exported(in_type(dtype)(each(REDUCTIONS)), x, tolerance=2e-6 if dtype == "float32" else 2e-2)
    x[0, 0, 0] = np.nan
    assert_exported(in_type(dtype)(each({name: EXTREMES[name] for name in ("max", "min")})), x)


def test_reductions_of_bool():
    assert_exported(each(LOGICAL | EXTREMES), numbers("bool", 3, 5, 4))


def test_reductions_of_nothing():
    functions = {"sum": REDUCTIONS["sum"], "max": EXTREMES["max"], **LOGICAL}
    for dtype in ("int8", "uint32"):
        assert_exported(each(functions), numbers(dtype, 3, 5, 0))
    assert_exported(each({"sum": jnp.sum, "prod": jnp.prod, "max": EXTREMES["max"]}), numbers("float32", 3, 0, 0))


@pytest.mark.parametrize("dtype", sample(INTEGERS, "int8", "uint32"))
def test_cumulative_integers(dtype):
    assert_exported(each(CUMULATIVE), numbers(dtype, 3, 13))


@pytest.mark.parametrize("dtype", sample(FLOATS, "float32", marker="gate"))
def test_cumulative_floats(dtype):
    functions = CUMULATIVE | {"logarithm": lambda x: lax.cumlogsumexp(x, 1)}
    assert_exported(
        in_type(dtype)(each(functions)), numbers("float32", 3, 13), tolerance=3e-6 if dtype == "float32" else 5e-2
    )


def test_functions_of_users():
    functions = {
        "mean": lambda x: jnp.mean(x, 0),
        "var": lambda x: jnp.var(x, 1),
        "std": jnp.std,
        "norm": lambda x: jnp.linalg.norm(x, axis=1),
        "softmax": jax.nn.softmax,
        "log_softmax": jax.nn.log_softmax,
        "logsumexp": lambda x: jax.nn.logsumexp(x, axis=1),
        "standardize": jax.nn.standardize,
        "one_hot": lambda x: jax.nn.one_hot(jnp.argmax(x, -1), 6),
        "any": lambda x: jnp.any(x > 1, axis=1),
        "all": lambda x: jnp.all(x > -1),
        "count": lambda x: jnp.count_nonzero(x > 0),
        "ptp": lambda x: jnp.ptp(x, 1),
        "of bytes": lambda x: jnp.sum(jnp.round(x * 9).astype(jnp.int8)),
    }
    assert_exported(each(functions), numbers("float32", 4, 6), tolerance=3e-6, reference=True)


def test_nodes():
    x = numbers("float32", 4, 6)
    assert assert_exported(lambda x: jnp.sum(x, 1), x, tolerance=1e-6) == ["ReduceSum"]
    assert assert_exported(lambda x: jnp.cumsum(x, 1), x, tolerance=1e-6) == ["CumSum"]
    assert assert_exported(lambda x: jnp.max(x, 1), x) == ["ReduceMax"]


def test_refusals():
    with pytest.raises(
        ModelError, match=r"reduce \(.*\): is written for sums, products, extremes and logical functions of one array"
    ):
        export(lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + 2 * b, (0,)), numbers("float32", 3))
