"""Twenty products with random operands and their results in NumPy, between them of every kind that the kernels know."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jquant
from benchmarks.device import rehearsal
from jquant.cases import samples
from jquant.reference import blocks as blocks_reference
from jquant.reference import linear as linear_reference
from jquant.reference import products as products_reference

_EXTENDED = {"feature_level": "EXTENDED"}  # batches, and results of 16 bits
float32 = np.float32


class Case(NamedTuple):
    """A (M, K) by B (K, N).

    Attributes:
      product: which operator, by its name in `_MAKERS`.
      zero_points: "none", one of each "tensor", or one of each row of A and column of B ("vector"). "extreme" ones are those
        with which the sums become as large as they can, with all elements at the other end of their type.
      packed: whether B is packed ahead. Blocks always are.
      scales: one for each "tensor", for each "column" of B, or for each row of A and column of B ("both").
      output: the dtype of the result, if the operator leaves a choice.
      block: the rows of B that share a scale.
      minimum: whether blocks have a minimum, in place of zero points.
      k_major: whether packed blocks are in the order (N, K).
      batch: how many matrices A there are.
    """

    product: str
    m: int
    k: int
    n: int
    a: Any = np.uint8
    b: Any = np.int8
    zero_points: str = "tensor"
    packed: bool = True
    scales: str = "column"
    output: Any = np.uint8
    block: int = 0
    minimum: bool = False
    k_major: bool = False
    batch: int = 1

    def __str__(self) -> str:
        types = f"{jnp.dtype(self.a)} x {jnp.dtype(self.b)}"
        batch = f"{self.batch} x " if self.batch > 1 else ""
        details = [f"zero points: {self.zero_points}", "packed" if self.packed else "plain"]
        if self.product != "matmul_integer":
            details.append(f"scales: {self.scales}")
        if self.product in ("matmul_integer_to_float", "quantized_linear_matmul"):
            details.append(f"to {jnp.dtype(self.output)}")
        details += [f"blocks of {self.block}"] * bool(self.block) + ["minimum"] * self.minimum
        details += ["K-major"] * self.k_major
        return f"{self.product}, {batch}({self.m} x {self.k} x {self.n}), {types}, {', '.join(details)}"


S8, U8, S4, U4 = np.int8, np.uint8, jnp.int4, jnp.uint4
INTEGERS, FLOATS, QUANTIZED = "matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul"
BLOCKS = "block_scaled_matmul"
# At most 2**28 multiplications each, which NumPy, in 64 bits, does in seconds.
CASES = (
    Case(INTEGERS, 1, 8192, 4096, S8, S8, "none", packed=False),
    Case(INTEGERS, 8, 4096, 4096, U8, S8, "tensor", packed=False),
    Case(INTEGERS, 33, 1000, 777, U8, U8, "vector", packed=False),
    Case(INTEGERS, 256, 1024, 1024, S8, U8, "tensor", packed=False),
    Case(INTEGERS, 3, 40_000, 64, U8, S8, "extreme", packed=False),
    Case(INTEGERS, 40, 256, 130, U8, S8, "vector", packed=False, batch=3),
    Case(INTEGERS, 1, 4096, 4096, U8, S8, "tensor"),
    Case(INTEGERS, 8, 70_000, 128, S8, U8, "tensor"),
    Case(INTEGERS, 1024, 512, 512, U8, U8, "vector"),
    Case(FLOATS, 1, 4096, 4096, U8, S8, "tensor", output=np.float32),
    Case(FLOATS, 256, 1024, 1024, S8, S8, "none", scales="both", output=jnp.bfloat16),
    Case(FLOATS, 33, 1500, 500, U8, U8, "vector", packed=False, scales="both", output=np.float16),
    Case(QUANTIZED, 256, 1024, 1024, U8, S8, "tensor"),
    Case(QUANTIZED, 8, 4096, 2048, S8, U8, "vector", packed=False, scales="both", output=np.int8),
    Case("quantized_gemm", 33, 1024, 1000, U8, S8, "tensor"),
    Case(BLOCKS, 1, 4096, 4096, S8, S4, "none", block=64),
    Case(BLOCKS, 33, 1024, 512, U8, U4, "vector", scales="both", block=32, k_major=True),
    Case(BLOCKS, 256, 1024, 512, S8, S8, "none", scales="both", block=128, k_major=True),
    Case(BLOCKS, 8, 1024, 512, S8, S4, "none", block=32, minimum=True),
    Case("floats by integers", 1024, 512, 512, float32, S8, "none", scales="both", output=np.float32),
)


class Product(NamedTuple):
    """A function that takes `implementation`, its operands, and the result in NumPy."""

    function: Callable[..., Any]
    operands: tuple
    expected: np.ndarray


def cases(*, rehearse: bool) -> Iterator[Case]:
    for case in CASES:
        yield case._replace(**rehearsal.smaller(m=case.m, k=case.k, n=case.n)) if rehearse else case


def make(case: Case) -> Product:
    return _MAKERS[case.product](case, np.random.default_rng((case.m, case.k, case.n)))


def _matrices(case: Case, rng: np.random.Generator) -> tuple:
    """A, its zero point, B, and its zero point."""
    batch = (case.batch,) if case.batch > 1 else ()
    a_shape, b_shape = (*batch, case.m, case.k), (*(1 for _ in batch), case.k, case.n)
    if case.zero_points == "extreme":
        (a_low, a_high), (b_low, b_high) = map(_limits, (case.a, case.b))
        return np.full(a_shape, a_high, case.a), case.a(a_low), np.full(b_shape, b_low, case.b), case.b(b_high)
    a, b = samples.integers(rng, case.a, *a_shape), samples.integers(rng, case.b, *b_shape)
    if case.zero_points == "none":
        return a, None, b, None
    # Not far from the middle, so that a few results are beyond the ends of their type, and not most of them.
    ones = (1,) * (a.ndim - 2)
    a_shape, b_shape = ((*ones, case.m, 1), (*ones, 1, case.n)) if case.zero_points == "vector" else ((), ())
    a_zero_point, b_zero_point = (
        (rng.integers(-9, 10, shape) + sum(_limits(dtype)) // 2).astype(dtype)
        for shape, dtype in ((a_shape, case.a), (b_shape, case.b))
    )
    return a, a_zero_point, b, b_zero_point


def _limits(dtype: Any) -> tuple[int, int]:
    limits = jnp.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _scales(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of A and of B."""
    shapes = {"tensor": ((), ()), "column": ((), (1, case.n)), "both": ((case.m, 1), (1, case.n))}[case.scales]
    a_scale, b_scale = (samples.small_scales(rng, *shape) for shape in shapes)
    return a_scale, b_scale


