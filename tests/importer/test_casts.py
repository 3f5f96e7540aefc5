"""Cast and BitCast: floats of 8 and 4 bits, exponents, integers of 4 and 2 bits, and 64 bits."""

import jax
import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402
from jquant.reference import narrow_floats as reference_floats  # noqa: E402

from .node_models import int64, integers, node_model, run_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

EVERY_FLOAT16 = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_casts_to_8_bit_floats(name, saturate):
    """Every float16, rounded as by ml_dtypes; out of range, as in ONNX's tables. The sign of NaN does not count."""
    dtype = np.dtype(name)
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    proto, inputs = node_model("Cast", 28, [EVERY_FLOAT16], to=to, saturate=saturate)
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore"):  # at NaN
        in_range = np.clip(EVERY_FLOAT16.astype(np.float32), -largest, largest) if saturate else EVERY_FLOAT16
        expected = in_range.astype(dtype)
    np.testing.assert_array_equal(run_model(proto, inputs)["y0"].astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"])
def test_casts_round_once(name, static):
    """float64 numbers next to ties, which float32 would round to the tie, and integers that float32 cannot hold."""
    numbers = reference_floats.table(name).numbers
    middle = (numbers[1:] + numbers[:-1]) / 2
    doubles = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf), [1e300, np.inf, 1e-300]])
    wide = integers(-(2**62), 2**62, 100, dtype=np.int64)
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    with jax.enable_x64(True):
        for x in (np.concatenate([doubles, -doubles]), wide, np.arange(-500, 500, dtype=np.int32)):
            proto, inputs = node_model("Cast", 28, [x], to=to)
            actual = jquant.onnx.load(proto, constants=inputs)({}, {})["y0"] if static else run_model(proto, inputs)["y0"]
            expected = reference_floats.encode(x.astype(np.float64), name)
            np.testing.assert_array_equal(np.asarray(actual).view(np.uint8), expected)


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_casts_to_e8m0(round_mode):
    """Every positive bfloat16. E8M0 holds the powers of two from 2**-127 to 2**127."""
    x = np.arange(2**15, dtype=np.uint16).view(ml_dtypes.bfloat16)
    to = onnx.TensorProto.DataType.Value("FLOAT8E8M0")
    with np.errstate(invalid="ignore"):  # at NaN
        wide = x.astype(np.float64)
    finite = np.isfinite(wide) & (wide > 0)
    below = np.exp2(np.floor(np.log2(wide, where=finite, out=np.zeros_like(wide))))
    rounded = {
        "up": np.where(wide > below, 2 * below, below),
        "down": below,
        "nearest": np.where(wide >= 1.5 * below, 2 * below, below),
    }[round_mode]
    smallest, largest = 2.0**-127, 2.0**127
    for saturate in (0, 1):
        proto, inputs = node_model("Cast", 28, [x], to=to, saturate=saturate, round_mode=round_mode)
        actual = run_model(proto, inputs)["y0"].astype(np.float64)
        expected = np.where(finite, rounded, np.where(wide == 0, 0, np.inf))
        if saturate:
            expected = np.clip(expected, smallest, largest)
        else:
            expected = np.where((expected > largest) | (wide < smallest), np.nan, expected)
        expected = np.where(np.isnan(wide), np.nan, expected)
        np.testing.assert_array_equal(actual, expected)


def test_casts_to_narrow_integers_drop_the_higher_bits():
    x = np.arange(-40, 40, dtype=np.float32)
    for name, bits, signed in (("INT4", 4, True), ("UINT4", 4, False), ("INT2", 2, True), ("UINT2", 2, False)):
        proto, inputs = node_model("Cast", 28, [x], to=onnx.TensorProto.DataType.Value(name))
        expected = x.astype(np.int64) % 2**bits
        expected = expected - 2**bits * (signed & (expected >= 2 ** (bits - 1)))
        np.testing.assert_array_equal(run_model(proto, inputs)["y0"].astype(np.int64), expected)


def test_64_bit_casts_need_the_64_bit_mode():
    proto, inputs = node_model("BitCast", 26, [int64(1, -1)], to=onnx.TensorProto.UINT64)
    with pytest.raises(ModelError, match=r"node 'y0' \(BitCast, version 26\): .*64"):
        run_model(proto, inputs)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(run_model(proto, inputs)["y0"], np.array([1, 2**64 - 1], np.uint64))
