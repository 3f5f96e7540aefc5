"""Weights of any magnitude and any size, in every format: within its bound, or an error or warning that names the site.

Each layer of one stacked weight has a magnitude of its own, so that a program covers all of them. The inputs are rows of the
identity, so that the output is the weights, as they are stored.
"""

import itertools
import warnings

import jax
import numpy as np
import pytest
from jax import lax
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import Scheme
from jquant.transform.formats import weight_formats

K, N = 37, 6
INTEGERS = {"INT8": 127, "INT4": 8, "INT2": 1, "UINT8": 255, "UINT4": 15}
# Of 8-bit floats: the largest, half of the distance of neighbours over the number, and half of the smallest.
FLOAT8 = {"FLOAT8E4M3FN": (448, 2**-4, 2**-10), "FLOAT8E5M2": (57344, 2**-3, 2**-17)}
# The largest error over the largest magnitude of the block: a half step, or what saturates above the largest number.
MICROSCALING = {
    **{"MXFP8E4M3FN": 1 / 8, "MXFP8E5M2": 1 / 8, "MXFP6E2M3FN": 1 / 16},
    **{"MXFP6E3M2FN": 1 / 8, "MXFP4": 1 / 4, "MXINT8": 1 / 128},
}
SMALLEST_SCALES = {"FLOAT32": 2.0**-126, "FLOAT16": 2.0**-24, "BFLOAT16": 2.0**-126}
ROUNDING = {"FLOAT32": 2.0**-23, "FLOAT16": 2.0**-11, "BFLOAT16": 2.0**-8}
LARGEST_SCALES = {"FLOAT32": 3e38, "FLOAT16": 65504.0, "BFLOAT16": 3e38}
MAGNITUDES = [10.0**exponent for exponent in range(-30, 31, 2)]
PREPARATIONS = {
    "plain": {},
    "searched": {"weight_range": "mean_squared_error"},
    "GPTQ": {"weight_rounding": "GPTQ"},
    "SmoothQuant": {"smoothing": "SMOOTHQUANT"},
}
OTHERS = {  # which fewer schemes have
    "AWQ": {"smoothing": "AWQ"},
    "by tensor": {"weights": "PER_TENSOR"},
    "by tensor, GPTQ": {"weights": "PER_TENSOR", "weight_rounding": "GPTQ"},
}


def schemes() -> list[Scheme]:
    """One in five of every type with every type of scales, blocks or none, preparation, and activations.

    And one in 13 with AWQ, or with one scale for the tensor.
    """
    found, others = [], []
    for name in weight_formats.WEIGHT_TYPES:
        in_integer_products = *weight_formats.INTEGER_PRODUCTS, *weight_formats.FLOATS_IN_INTEGER_PRODUCTS
        activations = ("FLOAT", "DYNAMIC", "DYNAMIC_ROW", "STATIC") if name in in_integer_products else ("FLOAT",)
        types = ("FLOAT32",) if name in weight_formats.WITH_OWN_SCALES else tuple(SMALLEST_SCALES)
        sizes = (16,) if name in ("INT2", "NVFP4") else (None, 16)
        for values in itertools.product(sizes, types, activations, PREPARATIONS):
            size, scale_type, activation, preparation = values
            # Factors of all magnitudes leave channels below the one step that DYNAMIC and STATIC inputs have.
            if preparation != "SmoothQuant" or activation in ("FLOAT", "DYNAMIC_ROW"):
                options = {"weight_type": name, "block_size": size, "scale_type": scale_type, "activations": activation}
                found.append(Scheme(**options, **PREPARATIONS[preparation]))
        for size, scale_type, activation, (other, fields) in itertools.product(sizes, types, activations, OTHERS.items()):
            is_possible = (
                activation in ("FLOAT", "DYNAMIC_ROW") if other == "AWQ" else size is None and not has_own_blocks(name)
            )
            if is_possible:
                options = {"weight_type": name, "block_size": size, "scale_type": scale_type, "activations": activation}
                others.append(Scheme(**options, **fields))
    return [*found[::5], *others[::13]]