def _weights(case: Case, b: np.ndarray, zero_point: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
    """B as the operator takes it, and the zero point that is given beside it."""
    return (jquant.pack_matrix(b, zero_point), None) if case.packed else (b, zero_point)


def _zero(zero_point: np.ndarray | None) -> Any:
    return 0 if zero_point is None else zero_point


def _integers(case: Case, rng: np.random.Generator) -> Product:
    a, a_zero_point, b, b_zero_point = _matrices(case, rng)
    weights, beside = _weights(case, b, b_zero_point)
    expected = products_reference.matmul_integer(a, b, _zero(a_zero_point), _zero(b_zero_point))
    function = functools.partial(jquant.matmul_integer, **_EXTENDED)
    return Product(function, (a, weights, a_zero_point, beside), expected)


def _floats(case: Case, rng: np.random.Generator) -> Product:
    a, a_zero_point, b, b_zero_point = _matrices(case, rng)
    (a_scale, b_scale), bias = _scales(case, rng), rng.normal(size=(1, case.n)).astype(float32)
    weights, beside = _weights(case, b, b_zero_point)
    zeros = _zero(a_zero_point), _zero(b_zero_point)
    expected = products_reference.matmul_integer_to_float(a, a_scale, zeros[0], b, b_scale, zeros[1], bias, case.output)
    function = functools.partial(jquant.matmul_integer_to_float, output_dtype=case.output, **_EXTENDED)
    return Product(function, (a, a_scale, a_zero_point, weights, b_scale, beside, bias), expected)


def _quantized(case: Case, rng: np.random.Generator) -> Product:
    a, a_zero_point, b, b_zero_point = _matrices(case, rng)
    weights, beside = _weights(case, b, b_zero_point)
    a_scale, b_scale = _scales(case, rng)
    product = products_reference.matmul_integer(a, b, _zero(a_zero_point), _zero(b_zero_point))
    output = _output_scale(product, a_scale, b_scale), _middle(case.output)
    expected = products_reference.requantize_product(product, a_scale, b_scale, *output, case.output)
    function = functools.partial(jquant.quantized_linear_matmul, output_dtype=case.output)
    return Product(function, (a, a_scale, a_zero_point, weights, b_scale, beside, *output), expected)


def _gemm(case: Case, rng: np.random.Generator) -> Product:
    a, a_zero_point, b, b_zero_point = _matrices(case, rng)
    weights, beside = _weights(case, b, b_zero_point)
    a_scale, b_scale = map(np.squeeze, _scales(case, rng))
    c = rng.integers(-(2**16), 2**16, case.n, np.int32)
    product = products_reference.matmul_integer(a, b, _zero(a_zero_point), _zero(b_zero_point)) + c
    output = _output_scale(product, a_scale, b_scale), _middle(case.output)
    expected = products_reference.requantize_product(product, a_scale, b_scale, *output, case.output)
    function = functools.partial(jquant.quantized_gemm, output_dtype=case.output)
    return Product(function, (a, a_scale, a_zero_point, weights, b_scale, beside, c, *output), expected)


def _output_scale(product: np.ndarray, a_scale: np.ndarray, b_scale: np.ndarray) -> np.float32:
    """With which the ends of 8 bits are two standard deviations away."""
    return float32((product * a_scale.astype(np.float64) * b_scale).std() / 64)


def _middle(dtype: Any) -> np.ndarray:
    return np.asarray((sum(_limits(dtype)) + 1) // 2 + 3, dtype)


def _blocks(case: Case, rng: np.random.Generator) -> Product:
    a, a_zero_point, b, _ = _matrices(case, rng)
    a_scale, _ = _scales(case, rng)
    blocks = -(-case.k // case.block), case.n
    scale, bias = samples.small_scales(rng, *blocks), rng.normal(size=(1, case.n)).astype(float32)
    minimum = rng.normal(size=blocks).astype(float32) if case.minimum else None
    zero_point = samples.integers(rng, case.b, *blocks) if case.zero_points == "vector" else None
    size = {"block_size": case.block}
    weights = jquant.pack_matrix(b, zero_point, scale=scale, minimum=minimum, k_major=case.k_major, **size)
    options = {"bias": bias, "minimum": minimum, **size}
    expected = blocks_reference.block_scaled_matmul(a, a_scale, a_zero_point, b, scale, zero_point, **options)
    return Product(jquant.block_scaled_matmul, (a, a_scale, a_zero_point, weights, None, None, bias), expected)


def _floats_by_integers(case: Case, rng: np.random.Generator) -> Product:
    """Activations that the product quantizes, with a scale for each row."""
    x, b = rng.normal(size=(case.m, case.k)).astype(case.a), samples.integers(rng, case.b, case.k, case.n)
    _, b_scale = _scales(case, rng)
    a, a_scale, _ = linear_reference.dynamic_quantize_linear(x, dtype=np.int8, axis=-1, symmetric=True)
    expected = products_reference.matmul_integer_to_float(a, a_scale, 0, b, b_scale, 0, None, case.output)
    weights, beside = _weights(case, b, None)
    function = functools.partial(jquant.matmul_integer_to_float, **_EXTENDED)
    return Product(function, (x, a_scale, None, weights, b_scale, beside), expected)


_MAKERS = {
    INTEGERS: _integers,
    FLOATS: _floats,
    QUANTIZED: _quantized,
    "quantized_gemm": _gemm,
    BLOCKS: _blocks,
    "floats by integers": _floats_by_integers,
}
