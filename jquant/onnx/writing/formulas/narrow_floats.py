"""Conversions from and to floats of 8 bits and fewer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import e8m0, narrow_floats
from jquant.arithmetic.narrow_floats import NarrowFloat
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, like
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, all_known, known

_FLOATS_OF_8_BITS = frozenset(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"))


@writer("narrow_floats.narrow", node="Cast", since=19)
def _narrow(builder: Builder, _: Any, x: Tensor, dtype: Any, saturate: bool) -> Tensor | None:
    dtype = np.dtype(dtype)
    if all_known(x) or dtype.name not in _FLOATS_OF_8_BITS:
        return None
    if not saturate:
        return cast(builder, x, dtype)
    return elementwise(builder, "Cast", x, dtype=dtype, since=19, to=onnx.helper.np_dtype_to_tensor_dtype(dtype), saturate=1)


@writer("narrow_floats.widen", node="Cast", since=19)
def _widen(builder: Builder, _: Any, x: Tensor, exponent: Tensor | None) -> Tensor | None:
    return None if all_known(x, exponent) else _scaled(builder, cast(builder, x, np.float32), exponent)


@writer("narrow_floats.decode", node="Gather")
def _decode(builder: Builder, _: Any, code: Tensor, source: NarrowFloat, exponent: Tensor | None) -> Tensor | None:
    """Looked up in a table of all numbers."""
    return None if all_known(code, exponent) else _scaled(builder, _number(builder, code, _numbers(source)), exponent)


def _scaled(builder: Builder, x: Tensor, exponent: Tensor | None) -> Tensor:
    """``x * 2**exponent``, which is exact or infinite; the powers are looked up."""
    if exponent is None:
        return x
    powers = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)
    index = elementwise(builder, "Add", exponent, like(exponent, 127))
    return elementwise(builder, "Mul", x, _number(builder, index, powers))


@writer("narrow_floats.from_code", node="Gather")
def _from_code(builder: Builder, _: Any, code: Tensor, dtype: Any) -> Tensor | None:
    return None if all_known(code) else from_code(builder, code, np.dtype(dtype))


@writer("e8m0.from_code", node="Gather")
def _power(builder: Builder, _: Any, code: Tensor) -> Tensor | None:
    return None if all_known(code) else from_code(builder, code, e8m0.DTYPE)


@writer("e8m0.code_of", node="BitCast", since=26)
def _code_of_power(builder: Builder, _: Any, x: Tensor) -> Tensor | None:
    """The exponent in the bits of the float32."""
    if all_known(x):
        return None
    magnitude = elementwise(builder, "Abs", cast(builder, x, np.float32))
    bits = elementwise(builder, "BitCast", magnitude, dtype=np.int32, since=26, to=onnx.TensorProto.INT32)
    return elementwise(builder, "Div", bits, known(np.int32(2**23)))


@writer("e8m0.widen", node="Cast", since=24)
def _widen_power(builder: Builder, _: Any, x: Tensor) -> Tensor | None:
    return None if all_known(x) else cast(builder, x, np.float32)


def is_code(code: np.dtype, dtype: np.dtype) -> bool:
    """Whether integers of a type are the codes of a narrow float type."""
    if dtype != e8m0.DTYPE and not narrow_floats.is_narrow_float(dtype):
        return False
    return jnp.issubdtype(code, jnp.unsignedinteger) and jnp.iinfo(code).bits == jnp.finfo(dtype).bits


def from_code(builder: Builder, code: Tensor, dtype: np.dtype) -> Tensor:
    """The numbers of a narrow float type from their codes: looked up, because onnxruntime's BitCast has no such types."""
    if dtype == e8m0.DTYPE:
        numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    else:
        numbers = _numbers(narrow_floats.format_of(dtype))
    return cast(builder, _number(builder, code, numbers), dtype)


def _numbers(source: NarrowFloat) -> np.ndarray:
    codes = jnp.arange(2**source.bits, dtype=jnp.uint8)
    return np.asarray(narrow_floats.decode(codes, source))


def _number(builder: Builder, code: Tensor, numbers: np.ndarray) -> Tensor:
    index = cast(builder, code, np.int32)
    return builder.node("Gather", [known(numbers), index], jax.ShapeDtypeStruct(code.shape, np.dtype(np.float32)), since=13)
