"""Arithmetic, comparison, selection and conversion in all types, exported."""

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

COMPARISONS = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
ARITHMETIC = {
    **COMPARISONS,
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "neg": lambda a, b: lax.neg(a),
    "sign": lambda a, b: lax.sign(a),
    "square": lambda a, b: lax.square(a),
    "power": lambda a, b: lax.integer_pow(a, 5),
    "power of 0": lambda a, b: lax.integer_pow(a, 0),
    "select": lambda a, b: lax.select(a > b, a, b),
    "clamp": lambda a, b: lax.clamp(jnp.asarray(1, a.dtype), a, jnp.asarray(3, a.dtype)),
    "clamp to arrays": lambda a, b: lax.clamp(lax.min(a, b), a * b, lax.max(a, b)),
}
BITS = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lambda a, b: lax.bitwise_not(a),
    "left": lax.shift_left,
    "right": lax.shift_right_logical,
    "with sign": lax.shift_right_arithmetic,
    "left by 3": lambda a, b: lax.shift_left(a, jnp.full_like(a, 3)),
    "right by 3": lambda a, b: lax.shift_right_logical(a, jnp.full_like(a, 3)),
    "with sign by 3": lambda a, b: lax.shift_right_arithmetic(a, jnp.full_like(a, 3)),
    **{
        f"{shift.__name__} by {amount}": lambda a, b, shift=shift, amount=amount: shift(a, jnp.full_like(a, amount))
        for shift in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)
        for amount in (7, 31, 40)
    },
}
SPECIAL = np.array(
    [0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-8, -1e-8, 0.49999997, 1e30, -1e30, np.inf, -np.inf, np.nan, 100, -100, 88],
    np.float32,
)


def each(functions):
    return lambda *arrays: {name: function(*arrays) for name, function in functions.items()}


def shuffled(x, seed=1):
    return np.random.default_rng(seed).permutation(x)


@pytest.mark.parametrize("dtype", sample(INTEGERS, "int16", "uint8"))
def test_arithmetic_of_integers(dtype):
    """Also at the ends of the range, with divisors 0 and -1."""
    a = numbers(dtype, 64)
    b = shuffled(a)
    a[:6], b[:6] = np.iinfo(dtype).min, np.array([0, -1, 1, 2, 3, 4]).astype(dtype)
    functions = ARITHMETIC if dtype.startswith("uint") else {**ARITHMETIC, "abs": lambda a, b: lax.abs(a)}
    assert_exported(each(functions), a, b)


@pytest.mark.parametrize("dtype", sample(INTEGERS, "int8", "uint32"))
def test_bits_of_integers(dtype):
    """Amounts of shifts reach beyond the width, and below 0."""
    a = numbers(dtype, 80)
    assert_exported(each(BITS), a, np.resize(np.arange(-2, 38), 80).astype(dtype))


@pytest.mark.parametrize("dtype", sample(FLOATS, "float32", marker="gate"))
def test_arithmetic_of_floats(dtype):
    """Each node rounds once, as in JAX."""
    functions = {name: function for name, function in ARITHMETIC.items() if name != "sign"}
    functions |= {"abs": lambda a, b: lax.abs(a), "finite": lambda a, b: lax.is_finite(a)}
    x = np.concatenate([SPECIAL[abs(SPECIAL) != np.float32(1e-8)], numbers("float32", 45)])  # JAX makes subnormal powers 0
    y = shuffled(x)
    assert_exported(in_type(dtype)(each(functions)), x.clip(-6e4, 6e4), y.clip(-6e4, 6e4))


@pytest.mark.parametrize("dtype", sample(FLOATS[1:], "float16"))
def test_narrow_floats_are_rounded_between_nodes(dtype):
    """onnxruntime leaves out conversions in pairs that it makes itself, and with them the rounding."""

    def product(x, y):  # once for each node that reads it, as conversions with several readers stay
        return x * y + x

    @in_type(dtype)
    def function(x, y):
        return {
            "joined": jnp.concatenate([product(x, y), y])[::2],
            "selected": jnp.where(x > y, product(x, y), y),
            "negative": lax.neg(product(x, y)),
            "absolute": jnp.abs(product(x, y)),
            "rounded": jnp.round(product(x, y) * 64),
            "largest": jnp.max(product(x, y), axis=0),
            "place": jnp.argmax(product(x, y), axis=0),
            "equal": product(x, y) == product(y, x),
            "less": product(x, y) < product(y, x),
            "sorted": jnp.sort(jnp.pad(product(x, y), 1), axis=1),
            "integers": (product(x, y) * 8).astype(jnp.int8),
            "tiled": jnp.tile(lax.cummax(product(x, y), axis=1), (2, 1)) + 1,
            "moved": product(x, y).T.reshape(-1) * 3,
        }

    assert_exported(function, numbers("float32", 20, 12), numbers("float32", 20, 12, seed=1))


