"""Searched ranges: of all shares of a block's range, the one that leaves the smallest squared error, in NumPy's float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import optimal_brain
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform.weights import weight_range

FORMATS = {
    "int4 in blocks of 32": {"weight_type": "INT4", "activations": "FLOAT", "block_size": 32},
    "int4 by channel": {"weight_type": "INT4", "activations": "FLOAT"},
    "int4 in blocks of 16, float16": {
        "weight_type": "INT4",
        "activations": "FLOAT",
        "block_size": 16,
        "scale_type": "FLOAT16",
    },
    "int2 in blocks of 16": {"weight_type": "INT2", "activations": "FLOAT", "block_size": 16},
    "int8 in columns": {},
    "uint8 in columns": {"weight_type": "UINT8"},
    "uint4 in blocks of 16": {"weight_type": "UINT4", "activations": "FLOAT", "block_size": 16},
    "float8e4m3fn in blocks of 32": {"weight_type": "FLOAT8E4M3FN", "activations": "FLOAT", "block_size": 32},
    "mxfp4": {"weight_type": "MXFP4", "activations": "FLOAT"},
    "mxfp8e4m3fn in blocks of 16": {"weight_type": "MXFP8E4M3FN", "activations": "FLOAT", "block_size": 16},
    "mxint8": {"weight_type": "MXINT8", "activations": "FLOAT"},
    "nvfp4": {"weight_type": "NVFP4", "activations": "FLOAT"},
}
ROWS, COLUMNS = 72, 9
TOLERANCE = 1e-5  # of float32 sums of a block's squares


def weights(rows=ROWS, columns=COLUMNS):
    """Blocks whose largest elements are rare, and a block of zeros."""
    matrix = np.random.default_rng(0).standard_t(3, size=(rows, columns)).astype(np.float32)
    matrix[:32, 0] = 0
    return matrix


def multiply(w, x):
    return x @ w


def quantized(w, scheme):
    x = np.ones((2, w.shape[-2]), np.float32)
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), x)
    return optimal_brain.read(scheme, quantized_params["sites"]["matmul"], w.shape[-2])


@one_in(6, "format", FORMATS)
def test_smallest_error(format, count):
    """Each block's scale is that of the best share; its error is never larger than that of the whole range."""
    w, options = weights(), FORMATS[format]
    scheme = transform.Scheme(**options, weight_range="mean_squared_error")
    stored, allowed = quantized(w, scheme), optimal_brain.elements(scheme.weight_type)
    block_size = {"NVFP4": 16, "MXFP4": 32, "MXINT8": 32}.get(scheme.weight_type, scheme.block_size or ROWS)
    candidates = optimal_brain.range_candidates(scheme, w, block_size)
    errors = optimal_brain.block_errors(w, candidates, allowed, block_size)
    taken = stored.scales[::block_size], stored.zero_points[::block_size]
    is_taken = (candidates.scales == taken[0]) & (candidates.zero_points == taken[1])
    assert is_taken.any(0).all()
    error = np.where(is_taken, errors, np.inf).min(0)
    assert (error <= errors.min(0) * (1 + TOLERANCE)).all()
    assert (error <= errors[0] * (1 + TOLERANCE)).all()
    if (
        "INT8" not in scheme.weight_type
    ):  # whose steps are so small that any share but the whole saturates more than it gains
        assert (error < errors[0]).any()
    count("blocks whose range was searched", error.size)
    count("blocks whose two best shares are equal but for rounding", int((error > errors.min(0)).sum()))
    # The numbers are the nearest with these scales. What is a tie in float64 may be none in float32.
    steps = np.where(stored.scales != 0, stored.scales, 1)  # those of a block of zeros are 0 in NVFP4
    nearest, distances = allowed.nearest(w.astype(np.float64) / steps + stored.zero_points)
    np.testing.assert_array_equal(stored.numbers[distances > 1e-6], nearest[distances > 1e-6])


def test_four_over_six():
    """A block of NVFP4 whose largest is 4 has steps of a half up to 2, as this one needs; with 6, it would have thirds."""
    w = np.zeros((32, 2), np.float32)
    w[:16] = np.resize([4, 1, 2, 1.5, 0.5, -3, -2, -1], 16)[:, None]
    w[16] = 6 * 448  # of the scale of the tensor, which is then 1
    options = {**FORMATS["nvfp4"], "weight_range": "mean_squared_error"}
    for factor in (1, 64):  # and where one and a half of the largest would be beyond the scales: the largest of the tensor
        scaled = np.concatenate([w[:16] * factor, w[16:]])
        stored = quantized(scaled, transform.Scheme(**options))
        np.testing.assert_array_equal(stored.real(), scaled)
        assert not np.array_equal(quantized(scaled, transform.Scheme(**FORMATS["nvfp4"])).real(), scaled)
    alone = quantized(w[:16] * 448, transform.Scheme(**options))
    assert alone.scales.max() == 448 * (np.float32(448 * 4) / np.float32(448 * 6))


