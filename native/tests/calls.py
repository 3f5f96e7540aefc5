"""Calls of the library through XLA, and the same products in NumPy, by the formulas of native/src/product.h."""

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jquant_native
import numpy as np

# The targets of calls: the functions, each in its newest version.
PRODUCT, BLOCK_PRODUCT, CONVOLUTION = "jquant_product.2", "jquant_block_product.1", "jquant_convolution.2"
WEIGHT_ONLY, DYNAMIC_QUANTIZE = "jquant_weight_only.1", "jquant_dynamic_quantize.1"
CODED_BLOCK_PRODUCT, ELEMENTWISE = "jquant_coded_block_product.1", "jquant_elementwise.1"
CONCATENATE = "jquant_concatenate.1"

# The roles of the arrays of a call; there are also `block_sums` and `integer_bias`.
ZERO_POINTS = ("a_zero_point", "b_zero_point")
DEQUANTIZE = ("row_scale", "column_scale", "float_bias")
REQUANTIZE = ("multiplier", "zero_point")
RESCALE = ("row_scale", "column_scale", "output_scale", "zero_point")

BYTES = (np.int8, np.uint8)
FLOATS = (np.float32, np.float16, jnp.bfloat16)


class _Function(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("version", ctypes.c_int), ("handler", ctypes.c_void_p))


@functools.cache
def library() -> ctypes.CDLL:
    functions = ctypes.CDLL(str(jquant_native.LIBRARY))
    functions.jquant_instruction_set.restype = ctypes.c_char_p
    functions.jquant_functions.restype = ctypes.POINTER(_Function)
    return functions


def targets() -> dict[str, int]:
    """The targets that the library lists, and the addresses of their handlers."""
    listed = itertools.takewhile(lambda function: function.name, library().jquant_functions())
    return {f"{function.name.decode()}.{function.version}": function.handler for function in listed}


@functools.cache
def instruction_set() -> str:
    """Loads the library, registers its functions with XLA, and returns the name of the instruction set that it uses."""
    name = library().jquant_instruction_set()
    assert name is not None, "JQUANT_NATIVE_ISA names no instruction set that this processor has"
    for target, handler in targets().items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(ctypes.c_void_p(handler)), platform="cpu")
    return name.decode()


class Call(NamedTuple):
    """A product. Each array has three dimensions, and goes with the role of the same position."""

    a: np.ndarray
    b: np.ndarray
    arrays: tuple[np.ndarray, ...] = ()
    roles: tuple[str, ...] = ()
    dtype: np.dtype = np.dtype(np.int32)
    depth_minor: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        (batch,) = np.broadcast_shapes(*(array.shape[:1] for array in (self.a, self.b, *self.arrays)))
        return batch, self.a.shape[1], self.b.shape[1 if self.depth_minor else 2]

    @property
    def target(self) -> str:
        return PRODUCT

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.a, self.b, *self.arrays

    @property
    def attributes(self) -> dict[str, object]:
        return {"depth_minor": self.depth_minor}

    def describe(self) -> str:
        of_arrays = ", ".join(f"{role} {array.shape}" for role, array in zip(self.roles, self.arrays, strict=True))
        return (
            f"{self.a.dtype}{self.a.shape} @ {self.b.dtype}{self.b.shape} to {self.dtype}, {self.depth_minor=}, {of_arrays}"
        )


def function(*calls: Call) -> Callable[..., list[jax.Array]]:
    """A function of the operands of all calls, a tuple for each, that makes the calls."""
    targets = [jax.ffi.ffi_call(call.target, jax.ShapeDtypeStruct(call.shape, call.dtype)) for call in calls]

    def make(operands):
        return [
            target(*of_call, roles=" ".join(call.roles), **call.attributes)
            for target, call, of_call in zip(targets, calls, operands, strict=True)
        ]

    return make


def operands(*calls: Call) -> list[tuple[np.ndarray, ...]]:
    return [call.operands for call in calls]


def compute(*calls: Call) -> list[np.ndarray]:
    """The results of the library, from one program with all calls."""
    instruction_set()
    return [np.asarray(result) for result in jax.jit(function(*calls))(operands(*calls))]


def expected(call: Call) -> np.ndarray:
    """The result in NumPy. The sums of columns, which the library need not compute, are not looked at."""
    named = dict(zip(call.roles, call.arrays, strict=True))
    a = call.a.astype(np.int64) - named.get("a_zero_point", 0)
    b = (call.b.swapaxes(1, 2) if call.depth_minor else call.b).astype(np.int64) - b_zero_point(named, call.b.dtype)
    return completed(np.broadcast_to(a @ b, call.shape), named, call.dtype)


def b_zero_point(named: dict[str, np.ndarray], b_dtype: np.dtype) -> np.ndarray | int:
    """The zero point of B, which is less 128 where B holds unsigned integers less 128."""
    zero_point = named.get("b_zero_point", np.int32(0))
    is_shifted = (zero_point.dtype, b_dtype) == (np.uint8, np.int8)
    return zero_point.astype(np.int64) - (128 if is_shifted else 0)


def completed(total: np.ndarray, named: dict[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    """What the arrays with these names make of sums."""
    total = (total + named.get("integer_bias", 0)).astype(np.int32)
    with np.errstate(all="ignore"):
        if "output_scale" in named:
            scale = flushed(flushed(named["row_scale"]) * flushed(named["column_scale"]))
            multiplier = flushed(scale / flushed(named["output_scale"]))
            return _requantized(total, named | {"multiplier": multiplier}, dtype)
        if "row_scale" in named:
            return _dequantized(total, named, dtype)
        if "multiplier" in named:
            return _requantized(total, named, dtype)
    return total


def block_sums(rng: np.random.Generator, b: np.ndarray, depth_minor: bool) -> np.ndarray:
    """The sums of the columns of B in a random number of parts."""
    total = b.astype(np.int64).sum(2 if depth_minor else 1)[:, None]
    parts = rng.integers(-999, 999, (len(b), rng.integers(4), total.shape[2]))
    return np.concatenate([parts, total - parts.sum(1, keepdims=True)], 1).astype(np.int32)


def _dequantized(total: np.ndarray, named: dict[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    scale = flushed(flushed(named["row_scale"]) * flushed(named["column_scale"]))
    value = flushed(total.astype(np.float32) * scale)
    if "float_bias" in named:
        value = flushed(value + flushed(named["float_bias"]))
    return value.astype(dtype)


def _requantized(total: np.ndarray, named: dict[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    value = flushed(total.astype(np.float32) * flushed(named["multiplier"])).astype(np.float64)
    value = np.rint(value) + named.get("zero_point", 0)
    limits = np.iinfo(dtype)
    return np.where(np.isnan(value), 0, np.clip(value, limits.min, limits.max)).astype(dtype)


def flushed(x: np.ndarray) -> np.ndarray:
    """XLA's threads take subnormal numbers for 0, as operands and as results."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of floating-point numbers, with one pattern for all NaN; integers as they are."""
    if np.issubdtype(x.dtype, np.integer):
        return x
    patterns = x.view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize])
    return np.where(np.isnan(x), ~patterns.dtype.type(0), patterns)


def check(*calls: Call, expected: Callable[[Call], np.ndarray] = expected) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    for call, actual in zip(calls, compute(*calls), strict=True):
        np.testing.assert_array_equal(bits(actual), bits(expected(call)), err_msg=call.describe())