def test_operands_of_bool():
    functions = {
        name: function for name, function in (COMPARISONS | BITS).items() if "left" not in name and "sign" not in name
    }
    functions = {name: function for name, function in functions.items() if "right" not in name}
    functions |= {"max": lax.max, "min": lax.min, "select": lambda a, b: lax.select(a ^ b, a, b)}
    assert_exported(each(functions), numbers("bool", 9), numbers("bool", 9, seed=1), reference=True)


@pytest.mark.parametrize(
    ("name", "function", "tolerance"),
    [
        *((name, getattr(lax, name), 3e-6) for name in ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "cbrt", "tanh")),
        *((name, getattr(lax, name), 3e-6) for name in ("logistic", "erf", "erfc", "asin", "acos", "atan")),
        *((name, getattr(lax, name), 5e-6) for name in ("sinh", "cosh", "asinh", "acosh", "atanh", "exp2")),
        *((name, getattr(lax, name), 0) for name in ("floor", "ceil", "round")),
        ("log2", jnp.log2, 3e-6),
        ("erf_inv", lambda x: lax.erf_inv(lax.tanh(x)), 1e-5),
        ("away from zero", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), 0),
        ("to even", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0),
        ("a negative power", lambda x: lax.integer_pow(x, -3), 3e-6),
        ("sign", lambda x: lax.sign(x), 0),
    ],
)
def test_functions(name, function, tolerance, gate):
    """Near 0, in the tails, and of what is not a number."""
    small = numbers("float32", 50) * 0.1
    assert_exported(function, np.concatenate([SPECIAL, small, 10 * small]), tolerance=tolerance)
    for dtype in FLOATS[1:] if gate and tolerance == 3e-6 else ():
        assert_exported(in_type(dtype)(function), 10 * small, tolerance=1e-2)


def test_functions_of_angles():
    functions = {"sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan}
    assert_exported(each(functions), numbers("float32", 50), tolerance=3e-6)


def test_functions_of_two_values():
    y = np.array([0, 0, 1, -1, 1, -1, 1, -1, np.inf, -np.inf, np.inf, 1, 3], np.float32)
    x = np.array([1, -1, 0, 0, 1, 1, -1, -1, np.inf, np.inf, -np.inf, np.inf, 1e-30], np.float32)
    assert_exported(lax.atan2, y, x, tolerance=1e-6)
    base, exponent = abs(numbers("float32", 30)), numbers("float32", 30, seed=1)
    assert_exported(lax.pow, base, exponent, tolerance=1e-6)
    assert_exported(lax.pow, -base, (3 * exponent).astype(np.int32), tolerance=1e-6)


def test_selection_by_number():
    """Numbers outside the cases select the nearest one."""
    cases = [numbers(dtype, 40) for dtype in ("float32",) * 3]
    which = np.resize(np.arange(-2, 6), 40).astype(np.int32)
    assert_exported(lambda which, *cases: lax.select_n(which, *cases), which, *cases)
    for dtype in (*INTEGERS, "bool"):
        cases = [numbers(dtype, 40, seed=seed) for seed in range(2)]
        assert_exported(lambda which, *cases: lax.select_n(which > 1, *cases), which, *cases)


TYPES = (*FLOATS, *INTEGERS, "bool", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@pytest.mark.parametrize("source", sample(TYPES, "float32", "int4", "int8"))
def test_conversions(source):
    """From each type to all others, of numbers within their ranges."""

    def function(x):
        kinds = [dtype for dtype in TYPES if dtype != source]
        return {
            dtype: jnp.clip(x, *limits(source, dtype)).astype(source).astype(dtype).astype(jnp.float32) for dtype in kinds
        }

    assert_exported(function, np.concatenate([np.arange(-20, 21), [0.5, -0.5, 1.5, 2.5, 90]]).astype(np.float32))


def limits(*types):
    """Numbers that all types hold, and to which others round."""
    low, high = -100.0, 100.0
    for dtype in types:
        if "int" in dtype:
            low, high = max(low, float(jnp.iinfo(dtype).min)), min(high, float(jnp.iinfo(dtype).max))
    return low, min(high, 14.0) if any("4" in dtype and "int" in dtype for dtype in types) else high


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32"])
def test_conversions_that_round(dtype):
    """Large numbers, also in the middle between two narrow floats, and integers that wrap."""
    large = np.concatenate([numbers("int32", 200), np.array([2**24 + 1, 2049, 2051, -2049, 65519, 65520])])
    x = (np.concatenate([large / 1e3, SPECIAL]) if dtype == "float32" else large).astype(dtype)
    targets = [target for target in TYPES if dtype != "float32" or "int" not in target]
    targets = [target for target in targets if "float8" not in target]
    assert_exported(lambda x: {target: x.astype(target).astype(jnp.float32) for target in targets}, x)


def test_floats_outside_an_integers_range_stay_one_node():
    assert assert_exported(lambda x: x.astype(jnp.int8), np.float32([1.5, -1.5, -128, 127])) == ["Cast"]


@pytest.mark.parametrize("dtype", sample((*FLOATS, *INTEGERS), "float32"))
def test_total_order(dtype):
    """NaN of both signs and -0 are in it, too."""
    x = numbers(dtype, 24)
    if dtype in FLOATS:
        x[:6] = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf]

    def compare(a):
        a, b = jnp.broadcast_arrays(a[:, None], a)
        return lax.lt_to_p.bind(a, b), lax.le_to_p.bind(a, b)

    assert_exported(in_type(dtype)(compare), x)


def test_what_jax_writes_in_other_primitives():
    """jax.numpy calls functions that are one primitive in some versions of JAX, and several in others."""
    x, queries = np.sort(numbers("float32", 20)), np.append(numbers("float32", 9), np.float32([np.nan, 0, -0.0]))

    def function(x, queries):
        found = {side: jnp.searchsorted(x, queries, side=side) for side in ("left", "right")}
        return found, jnp.nonzero(queries > 0, size=5, fill_value=7), jnp.histogram(queries[:9], jnp.linspace(-3, 3, 7))[0]

    assert_exported(function, x, queries)
    assert_exported(lambda x: [*jnp.unique_all(x, size=4, fill_value=0)], np.int32([3, 1, 3, 2, 2]))
    assert_exported(lambda x, at: jnp.interp(at, x, x * 2), np.arange(5, dtype=np.float32), np.float32([0.5, -1, 2.25, 9]))
    assert_exported(lambda x: jax.device_put({"x": x, "y": x + 1}), x)


def test_reduced_precision():
    x = np.concatenate([numbers("float32", 200) * 1e4, SPECIAL])
    bits = [(8, 7), (5, 10), (8, 23)]
    assert_exported(lambda x: [lax.reduce_precision(x, *each) for each in bits], x)
    with pytest.raises(ModelError, match="a precision of 4 bits for exponents and 3 for mantissas is not written"):
        export(lambda x: lax.reduce_precision(x, 4, 3), x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_arrays(shape):
    x = numbers("float32", *shape)
    assert_exported(lambda x: [jnp.maximum(x * 2 + 1, 0), (x > 0) & (x < 1), jnp.round(x).astype(jnp.int8)], x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: lax.real(lax.complex(x, x)), "complex64 is not supported"),
        (lambda x: jnp.nextafter(x, x), r"nextafter \(.*\): is not supported: ONNX has no node"),
        (lambda x: lax.reduce_precision(x, 4, 3), "4 bits for exponents"),
        (lambda x: (x.astype(jnp.float8_e3m4) * 2).astype(jnp.float32), "float8_e3m4 is not supported"),
    ],
)
def test_refusals(function, message):
    with pytest.raises(ModelError, match=message):
        export(function, numbers("float32", 3))


