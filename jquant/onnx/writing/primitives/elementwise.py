"""Arithmetic, comparison, selection and conversion."""

import functools
from typing import Any

import jax
import numpy as np
import onnx
from jax import lax

from jquant.errors import ModelError
from jquant.lowering.bitcast import bitcast
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.formulas import narrow_floats
from jquant.onnx.writing.steps import cast, elementwise, is_float, is_unsigned, like, where
from jquant.onnx.writing.table import PRIMITIVES, primitive
from jquant.onnx.writing.tensor import Tensor

_ARITHMETIC = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
}
_COMPARISONS = {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_LOGIC = {  # for bool, and for integers
    "and": ("And", "BitwiseAnd"),
    "or": ("Or", "BitwiseOr"),
    "xor": ("Xor", "BitwiseXor"),
    "not": ("Not", "BitwiseNot"),
    "max": ("Or", "Max"),
    "min": ("And", "Min"),
}


def _arithmetic(builder: Builder, equation: Any, operands: list[Tensor], operator: str) -> Tensor:
    """In the type of the result, which a product may be asked for in."""
    dtype = equation.outvars[0].aval.dtype
    return elementwise(builder, operator, *(cast(builder, operand, dtype) for operand in operands))


def _register() -> None:
    for name, operator in _ARITHMETIC.items():
        PRIMITIVES[name] = functools.partial(_arithmetic, operator=operator)
    for name, operator in _COMPARISONS.items():
        PRIMITIVES[name] = lambda builder, _, operands, operator=operator: elementwise(
            builder, operator, *operands, dtype=np.bool_
        )
    for name, operators in _LOGIC.items():
        PRIMITIVES[name] = lambda builder, _, operands, operators=operators: elementwise(
            builder, operators[operands[0].dtype != np.bool_], *operands
        )


_register()


@primitive("ne")
def _different(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    return elementwise(builder, "Not", elementwise(builder, "Equal", *operands, dtype=np.bool_))


_IN_TOTAL_ORDER = {"eq_to": lax.eq, "lt_to": lax.lt, "le_to": lax.le}


@primitive(*_IN_TOTAL_ORDER)
def _ordered(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """In the total order of IEEE 754: -NaN below all numbers, -0 below 0, NaN above all numbers."""
    compare = _IN_TOTAL_ORDER[equation.primitive.name]
    return walk.traced(builder, lambda a, b: compare(_total_order(a), _total_order(b)), *operands)


def _total_order(x: jax.Array) -> jax.Array:
    """Integers that are in the total order of `x`."""
    if not is_float(x.dtype):
        return x
    signed = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = bitcast(x, signed)
    return lax.select(bits < signed.type(0), bits ^ np.iinfo(signed).max, bits)


@primitive("neg")
def _negated(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    (x,) = operands
    if is_unsigned(x.dtype):
        return elementwise(builder, "Sub", like(x, 0), x)
    return elementwise(builder, "Neg", x)


@primitive("convert_element_type")
def _converted(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    return cast(builder, operands[0], equation.params["new_dtype"])


@primitive("reduce_precision")
def _reduced_precision(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """Through the type that has so many bits."""
    (x,), bits = operands, (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    types = {(8, 23): np.float32, (8, 7): jax.numpy.bfloat16, (5, 10): np.float16}
    if bits not in types:
        raise ModelError(f"a precision of {bits[0]} bits for exponents and {bits[1]} for mantissas is not written")
    return cast(builder, cast(builder, x, types[bits]), x.dtype)


@primitive("select_n")
def _selected(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    which, *cases = operands
    if len(cases) == 1:
        return cases[0]
    if which.dtype == np.bool_:
        on_false, on_true = cases
        return where(builder, which, on_true, on_false)
    result = cases[-1]  # also for numbers that are too large
    for number in range(len(cases) - 1, 0, -1):
        is_less = elementwise(builder, "Less", which, like(which, number), dtype=np.bool_)
        result = where(builder, is_less, cases[number - 1], result)
    return result


@primitive("clamp")
def _clamped(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    """Max and Min, which propagate NaN; scalar bounds broadcast."""
    low, x, high = operands
    return elementwise(builder, "Min", elementwise(builder, "Max", x, low), high)


@primitive("pow")
def _power(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    base, exponent = operands
    if is_float(exponent.dtype):
        return elementwise(builder, "Pow", base, exponent)
    wide = cast(builder, cast(builder, exponent, np.float32), base.dtype)
    return elementwise(builder, "Pow", base, wide)


@primitive("integer_pow")
def _integer_power(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x,), exponent = operands, equation.params["y"]
    result, power, rest = None, x, abs(exponent)
    while rest:
        if rest % 2:
            result = power if result is None else elementwise(builder, "Mul", result, power)
        rest //= 2
        power = elementwise(builder, "Mul", power, power) if rest else power
    if result is None:
        return like(x, 1)
    return result if exponent > 0 else elementwise(builder, "Div", like(x, 1), result)


@primitive("square")
def _square(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    return elementwise(builder, "Mul", *operands, *operands)


@primitive("rsqrt")
def _reciprocal_root(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    (x,) = operands
    wide = cast(builder, x, np.float32)
    return cast(builder, elementwise(builder, "Div", like(wide, 1), elementwise(builder, "Sqrt", wide)), x.dtype)


@primitive("is_finite")
def _finite(builder: Builder, _: Any, operands: list[Tensor]) -> Tensor:
    (x,) = operands
    return elementwise(builder, "Less", elementwise(builder, "Abs", x), like(x, np.inf), dtype=np.bool_)


_UNCHANGED = "stop_gradient", "copy", "copy_p", "optimization_barrier", "pcast", "name", "device_put"
_PLACED = "sharding_constraint", "layout_constraint", "xla_metadata_value"


@primitive(*_UNCHANGED, *_PLACED)
def _unchanged(_: Builder, __: Any, operands: list[Tensor]) -> list[Tensor]:
    return operands


@primitive("bitcast_convert_type")
def _bits(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x,), dtype = operands, np.dtype(equation.params["new_dtype"])
    if narrow_floats.is_code(x.dtype, dtype):  # onnxruntime has no BitCast from and to these types
        return narrow_floats.from_code(builder, x, dtype)
    if dtype.itemsize != x.dtype.itemsize:
        raise ModelError(f"the bits of {x.dtype} as {dtype} are not written")
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return builder.node("BitCast", [x], jax.ShapeDtypeStruct(x.shape, dtype), since=26, to=to, label="bits")