def has_own_blocks(weight_type: str) -> bool:
    return weight_type == "INT2" or weight_type in weight_formats.WITH_OWN_SCALES


def title(scheme: Scheme) -> str:
    return repr(scheme).removeprefix("Scheme").replace("'", "")


def patterns() -> np.ndarray:
    """Normal numbers, a single outlier, a constant, one number, zeros, up to 1, of each sign: (patterns, K, N)."""
    normal = np.random.default_rng(0).normal(size=(K, N))
    normal /= np.abs(normal).max()
    outlier = normal / 1000
    outlier[5] = 1
    one = np.zeros((K, N))
    one[K - 1, 2] = -1
    return np.stack([normal, outlier, np.ones((K, N)), one, -np.abs(normal), np.zeros((K, N))])


def apply(params, x):
    return lax.map(lambda w: x @ w, params["w"])


def in_blocks(x: np.ndarray, block_size: int, reduce) -> np.ndarray:
    """``reduce`` of each block of rows of (..., K, N), repeated for its elements."""
    parts = [x[..., start : start + block_size, :] for start in range(0, x.shape[-2], block_size)]
    return np.concatenate([np.broadcast_to(reduce(part), part.shape) for part in parts], axis=-2)


def bound(scheme: Scheme, w: np.ndarray) -> np.ndarray:
    """The largest error of each weight rounded to nearest, in float64.

    Integers: with the width b of a block, ``max|w|`` or that of the range, and Q steps, half of the scale, or up to three
    halves with a zero point, or all of it for INT4, whose numbers end at 7. The scale is ``b / Q``, rounded, or at most one
    smallest number of its type above that.
    """
    name = scheme.weight_type
    size = scheme.block_size or (32 if name in MICROSCALING else K)
    over = (-2, -1) if scheme.weights == "PER_TENSOR" else -2
    largest = in_blocks(np.abs(w), size, lambda part: part.max(over, keepdims=True))
    if name in MICROSCALING:
        return largest * MICROSCALING[name]
    if name == "NVFP4":  # half a step of the largest, to which the scale's rounding adds a 16th; and the smallest scales
        of_tensor = np.maximum(np.abs(w).max((-2, -1), keepdims=True), 2688 * 2.0**-100)
        return largest / 6 * (1 + 1 / 16) + 6 * 2**-10 * of_tensor / 2688 + of_tensor / 2688 * 2**-9
    if name.startswith("U"):
        high = in_blocks(w, size, lambda part: np.maximum(part.max(over, keepdims=True), 0))
        largest = high - in_blocks(w, size, lambda part: np.minimum(part.min(over, keepdims=True), 0))
    steps = FLOAT8[name][0] if name in FLOAT8 else INTEGERS[name]
    ideal = np.where(largest > 0, np.maximum(largest / steps, 2.0**-126), 0)
    scale = ideal * (1 + ROUNDING[scheme.scale_type])
    if scheme.scale_type == "FLOAT16":
        scale = np.maximum(scale, np.where(ideal > 0, ideal + 2.0**-24, 0))
    if name in FLOAT8:
        return np.maximum(np.abs(w) * FLOAT8[name][1] * (1 + 2**-6), scale * FLOAT8[name][2])
    if name.startswith("U"):  # the zero point is that of the float32 scale: half a step more, if that is rounded to 16 bits
        return scale * (1 if scheme.scale_type == "FLOAT32" else 3 / 2)
    return scale if name == "INT4" else scale / 2


def largest_of(scheme: Scheme) -> float:
    """The largest magnitude whose scale the type holds."""
    steps = {**INTEGERS, **{name: each[0] for name, each in FLOAT8.items()}}.get(scheme.weight_type, np.inf)
    return min(LARGEST_SCALES[scheme.scale_type] * steps / (2 if scheme.weight_type.startswith("U") else 1), 2e38)


