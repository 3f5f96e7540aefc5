"""The sums of a few rows with weights of few bits, as GPUs compute them: computed on a CPU, within the operator's bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant.kernels.weight_only import dense, on_gpu
from jquant.kernels.weights import StoredWeights, Weights

K, N, BLOCK = 256, 40, 32
FLOAT32 = np.dtype(np.float32)
random = np.random.default_rng(0)
scales = random.uniform(1e-3, 1e-1, (K // BLOCK, N)).astype(FLOAT32)


def by_row(of_blocks: np.ndarray) -> np.ndarray:
    return np.repeat(of_blocks.astype(FLOAT32), BLOCK, axis=0)


def stored(bits: int, zero_point: str | None) -> tuple[Weights, np.ndarray]:
    """Weights as onnxruntime stores them, and their values."""
    integers = random.integers(0, 2**bits, (K, N), np.uint8)
    zero_points = {None: None, "u": random.integers(0, 2**bits, (K // BLOCK, N), np.uint8)}
    zero_points["f"] = random.uniform(0, 2**bits, (K // BLOCK, N)).astype(FLOAT32)
    chosen = zero_points[zero_point]
    count = 8 // bits
    by_byte = integers.T.reshape(N, K // BLOCK, BLOCK // count, count) << (np.arange(count, dtype=np.uint8) * bits)
    data = np.bitwise_or.reduce(by_byte, -1)
    matrix = StoredWeights(
        *map(jnp.asarray, (data, scales.T)), None if chosen is None else jnp.asarray(chosen.T), bits, BLOCK
    )
    offset = np.full_like(scales, 2 ** (bits - 1)) if chosen is None else chosen
    return matrix, (integers.astype(FLOAT32) - by_row(offset)) * by_row(scales)


def packed(dtype, k_major: bool, zero_point: bool, minimum: bool) -> tuple[Weights, np.ndarray]:
    """Packed weights, and their values."""
    limits = jnp.iinfo(dtype)
    integers, points = (random.integers(limits.min, limits.max + 1, (rows, N)) for rows in (K, K // BLOCK))
    least = -scales * random.integers(0, 8, scales.shape).astype(FLOAT32)
    options = {"minimum": jnp.asarray(least)} if minimum else {}
    offset = jnp.asarray(points, dtype) if zero_point else None
    matrix = jquant.pack_matrix(jnp.asarray(integers, dtype), offset, scale=jnp.asarray(scales), k_major=k_major, **options)
    difference = (integers - np.repeat(points, BLOCK, axis=0) * zero_point).astype(FLOAT32)
    return matrix, difference * by_row(scales) + by_row(least) * minimum


FORMS = {f"stored, {bits} bits, {point}": (stored, bits, point) for bits in (2, 4, 8) for point in (None, "u", "f")}
FORMS |= {
    f"{jnp.dtype(dtype).name}, {'(N, K)' if k_major else '(K, N)'}, {what}": (packed, dtype, k_major, *flags)
    for dtype in (jnp.int4, jnp.uint4, np.int8, np.uint8)
    for k_major in (False, True)
    for what, flags in {"plain": (False, False), "zero points": (True, False), "minima": (False, True)}.items()
}


@pytest.mark.parametrize("form", FORMS)
def test_sums_are_within_the_bound(form, monkeypatch):
    make, *arguments = FORMS[form]
    matrix, weights = make(*arguments)
    monkeypatch.setattr(dense, "matmul", None)  # is not called
    rows = 1 if "(K, N)" in form else 8
    a = (random.normal(size=(rows, K)) * 10 ** random.uniform(-2, 2, (rows, 1))).astype(FLOAT32)
    result = np.float64(jax.jit(on_gpu.matmul, static_argnums=2)(a, matrix, FLOAT32))
    exact, size = np.float64(a) @ np.float64(weights), np.abs(a, dtype=np.float64) @ np.abs(weights, dtype=np.float64)
    assert result.shape == (rows, N)
    assert (abs(result - exact) <= 3 * 2.0**-23 * size).all()


@pytest.mark.parametrize("form", [form for form in FORMS if "4" in form])
def test_one_term_is_rounded_as_the_formula_says(form):
    make, *arguments = FORMS[form]
    matrix, weights = make(*arguments)
    row = np.zeros((1, K), FLOAT32)
    row[0, 37] = 1.7
    result = jax.jit(on_gpu.matmul, static_argnums=2)(row, matrix, FLOAT32)
    np.testing.assert_array_equal(result, FLOAT32.type(1.7) * weights[37:38])


@pytest.mark.parametrize("rows", [2, 9])
def test_more_rows_are_multiplied_by_floats(rows, monkeypatch):
    calls = []
    monkeypatch.setattr(dense, "matmul", lambda a, weights, dtype: calls.append(a.shape) or a)
    by_columns, _ = stored(4, None)
    by_rows, _ = packed(jnp.int4, False, False, False)
    for matrix in (by_columns, by_rows):
        on_gpu.matmul(jnp.zeros((rows, K)), matrix, FLOAT32)
    assert calls == [(rows, K)] * (2 if rows > 8 else 1)
