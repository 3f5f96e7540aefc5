"""GPTQ, AWQ, SmoothQuant and searched ranges, in NumPy's float64, written from the papers.

A matrix has the shape (K, N). It shares no code with `jquant`, but reads the arrays that `transform.quantize` stores.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jquant.reference import linear as reference

_FLOATS = {
    "FLOAT8E4M3FN": jnp.float8_e4m3fn,
    "FLOAT8E5M2": jnp.float8_e5m2,
    "MXFP8E4M3FN": jnp.float8_e4m3fn,
    "MXFP4": jnp.float4_e2m1fn,
    "NVFP4": jnp.float4_e2m1fn,
}


class Elements(NamedTuple):
    """A set of numbers, in order, and which of them win ties."""

    numbers: np.ndarray
    is_even: np.ndarray

    def nearest(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest numbers to `x`, and how far `x` is from a tie, in steps.

        A step is that between the neighbours of `x`, or if that is larger, the one at the root mean square of `x`: what is
        added to a small number may be as inexact as large ones.
        """
        inside = np.clip(x, self.numbers[0], self.numbers[-1])
        above = np.maximum(np.searchsorted(self.numbers, inside), 1)
        low, high = self.numbers[above - 1], self.numbers[above]
        to_low, to_high = inside - low, high - inside
        takes_high = (to_high < to_low) | ((to_high == to_low) & self.is_even[above])
        gaps = np.diff(self.numbers)
        typical = np.searchsorted(self.numbers, np.sqrt(np.square(inside).mean()))
        step = np.maximum(high - low, gaps[min(typical, len(gaps)) - 1])
        return np.where(takes_high, high, low), np.abs(to_high - to_low) / step / 2


