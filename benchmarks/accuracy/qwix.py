"""Weights as Qwix's algorithms round them: its nearest, AWQ and GPTQ, dequantized.

Qwix's functions run on single matrices, with the moments of the same calibration data, and the dequantized weights take the
place of the float ones in the same float network: this compares the algorithms, and nothing else.

Its GPTQ computes each column by operations of its own, and takes about a minute for a matrix. `gptq` is the same computation
in NumPy; `differing_from_its_gptq` compares it with Qwix's function on a part of a matrix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy.network import Moments

LARGEST = 7.5  # a scale is the largest weight over this; integers are -8 to 7


class Rounded(NamedTuple):
    """Dequantized weights (K, N), and how many bytes the integers and their float32 scales take."""

    weights: np.ndarray
    nbytes: int


def _how(size: int | None) -> Any:
    """Qwix's description of int4 weights (N, K), with a scale for each row, or for each block of a row."""
    from qwix._src.core import qarray

    return qarray.HowToQuantize(qtype=jnp.int4, channelwise_axes=[0], tiled_axes={} if size is None else {1: size})


def _nbytes(weights: Any, size: int | None) -> int:
    rows, columns = weights.shape
    return rows * columns // 2 + 4 * columns * (1 if size is None else rows // size)


def nearest(weights: jax.Array, moments: Moments, size: int | None) -> Rounded:
    from qwix._src.core import qarray

    values = qarray.dequantize(qarray.quantize(weights.T, _how(size))).T
    return Rounded(np.asarray(values), _nbytes(weights, size))


def awq(weights: jax.Array, moments: Moments, size: int | None) -> Rounded:
    from qwix._src.core import qarray
    from qwix.contrib import awq_core

    values, smoothing = awq_core.quantize_weight(weights.T, moments.magnitudes / moments.rows, _how(size))
    values = (qarray.dequantize(values) / smoothing).T
    return Rounded(np.asarray(values), _nbytes(weights, size) + 4 * len(weights))


@jax.jit
def _triangle(squares: jax.Array) -> jax.Array:
    """The upper triangle whose square is the inverse of X^T X, damped by 1 % of its mean diagonal."""
    diagonal = jnp.diag(squares)
    squares = squares + jnp.diag(jnp.where(diagonal == 0, 1.0, 0.0) + 0.01 * diagonal.mean())
    factor = jnp.linalg.cholesky(squares)
    return jnp.linalg.cholesky(jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(squares))), upper=True)


def gptq(weights: jax.Array, moments: Moments, size: int | None) -> Rounded:
    """In panels of 128 rows of K, in their order; scales are those of the weights when the panel begins."""
    triangle = np.asarray(_triangle(moments.squares))
    alive = np.asarray(jnp.diag(moments.squares) != 0)
    remaining = np.where(alive[:, None], np.asarray(weights), np.float32(0))
    count = len(remaining)
    size = size or count
    values = np.empty_like(remaining)
    scale = np.empty(remaining.shape[1], np.float32)
    for begin in range(0, count, 128):
        end = min(begin + 128, count)
        panel, errors = remaining[begin:end].copy(), np.empty((end - begin, remaining.shape[1]), np.float32)
        for row in range(end - begin):
            if (begin + row) % size == 0:
                group = remaining[begin + row : begin + row + size]
                scale = np.abs(group).max(0) / np.float32(LARGEST)
                scale = np.where(scale < np.sqrt(np.finfo(np.float32).tiny), np.float32(1), scale)
            values[begin + row] = np.clip(np.round(panel[row] / scale), -8, 7) * scale
            errors[row] = (panel[row] - values[begin + row]) / triangle[begin + row, begin + row]
            panel[row:] -= triangle[begin + row, begin + row : end, None] * errors[row]
        remaining[end:] -= triangle[begin:end, end:].T @ errors
    return Rounded(values, _nbytes(remaining, None if size == count else size))


ALGORITHMS: dict[str, Callable[[jax.Array, Moments, int | None], Rounded]] = {"nearest": nearest, "AWQ": awq, "GPTQ": gptq}


def its_gptq(weights: jax.Array, squares: jax.Array, size: int | None) -> np.ndarray:
    """What Qwix's own function computes."""
    from qwix._src.core import qarray
    from qwix.contrib import gptq_core

    return np.asarray(qarray.dequantize(gptq_core.quantize_weight(weights.T, squares, _how(size))[0]).T)


def differing_from_its_gptq(weights: jax.Array, moments: Moments, size: int | None) -> tuple[int, int]:
    """How many weights `gptq` rounds otherwise than Qwix's function, and how many there are."""
    actual, expected = gptq(weights, moments, size).weights, its_gptq(weights, moments.squares, size)
    return int(np.sum(np.abs(actual - expected) > 1e-5 * np.abs(expected).max())), actual.size