@one_in(3, "options", [{"weight_rounding": "GPTQ"}, {"smoothing": "AWQ"}, {"weight_rounding": "GPTQ", "block_size": None}])
def test_weights_count_as_their_inputs(options, count):
    """Where X^T X is known, its diagonal weights the errors of rows."""
    w, inputs = weights(), np.random.default_rng(1).normal(size=(100, ROWS)).astype(np.float32)
    inputs *= np.geomspace(0.01, 10, ROWS, dtype=np.float32)[np.random.default_rng(2).permutation(ROWS)]
    scheme = transform.Scheme(**{**FORMATS["int4 in blocks of 32"], "weight_range": "mean_squared_error", **options})
    calibration = transform.calibrate(multiply, w, [inputs], recipe(scheme))
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), inputs, calibration=calibration)
    site = dict(quantized_params["sites"]["matmul"])
    factors = np.asarray(site.pop("smoothing", np.ones(ROWS, np.float32)))
    stored, block_size = optimal_brain.read(scheme, site, ROWS), scheme.block_size or ROWS
    changed = (w.astype(np.float64) / factors[:, None]).astype(np.float32)
    candidates = optimal_brain.range_candidates(scheme, changed, block_size)
    importance = np.square(inputs.astype(np.float64) * factors).sum(0)
    errors = optimal_brain.block_errors(changed, candidates, optimal_brain.elements("INT4"), block_size, importance)
    best = np.take_along_axis(candidates.scales, errors.argmin(0)[None], 0)[0]
    plain = optimal_brain.block_errors(changed, candidates, optimal_brain.elements("INT4"), block_size)
    assert (errors.argmin(0) != plain.argmin(0)).any()
    np.testing.assert_array_equal(stored.scales[::block_size], best)
    count("blocks whose range was searched with the importance of rows", best.size)


@pytest.mark.gate
def test_batches_and_layers():
    """Each matrix has the numbers of a search by itself."""
    w = np.stack([weights(), 2 * weights()[::-1]])
    scheme = transform.Scheme(**FORMATS["int4 in blocks of 32"], weight_range="mean_squared_error")
    x = np.ones((2, ROWS), np.float32)
    functions = {
        "batch": lambda w, x: jnp.einsum("bk,bkn->bn", x, w),
        "layers": lambda w, x: lax.scan(lambda x, w: (x, x @ w), x, w)[1],
    }
    for function in functions.values():
        _, quantized_params = transform.quantize(function, w, recipe(scheme), x)
        stored = quantized_params["sites"]["matmul"]["values"]
        for number, matrix in enumerate(w):
            expected = quantized(matrix, scheme)
            np.testing.assert_array_equal(np.asarray(stored.unpack().astype(np.int32))[number], expected.numbers)
            np.testing.assert_array_equal(np.repeat(stored.scale[number], 32, 0)[:ROWS], expected.scales)


def test_one_importance_for_several_matrices():
    """A batch of matrices by one input has one X^T X: each matrix is searched as it is alone."""
    w, importance = np.stack([weights(), 2 * weights()[::-1]]), np.geomspace(0.01, 10, ROWS, dtype=np.float32)
    format = transform.Scheme(**FORMATS["int4 in blocks of 32"]).format
    scales = jax.jit(lambda w: weight_range.search(format, w, jnp.asarray(importance))["scale"])
    for each, matrix in zip(scales(w), w, strict=True):
        np.testing.assert_array_equal(each, scales(matrix))


def test_tables():
    """A table that is looked up has searched ranges as well, along its rows."""
    table = weights().T.copy()
    scheme = transform.Scheme(weight_type="INT4", activations="FLOAT", block_size=8, weight_range="mean_squared_error")
    indices = np.arange(COLUMNS, dtype=np.int32)
    _, quantized_params = transform.quantize(lambda table, i: table[i], table, recipe(scheme), indices)
    stored = optimal_brain.read(scheme, quantized_params["sites"]["embedding"], ROWS)
    expected = quantized(table.T.copy(), scheme)
    for actual, wanted in zip(stored, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
