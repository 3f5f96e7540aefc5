"""GPTQ: what `transform.quantize` stores are the numbers of an optimal brain quantization in NumPy's float64."""

import itertools

import numpy as np
import pytest
from support import optimal_brain
from support.networks import recipe
from support.sampling import one_in

from jquant import transform

FORMATS = {
    "int4 by channel": {"weight_type": "INT4", "activations": "FLOAT"},
    "int4 in blocks of 32": {"weight_type": "INT4", "activations": "FLOAT", "block_size": 32},
    "int4 in blocks of 16, float16": {
        "weight_type": "INT4",
        "activations": "DYNAMIC_ROW",
        "block_size": 16,
        "scale_type": "FLOAT16",
    },
    "uint4 by channel": {"weight_type": "UINT4", "activations": "FLOAT"},
    "uint4 in blocks of 32": {"weight_type": "UINT4", "activations": "FLOAT", "block_size": 32},
    "uint4 in blocks of 16": {"weight_type": "UINT4", "activations": "DYNAMIC_ROW", "block_size": 16},
    "int8 in columns": {},
    "uint8 in columns": {"weight_type": "UINT8"},
    "int8 in blocks of 16": {"activations": "FLOAT", "block_size": 16},
    "int4 by tensor": {"weight_type": "INT4", "activations": "FLOAT", "weights": "PER_TENSOR"},
    "int8 by tensor": {"weights": "PER_TENSOR"},
    "int2 in blocks of 16": {"weight_type": "INT2", "activations": "FLOAT", "block_size": 16},
    "int2 in blocks of 32": {"weight_type": "INT2", "activations": "FLOAT", "block_size": 32},
    "float8e4m3fn by channel": {"weight_type": "FLOAT8E4M3FN", "activations": "FLOAT"},
    "float8e5m2 in blocks of 32": {"weight_type": "FLOAT8E5M2", "activations": "FLOAT", "block_size": 32},
    "mxfp4 in blocks of 32": {"weight_type": "MXFP4", "activations": "FLOAT"},
    "mxfp4 in blocks of 16": {"weight_type": "MXFP4", "activations": "FLOAT", "block_size": 16},
    "mxint8": {"weight_type": "MXINT8", "activations": "FLOAT"},
    "nvfp4": {"weight_type": "NVFP4", "activations": "FLOAT"},
}
SIZES = {  # K, N, the rows of X, and whether some inputs are always 0
    "256 x 256": (256, 256, 600, False),
    "256 x 64, fewer rows than K": (256, 64, 60, False),
    "128 x 20, dead inputs": (128, 20, 300, True),
    "72 x 5, fewer rows, dead inputs": (72, 5, 40, True),
    "50 x 2": (50, 2, 200, False),
    "33 x 7, fewer rows": (33, 7, 20, False),
    "4 x 3": (4, 3, 9, False),
}
OPTIONS = list(itertools.product([0.01, 0.1], [True, False]))
CASES = [
    (format, size, OPTIONS[(number + number // len(SIZES)) % len(OPTIONS)])
    for number, (format, size) in enumerate(itertools.product(FORMATS, SIZES))
]
NEAR_TIE = 1e-4  # steps


def problem(rows, columns, count, has_dead_inputs):
    """Weights, and inputs that are correlated, some much larger than others."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(count, rows)) @ (np.eye(rows) + rng.normal(size=(rows, rows)) / rows**0.5)
    x *= np.exp(rng.normal(size=rows) / 2)
    if has_dead_inputs:
        x[:, ::7] = 0
    return rng.standard_t(6, size=(rows, columns)).astype(np.float32), x.astype(np.float32)


def multiply(w, x):
    return x @ w


@one_in(27, ("format", "size", "options"), CASES, gate=5)
def test_optimal_brain(format, size, options, count):
    """The numbers are equal, but in columns where the first that differs was nearly a tie: later rows follow from it."""
    rows, columns, *_ = SIZES[size]
    w, x = problem(*SIZES[size])
    scheme = transform.Scheme(**FORMATS[format], weight_rounding=("GPTQ", *options))
    calibration = transform.calibrate(multiply, w, np.array_split(x, 2), recipe(scheme))
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), x, calibration=calibration)
    stored = optimal_brain.read(scheme, quantized_params["sites"]["matmul"], rows)
    products = np.asarray(calibration["matmul"].products, np.float64)
    damping, by_diagonal = options
    hessian, allowed = optimal_brain.damped(products, damping), optimal_brain.elements(scheme.weight_type)
    expected = optimal_brain.optimal_brain(w, hessian, stored, allowed, by_diagonal=by_diagonal)

    differs = (stored.numbers != expected.numbers)[expected.order]
    columns_that_differ = np.flatnonzero(differs.any(0))
    first = expected.order[differs.argmax(0)]
    assert (expected.distances[first, range(columns)][columns_that_differ] < NEAR_TIE).all()
    count("numbers of GPTQ compared with optimal brain quantization", w.size)
    count("numbers of GPTQ that differ, after a tie", int(differs.sum()))
    count("columns of GPTQ compared with optimal brain quantization", columns)
    count("columns of GPTQ with a tie", len(columns_that_differ))

    nearest = optimal_brain.to_nearest(w, stored, allowed)
    error, error_of_nearest = (
        optimal_brain.output_error(stored.real(numbers) - w, hessian) for numbers in (stored.numbers, nearest)
    )
    print(f"{format}, {size}, {options}: {len(columns_that_differ)} of {columns} columns differ, "
          f"{differs.sum()} numbers; error {error:.4g}, to nearest {error_of_nearest:.4g}")
    assert error < error_of_nearest or rows < 32  # there, a greedy choice may be worse
