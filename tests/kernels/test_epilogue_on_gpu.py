"""The form of the epilogue that XLA:GPU fuses, computed on a CPU: the bits of the steps themselves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

from jquant.kernels import epilogue as epilogues
from jquant.kernels import epilogue_on_gpu
from jquant.kernels.epilogue import AddBias, Dequantize, Requantize, Scale, ZeroPointCorrection

M, N = 256, 4096  # 2**20 sums
TENSOR, ROW, COLUMN, MATRIX = (1, 1), (M, 1), (1, N), (M, N)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1.2e-38, 0.5, -0.25, 1.5, 2.0**-31, 1.0])
random = np.random.default_rng(0)


def name_of(value) -> str:
    names = {TENSOR: "tensor", ROW: "row", COLUMN: "column", MATRIX: "matrix", None: "none"}
    return names[value] if value in names else np.dtype(value).name


def sums() -> jax.Array:
    """Of every magnitude, with 0 and the limits of int32 in each row, and rows that a scale makes ties of."""
    x = random.integers(-(2**31), 2**31, MATRIX) >> random.integers(0, 32, MATRIX)
    x[:, ::100] = 0
    x[:, :3] = 1, -(2**31), 2**31 - 1
    x[1::2] = random.integers(-512, 512, (M // 2, N))
    return jnp.asarray(x, jnp.int32)


def integers(shape: tuple[int, int], limit: int = 2**20) -> jax.Array:
    return jnp.asarray(random.integers(-limit, limit, shape, np.int32))


def scales(shape: tuple[int, int], special: float) -> jax.Array:
    """Scales of every normal magnitude, some of them 0.5, and `SPECIAL`; for one, `special`."""
    if shape == TENSOR:
        return jnp.full(shape, special, jnp.float32)
    x = np.ldexp(random.uniform(0.5, 1, shape), random.integers(-60, 60, shape)).astype(np.float32)
    x[random.random(shape) < 0.3] = 0.5
    x.reshape(-1)[: 4 * SPECIAL.size : 4] = SPECIAL
    return jnp.asarray(x)


def specials_for(*shapes: tuple[int, int] | None) -> list[float]:
    """The values of a scale per tensor to be tried: all special ones, if no other scale has them."""
    return [*SPECIAL] if set(shapes) <= {TENSOR, None} else [np.float32(0.5)]


def compare(epilogue_of, specials, count) -> None:
    product = sums()
    plain, fusible = jax.jit(epilogues.apply), jax.jit(epilogue_on_gpu.apply)
    for special in specials:
        epilogue = epilogue_of(special)
        expected = plain(epilogue, product)
        assert_equal(fusible(epilogue, product), expected, str(special), subnormals=False)
        count("results of epilogues", expected.size)


@pytest.mark.parametrize(
    "terms", [(COLUMN,), (ROW,), (COLUMN, ROW), (TENSOR,)], ids=lambda terms: "-".join(map(name_of, terms))
)
@pytest.mark.parametrize("bias", [None, COLUMN, MATRIX], ids=name_of)
def test_integers_are_added(terms, bias, count):
    correction = ZeroPointCorrection(tuple((integers(shape, 2**31 - 1),) for shape in terms))
    steps = (correction,) if bias is None else (correction, AddBias(integers(bias)))
    compare(lambda _: steps, [0], count)


def test_zero_points_by_row_and_by_column(count):
    steps = ZeroPointCorrection(((integers(ROW, 128), integers(COLUMN)), (integers(ROW),))), AddBias(integers(COLUMN))
    compare(lambda _: steps, [0], count)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16], ids=name_of)
@pytest.mark.parametrize("bias", [None, COLUMN], ids=name_of)
@pytest.mark.parametrize(("a", "b"), [*itertools.product([TENSOR, ROW], [TENSOR, COLUMN])], ids=name_of)
def test_floats(a, b, bias, dtype, count):
    def epilogue_of(special):
        bias_array = None if bias is None else scales(bias, 1)
        scale = Dequantize(scales(a, special), scales(b, 1), bias_array, np.dtype(dtype))
        return ZeroPointCorrection(((integers(COLUMN),),)), scale

    compare(epilogue_of, specials_for(a, b), count)


@pytest.mark.parametrize("bias", [None, COLUMN], ids=name_of)
def test_scales_by_row_after_floats(bias, count):
    def epilogue_of(special):
        first = Dequantize(scales(TENSOR, special), scales(COLUMN, 1), None, np.dtype(np.float32))
        return first, Scale(scales(ROW, 1), None if bias is None else scales(bias, 1), np.dtype(np.float32))

    compare(epilogue_of, [0.5], count)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=name_of)
@pytest.mark.parametrize("zero_point", [None, TENSOR, ROW], ids=name_of)
@pytest.mark.parametrize("multiplier", [TENSOR, ROW, COLUMN, MATRIX], ids=name_of)
def test_integers_of_8_bits(multiplier, zero_point, dtype, count):
    def epilogue_of(special):
        offset = None
        if zero_point is not None:
            limits = np.iinfo(dtype)
            offset = jnp.asarray(random.integers(limits.min, limits.max + 1, zero_point, np.int32))
        steps = ZeroPointCorrection(((integers(ROW, 3),),)), AddBias(integers(COLUMN, 3))
        return *steps, Requantize(scales(multiplier, special), offset, np.dtype(dtype))

    compare(epilogue_of, specials_for(multiplier), count)
