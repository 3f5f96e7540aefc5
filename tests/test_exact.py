"""The functions of `jquant.exact` compared with NumPy, bit for bit, eagerly and under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support.comparison import assert_same_bits

import jquant
from jquant.cases import samples

FLOAT32 = np.float32


PUBLIC = {
    **{"product": np.multiply, "sum": np.add, "difference": np.subtract, "quotient": np.divide},
    **{"reciprocal": lambda x: FLOAT32(1) / x, "round_half_even": np.rint, "seal": np.positive, "widen": np.positive},
    "round_half_away": lambda x: np.trunc(x + np.copysign(FLOAT32(0.5), x)),
    "round_half_up": lambda x: np.floor(x + FLOAT32(0.5)),
}
BINARY = ("product", "sum", "difference", "quotient")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_in_a_callers_program(name):
    """Eagerly, between a caller's constant products in a program, with Python scalars, and broadcasting."""
    rng = np.random.default_rng(8)
    x, y = (rng.uniform(0.5, 9, 100_000).astype(FLOAT32) for _ in range(2))
    function, formula, before, after = getattr(jquant.exact, name), PUBLIC[name], FLOAT32(0.1), FLOAT32(3.7)
    operands = (x, y) if name in BINARY else (x,)
    assert_same_bits(function(*operands), formula(*operands))
    program = jax.jit(lambda x, *others: function(x * before, *others) * after)
    assert_same_bits(program(*operands), formula(x * before, *operands[1:]) * after)
    if name in BINARY:
        assert_same_bits(jax.jit(lambda x: function(x, 0.1))(x), formula(x, FLOAT32(0.1)))
        assert_same_bits(jax.jit(lambda x: function(0.1, x))(x), formula(FLOAT32(0.1), x))
        assert_same_bits(function(x.reshape(-1, 10), y[:10]), formula(x.reshape(-1, 10), y[:10]))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_public_widening_and_narrowing(dtype):
    x = samples.wide_floats(np.random.default_rng(9), 100_000)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    narrowed = jquant.exact.narrow(x, dtype)
    assert narrowed.dtype == dtype
    assert_same_bits(jquant.exact.widen(narrowed), expected.astype(FLOAT32))
    np.testing.assert_array_equal(jquant.exact.seal(narrowed).astype(FLOAT32), expected.astype(FLOAT32))


@pytest.mark.gate
def test_public_functions_are_differentiable():
    for name in ("product", "sum", "difference", "quotient"):
        check_grads(getattr(jquant.exact, name), (jnp.float32(1.7), jnp.float32(0.6)), order=2, atol=1e-2, rtol=1e-2)
    assert jax.grad(lambda x: jquant.exact.reciprocal(jquant.exact.seal(x)))(jnp.float32(2)) == -0.25


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: jquant.exact.product(np.ones((2, 3), FLOAT32), np.ones(2, FLOAT32)),
            ValueError,
            "product: a has shape (2, 3), b",
        ),
        (lambda: jquant.exact.sum(np.ones(2, np.int32), 1.0), TypeError, "sum: a has data type INT32; it must be FLOAT32"),
        (
            lambda: jquant.exact.quotient(1.0, jnp.float16(1)),
            TypeError,
            "quotient: b has data type FLOAT16; it must be FLOAT32",
        ),
        (lambda: jquant.exact.narrow(1.0, "INT8"), TypeError, "narrow: dtype is INT8; it must be one of FLOAT32, FLOAT16,"),
        (
            lambda: jquant.exact.seal(np.int8(1)),
            TypeError,
            "seal: x has data type INT8; it must be one of FLOAT32, FLOAT16,",
        ),
        (lambda: jquant.exact.reciprocal(1e39), ValueError, "reciprocal: x is 1e+39, outside the range of FLOAT32"),
    ],
)
def test_errors_of_public_functions(call, error, text):
    with pytest.raises(error) as raised:
        call()
    assert isinstance(raised.value, jquant.DescriptorError)
    assert str(raised.value).startswith(text)