def test_float64_is_refused():
    with jax.enable_x64(True), pytest.raises(ModelError, match="x: float64 is not supported"):
        export(lambda x: x * 2, np.ones(3))


ACTIVATIONS = {
    name: getattr(jax.nn, name)
    for name in (
        "relu",
        "gelu",
        "silu",
        "softplus",
        "elu",
        "selu",
        "leaky_relu",
        "hard_swish",
        "mish",
        "log_sigmoid",
        "relu6",
    )
}


@pytest.mark.gate
def test_functions_of_users():
    functions = {
        **ACTIVATIONS,
        "exact gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "floor": lambda x: x // 0.75,
        "mod": lambda x: x % 0.75,
        "floor of integers": lambda x: (x * 100).astype(jnp.int32) // 7,
        "mod of integers": lambda x: (x * 100).astype(jnp.int32) % (x * 10).astype(jnp.int32),
        "round": lambda x: jnp.round(x, 1),
        "clip": lambda x: jnp.clip(x, -1, 1),
        "where": lambda x: jnp.where(x > 0, x, 0.0),
        "nan_to_num": lambda x: jnp.nan_to_num(x / jnp.maximum(x, 0)),
        "logaddexp": lambda x: jnp.logaddexp(x, x[::-1]),
        "sinc": jnp.sinc,
        "arctan2": lambda x: jnp.arctan2(x, x[::-1]),
        "select": lambda x: jnp.select([x > 1, x > 0], [x, 2 * x], 0.0),
        "quantized": lambda x: jnp.clip(jnp.round(x / 0.1), -128, 127).astype(jnp.int8),
        "packed": lambda x: (abs(x) * 5).astype(jnp.uint8)[::2] | ((abs(x) * 5).astype(jnp.uint8)[1::2] << 4),
    }
    assert_exported(each(functions), numbers("float32", 4, 6), tolerance=3e-6)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_random_arithmetic(seed):
    """Random trees of operations, in each type."""
    generator = np.random.default_rng(seed)
    names = generator.choice([name for name in ARITHMETIC if name not in COMPARISONS], 6)
    for dtype in INTEGERS + FLOATS:

        def function(a, b, names=names):
            for name in names:
                a, b = b, ARITHMETIC[name](a, b)
            return b

        a, b = (numbers(dtype, 500, seed=seed + offset) for offset in (0, 100))
        assert_exported(in_type(dtype)(function), a, b)