def elements(weight_type: str) -> Elements:
    """What the elements of a type of weights can be."""
    if weight_type not in _FLOATS:
        bits = int(weight_type.lstrip("MXUINT"))
        low = 0 if weight_type.startswith("U") else -(2 ** (bits - 1))
        if weight_type == "MXINT8":  # whose integers are symmetric, and count 64ths
            return Elements(np.arange(-127, 128) / 64, np.arange(-127, 128) % 2 == 0)
        integers = np.arange(low, low + 2**bits)
        return Elements(integers.astype(np.float64), integers % 2 == 0)
    dtype = np.dtype(_FLOATS[weight_type])
    codes = np.arange(16 if dtype == np.dtype(jnp.float4_e2m1fn) else 256, dtype=np.uint8)
    numbers = codes.view(dtype).astype(np.float64)
    kept = np.isfinite(numbers) & (codes != len(codes) // 2)  # without NaN, infinities and -0
    order = np.argsort(numbers[kept])
    return Elements(numbers[kept][order], codes[kept][order] % 2 == 0)


class Stored(NamedTuple):
    """A stored matrix, ``(numbers - zero_points) * scales``: all of shape (K, N), in float64."""

    numbers: np.ndarray
    zero_points: np.ndarray
    scales: np.ndarray

    def real(self, numbers: np.ndarray | None = None) -> np.ndarray:
        """The matrix, or one of other elements with its scales."""
        return ((self.numbers if numbers is None else numbers) - self.zero_points) * self.scales


def read(scheme: Any, stored: Any, rows: int) -> Stored:
    """The matrix that `transform.quantize` stores for a site, of so many rows."""
    name, values = scheme.weight_type, stored["values"]
    zero_point = scale = None
    if name == "INT2":  # (N, G, block size / 4), the first of four in the lowest bits
        codes = (np.asarray(values)[..., None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        numbers = codes.reshape(len(values), -1)[:, :rows].T.astype(np.float64) - 2
        scale = np.asarray(stored["scale"], np.float64).T
    elif name in _FLOATS or name.startswith("MX"):
        codes, dtype = np.asarray(values), _FLOATS.get(name)
        if dtype == jnp.float4_e2m1fn:  # two in a byte, the first in the lower bits
            codes = np.stack([codes & 15, codes >> 4], axis=-2).reshape(-1, codes.shape[-1])
        numbers = codes[:rows].view(np.int8).astype(np.float64) / 64 if dtype is None else codes[:rows].view(np.dtype(dtype))
        scale = np.asarray(stored["scale"])
        if name.startswith("MX"):
            scale = 2.0 ** (scale.astype(np.float64) - 127)
        elif name == "NVFP4":
            scale = scale.view(np.dtype(jnp.float8_e4m3fn)).astype(np.float32) * np.asarray(stored["tensor_scale"])
    else:
        numbers, zero_point = np.asarray(values.unpack().astype(jnp.int32)), values.zero_point
        scale = getattr(values, "scale", None)
        scale = stored["scale"] if scale is None else scale
    scales = _of_rows(np.asarray(scale, np.float64), rows, _block_size(scheme, stored, rows))
    zeros = np.zeros(()) if zero_point is None else np.asarray(zero_point.astype(jnp.int32), np.float64)
    zero_points = _of_rows(zeros, rows, _block_size(scheme, stored, rows))
    shape = numbers.shape
    return Stored(numbers.astype(np.float64), np.broadcast_to(zero_points, shape), np.broadcast_to(scales, shape))


def _block_size(scheme: Any, stored: Any, rows: int) -> int:
    if scheme.weight_type == "NVFP4":
        return 16
    if scheme.weight_type.startswith("MX"):
        return scheme.block_size or 32
    return scheme.block_size or getattr(stored["values"], "block_size", None) or rows


def _of_rows(parameters: np.ndarray, rows: int, block_size: int) -> np.ndarray:
    """The parameters of blocks, (G, N), of columns, (N,), or of the matrix, (), for each row."""
    if parameters.ndim < 2:
        return parameters
    return np.repeat(parameters, block_size, axis=0)[:rows]


def damped(products: np.ndarray, damping: float) -> np.ndarray:
    """H of the paper: X^T X with a share of its mean diagonal on the diagonal, and 1 for inputs that are always 0."""
    diagonal = np.diagonal(products)
    return products + np.diag((diagonal == 0) + damping * diagonal.mean())


class Quantized(NamedTuple):
    """Elements, (K, N), each number's distance from a tie when it was rounded, in steps, and the order of the rows."""

    numbers: np.ndarray
    distances: np.ndarray
    order: np.ndarray


def optimal_brain(
    matrix: np.ndarray, hessian: np.ndarray, stored: Stored, allowed: Elements, *, by_diagonal: bool
) -> Quantized:
    """Optimal brain quantization, one row at a time: the rows that are left make up for the error of each.

    Of the rows that are left, H^-1 is what Gaussian elimination of the row that goes leaves of it.

    Frantar and Alistarh, "Optimal Brain Compression", equations 2 to 4, in the order of GPTQ: the same for all columns.
    """
    left = matrix.astype(np.float64)
    inverse = np.linalg.inv(hessian)
    diagonal = np.diagonal(hessian)
    order = np.argsort(-diagonal, kind="stable") if by_diagonal else np.arange(len(diagonal))
    numbers, distances = np.empty_like(left), np.empty_like(left)
    for count, row in enumerate(order):
        scale, zero_point = stored.scales[row], stored.zero_points[row]
        numbers[row], distances[row] = allowed.nearest(left[row] / scale + zero_point)
        error = left[row] - (numbers[row] - zero_point) * scale
        later = order[count + 1 :]
        left[later] -= np.outer(inverse[later, row], error / inverse[row, row])
        inverse -= np.outer(inverse[:, row], inverse[row]) / inverse[row, row]
    return Quantized(numbers, distances, order)


def to_nearest(matrix: np.ndarray, stored: Stored, allowed: Elements) -> np.ndarray:
    """The elements nearest to each number of a matrix."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a block of zeros of NVFP4 has the scale 0
        quotients = np.where(stored.scales != 0, matrix.astype(np.float64) / stored.scales, 0)
    return allowed.nearest(quotients + stored.zero_points)[0]


def output_error(difference: np.ndarray, products: np.ndarray) -> float:
    """The squared error of the product with the inputs: tr(D^T X^T X D)."""
    return float(np.sum(difference * (products @ difference)))


def smooth_quant(largest_input: np.ndarray, matrix: np.ndarray, strength: float) -> np.ndarray:
    """1 / s, where s = max|X|^a / max|W|^(1 - a), equation 4 of the paper.

    Where either is 0, the geometric mean of its extremes, without zeros, takes its place.
    """
    weights = np.abs(matrix.astype(np.float64)).max(axis=-1)
    weights = weights.reshape(-1, weights.shape[-1]).max(axis=0)
    inputs = largest_input.astype(np.float64)
    for sizes in (inputs, weights):
        others = sizes[sizes > 0]
        sizes[sizes == 0] = np.sqrt(others.min() * others.max()) if len(others) else 1
    return 1 / (inputs**strength / weights ** (1 - strength))


def awq_candidates(mean: np.ndarray) -> np.ndarray:
    """1 / s for 20 exponents a, s = mean|X|^a over the geometric mean of its extremes; 1 for channels that are 0."""
    used = mean > 0
    result = np.ones((20, len(mean)))
    for number in range(20):
        s = mean[used].astype(np.float64) ** (number / 20)
        result[number, used] = np.sqrt(s.max() * s.min()) / s
    return result


def rotation(rows: int) -> np.ndarray:
    """The block-diagonal Hadamard matrix of Sylvester's construction, over the largest power of two that divides `rows`."""
    size = rows & -rows
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return np.kron(np.eye(rows // size), matrix)


def rotated_weights(matrix: np.ndarray) -> np.ndarray:
    """What a rotated input must be multiplied by: the input is divided by a power of two, the next one from the root."""
    size = len(matrix) & -len(matrix)
    return rotation(len(matrix)) @ matrix * 2.0 ** (np.ceil(np.log2(size) / 2)) / size


def rotated_products(products: np.ndarray) -> np.ndarray:
    """X^T X of the rotated inputs."""
    size = len(products) & -len(products)
    turn = rotation(len(products)) / 2.0 ** np.ceil(np.log2(size) / 2)
    return turn @ products @ turn.T


class Candidates(NamedTuple):
    """The scales and zero points of blocks, (shares, G, N), from shares of their ranges, the whole range first."""

    scales: np.ndarray
    zero_points: np.ndarray


def range_candidates(scheme: Any, matrix: np.ndarray, block_size: int) -> Candidates:
    """What each block of a float32 matrix may have, as the formats define it, in float32."""
    name, one = scheme.weight_type, np.float32(1)
    blocks = np.pad(matrix, [(0, -len(matrix) % block_size), (0, 0)]).reshape(-1, block_size, matrix.shape[1])
    low, high = (np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0))
    bound = np.maximum(-low, high)
    shares = [1, 2, 0.5] if name.startswith("MX") else [*np.arange(50, 14, -1) / 50, *([1.5] if name == "NVFP4" else [])]
    shares = [*shares, *(-each for each in shares)] if name == "INT2" else shares  # -2 may be above all numbers
    scales, zero_points = [], []
    for share in np.asarray(shares, np.float32):
        zero_point = np.zeros_like(bound)
        if name.startswith("MX"):
            largest_exponent = {"MXFP4": 2, "MXFP8E4M3FN": 8, "MXINT8": 0}[name]
            exponents = np.frexp(bound * share)[1] - 1 - largest_exponent
            scale = np.where(bound > 0, 2.0 ** np.maximum(exponents, -127), 2.0**-127).astype(np.float32)
        elif name == "NVFP4":
            tensor_scale = np.abs(matrix).max() / np.float32(6 * 448)
            range_ = np.minimum(bound * share, np.abs(matrix).max())
            scale = (range_ / np.float32(6) / tensor_scale).astype(jnp.float8_e4m3fn).astype(np.float32)
            scale = scale * tensor_scale
        elif name.startswith("FLOAT8"):
            scale = bound * share / np.float32({"FLOAT8E4M3FN": 448, "FLOAT8E5M2": 57344}[name])
            scale = np.where(scale > 0, scale, one)
        elif name.startswith("U"):
            steps = 2 ** int(name.removeprefix("UINT")) - 1
            scale, zero_point = reference.scale_and_zero_point(low * share, high * share, jnp.dtype(name.lower()))
            assert np.abs(scale - (high - low) * share / steps)[bound > 0].max() < 1e-6 * scale.max()
        elif name == "INT4":
            signed = np.where(high > -low, high, low)  # what becomes -8
            scale = np.where(bound > 0, signed * share / np.float32(-8), one)
        else:
            steps = 2 ** (int(name.removeprefix("INT")) - 1) - 1
            scale = np.where(bound > 0, bound * share / np.float32(steps), one)
        scales.append(scale.astype(np.dtype(scheme.scale_type.lower())))
        zero_points.append(np.asarray(zero_point, np.float64))
    return Candidates(np.stack(scales).astype(np.float64), np.stack(zero_points))


def block_errors(
    matrix: np.ndarray, candidates: Candidates, allowed: Elements, block_size: int, importance: np.ndarray | None = None
) -> np.ndarray:
    """The squared errors of blocks, (shares, G, N), when a matrix is rounded to nearest; rows count by their importance."""
    errors = []
    for scales, zero_points in zip(*candidates, strict=True):
        scale, zero_point = (_of_rows(each, len(matrix), block_size) for each in (scales, zero_points))
        stored = Stored(np.empty(()), zero_point, scale)
        squares = np.square(matrix - stored.real(to_nearest(matrix, stored, allowed)))
        squares = squares if importance is None else squares * importance[:, None]
        padded = np.pad(squares, [(0, -len(matrix) % block_size), (0, 0)])
        errors.append(padded.reshape(-1, block_size, matrix.shape[1]).sum(1))
    return np.stack(errors)