@one_in(17, "scheme", schemes(), others="full", ids=title)
def test_magnitudes(scheme, count):
    """All magnitudes whose scales the type holds, in one stack of layers; a searched range for the sum of the squares."""
    magnitudes = [each for each in MAGNITUDES if each < largest_of(scheme)]
    exact = (patterns() * np.array(magnitudes)[:, None, None, None]).reshape(-1, K, N)
    w, x = exact.astype(np.float32), np.eye(K, dtype=np.float32)
    exact = w.astype(np.float64)
    rules = recipe(scheme)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `test_too_small` asserts which ones there are
        needs_data = scheme.activations == "STATIC" or scheme.preparation.needs_statistics
        calibration = transform.calibrate(apply, {"w": w}, [x], rules) if needs_data else None
        quantized_apply, stored = transform.quantize(apply, {"w": w}, rules, x, calibration=calibration)
    actual = np.asarray(jax.jit(quantized_apply)(stored, x), np.float64)
    assert np.isfinite(actual).all()
    factors = np.ones((len(w), K, 1))
    if scheme.smoothing == "SMOOTHQUANT":  # AWQ has the same factor for all channels of the identity
        largest = np.abs(exact).max(-1, keepdims=True)
        factors = np.clip(np.where(largest > 0, largest, 1) ** 0.5, 2.0**-14, 2.0**14)
    allowed = bound(scheme, exact / factors) * (1 + 1e-3) * factors + np.abs(exact) * 2e-6
    error = np.abs(actual - exact)
    if scheme.weight_range != "min_max":
        size = scheme.block_size or (32 if scheme.weight_type in MICROSCALING else K)
        square = lambda each: in_blocks(each**2, size, lambda part: part.sum(-2, keepdims=True))  # noqa: E731
        largest = np.abs(exact).max((-2, -1), keepdims=True)
        unit = np.where(largest > 0, largest, 1)
        error, allowed = square(error / unit), square(allowed / unit) * (1 + 1e-3)
    np.testing.assert_array_less(error, allowed + 1e-300)
    count("weights of all magnitudes", error.size)


def test_magnitudes_of_nvfp4(count):
    """In everybody's suite: no other type has a scale for the tensor beside those of its blocks."""
    test_magnitudes(Scheme(weight_type="NVFP4", activations="FLOAT"), count)


SMALL = {  # the type, and weights that its float16 scales, or its own, hold with all bits, and that they do not
    "INT8": (4e-6, 1e-7),
    "UINT8": (4e-6, 1e-7),
    "INT4": (4e-7, 1e-8),
    "UINT4": (4e-7, 1e-8),
    "FLOAT8E4M3FN": (1e-8, 1e-10),
    "FLOAT8E5M2": (1e-11, 1e-13),
    "NVFP4": (1e-32, 1e-34),
}


@pytest.mark.parametrize("weight_type", SMALL)
def test_too_small(weight_type):
    """A warning names the parameter, where the largest weight loses more than two bits to the type of its scale."""
    scale_type = "FLOAT32" if weight_type in weight_formats.WITH_OWN_SCALES else "FLOAT16"
    scheme = Scheme(weight_type=weight_type, scale_type=scale_type, activations="FLOAT")
    normal, x = patterns()[0], np.eye(K, dtype=np.float32)
    enough, too_small = SMALL[weight_type]
    function = lambda params, x: x @ params["of"]["layer"]  # noqa: E731
    for magnitude, is_right in ((enough, True), (too_small, False), (1, True)):
        params = {"of": {"layer": np.float32(normal * magnitude)}}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            transform.quantize(function, params, recipe(scheme), x)
        messages = [str(each.message) for each in caught if "too small for the scales" in str(each.message)]
        assert len(messages) == (not is_right)
        assert all("transform.quantize: the weights of of/layer are at most" in each for each in messages)
        assert [each.filename for each in caught] == [__file__] * len(caught)


@pytest.mark.parametrize("weight_type", [*(name for name in SMALL if name != "NVFP4"), "INT2"])
def test_too_large(weight_type):
    """An error names the parameter, where a scale would overflow its type; the widest type takes the weights."""
    options = {"weight_type": weight_type, "activations": "FLOAT", "block_size": 16 if weight_type == "INT2" else None}
    params = {"w": np.float32(patterns()[0] * 1e12)}
    with pytest.raises(
        transform.TransformError, match=r"the weights of w reach 1e\+12, beyond the largest scale of the type FL"
    ):
        transform.quantize(lambda p, x: x @ p["w"], params, recipe(Scheme(**options, scale_type="FLOAT16")), np.ones((1, K)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight_type", ["INT8", "MXFP4", "UINT4"])
def test_not_finite(weight_type, bad):
    """A warning names the parameters, also those that weights are computed from."""
    w = np.float32(patterns()[0])
    w[3, 1] = bad
    scheme = Scheme(weight_type=weight_type, activations="FLOAT")
    for function, names in (
        (lambda p, x: x @ p["w"], "w hold"),
        (lambda p, x: x @ (p["w"] * p["v"]), "v, computed from v, w, hold"),
    ):
        with pytest.warns(UserWarning, match=f"transform.quantize: the weights of {names} NaN or infinity"):
            transform.quantize(function, {"w": w, "v": np.ones_like(w)}, recipe(scheme), np.ones((1, K), np.float32))


def _largest_error(scheme: Scheme, x: np.ndarray, w: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Of ``x @ w``: what rounding each weight and each element of an input to nearest may add up to.

    Prepared weights minimize the error of all outputs, in place of that of each weight: they have four times as much.
    """
    if not w.size:
        return np.zeros((len(x), w.shape[1]))
    of_weights = bound(scheme, w) * (1 + 1e-3) * (1 if scheme.preparation == Scheme().preparation else 4)
    of_inputs = 0 if scheme.activations == "FLOAT" else np.abs(largest).max() * 1.5 / 127
    return np.abs(x) @ of_weights + of_inputs * (np.abs(w) + of_weights).sum(0) + 1e-6


SIZES = [(k, n) for k in (0, 1, 13, 32) for n in (0, 1, 13, 16)]


@one_in(23, "scheme", schemes(), others="full", ids=title)
def test_sizes(scheme, count):
    """Weights and inputs with dimensions of 0, 1, a prime, and whole blocks: near the float product, and zeros if K is 0."""
    rng = np.random.default_rng(1)
    params = {f"{k}x{n}": rng.normal(size=(k, n)).astype(np.float32) for k, n in SIZES}
    function = lambda params, x: {name: x[:, : len(w)] @ w for name, w in params.items()}  # noqa: E731
    rules = transform.Recipe([("*", scheme)], smallest=0)
    full = rng.normal(size=(3, 32)).astype(np.float32)
    needs_data = scheme.activations == "STATIC" or scheme.preparation.needs_statistics
    calibration = transform.calibrate(function, params, [full, full[:0]], rules) if needs_data else None
    quantized_apply, stored = transform.quantize(function, params, rules, full, calibration=calibration)
    for x in (full, full[:0], full[:1]):
        outputs = quantized_apply(stored, x)
        for name, w in params.items():
            expected = x[:, : len(w)].astype(np.float64) @ w
            assert outputs[name].shape == expected.shape
            assert (np.abs(outputs[name] - expected) <= _largest_error(scheme, x[:, : len(w)], w, full)).all()
            count("products of all sizes", 1)


@pytest.mark.parametrize("fields", [{"weight_rounding": "GPTQ"}, {"smoothing": "AWQ"}, {"activations": "STATIC"}])
def test_calibration_without_rows(fields):
    """Statistics of no rows: the weights are rounded to nearest; a range of nothing is an error that names the site."""
    params, x = {"w": np.float32(patterns()[0])}, np.zeros((0, K), np.float32)
    function, rules = lambda p, x: x @ p["w"], recipe(Scheme(**{"activations": "FLOAT", **fields}))
    if "activations" in fields:
        with pytest.raises(transform.TransformError, match="no finite number reached w"):
            transform.calibrate(function, params, [x], rules)
        return
    with pytest.warns(UserWarning, match="nothing but zeros reached w"):
        calibration = transform.calibrate(function, params, [x], rules)
    quantized_apply, stored = transform.quantize(function, params, rules, x, calibration=calibration)
    assert quantized_apply(stored, x).shape == (0, N)
    actual = quantized_apply(stored, np.eye(K, dtype=np.float32))
    np.testing.assert_allclose(actual, params["w"], atol=0.6 / 127)
