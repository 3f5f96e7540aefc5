"""The types in which onnxruntime's kernels compute, and wider types for all others.

A node may have types in ONNX that onnxruntime does not compute. Values of such a type are converted to a wider one, which
holds them exactly, and the result is converted back: integers wrap as they do in their own type, floats are rounded once.

For float16, onnxruntime itself converts the operands and results of nodes that it does not compute in it. But it leaves out
pairs of conversions that meet, also one of its own and one of the model, and with them the rounding to float16. It keeps
pairs that are both the model's, which is why such nodes are written with conversions.
"""

import jax.numpy as jnp
import ml_dtypes
import numpy as np

_WIDER = {
    "bool": "uint8",
    "int2": "int8",
    "int4": "int8",
    "int8": "int32",
    "int16": "int32",
    "int32": "int64",
    "uint2": "uint8",
    "uint4": "uint8",
    "uint8": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e8m0fnu": "float32",
    "float4_e2m1fn": "float32",
    "bfloat16": "float32",
    "float16": "float32",
}
SINCE_INT4 = 21  # the first operator set that has integers of 4 bits

_SMALL = "int8 uint8 int16 uint16"
_LARGE = "int32 uint32 int64 uint64"
_INTEGERS = f"{_SMALL} {_LARGE}"
_FLOATS = "float32 float64"
_NUMBERS = f"{_INTEGERS} {_FLOATS}"
_SOME_NUMBERS = f"int8 uint8 {_LARGE} {_FLOATS}"
_FEW_NUMBERS = f"int8 uint8 int32 int64 {_FLOATS}"
_FLOAT8 = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
_ALL = f"bool {_NUMBERS} float16 bfloat16"


def _kernels(operators: str, *groups: tuple[int, str]) -> dict[str, dict[str, int]]:
    versions = {name: since for since, names in groups for name in names.split()}
    return dict.fromkeys(operators.split(), versions)


_KERNELS: dict[str, dict[str, int]] = {  # the first version of the operator set, by operator and type
    **_kernels("Add Sub Mul Div", (13, f"{_LARGE} {_FLOATS}"), (14, _SMALL)),
    **_kernels("Neg", (13, f"int8 int16 int32 int64 {_FLOATS}")),
    **_kernels("Abs Less LessOrEqual Greater GreaterOrEqual", (13, _NUMBERS)),
    **_kernels("Sign Clip Mod", (13, f"{_NUMBERS} float16")),
    **_kernels("Max Min", (13, f"{_SOME_NUMBERS} float16")),
    **_kernels("MatMul", (13, f"{_LARGE} {_FLOATS}")),
    **_kernels("Pow CumSum", (13, f"int32 int64 {_FLOATS}")),
    **_kernels("ReduceSum", (13, f"int64 {_FLOATS}")),  # int32 sums are held within the range, in place of being wrapped
    **_kernels("ReduceProd", (13, _FLOATS)),  # likewise
    **_kernels("ReduceMax ReduceMin ArgMax ArgMin Where", (13, _FEW_NUMBERS)),
    **_kernels("TopK", (13, f"int8 uint8 int16 int32 int64 {_FLOATS}")),
    **_kernels("MaxPool", (13, f"int8 uint8 {_FLOATS}")),
    **_kernels("Round", (13, f"{_FLOATS} float16")),
    **_kernels("Floor Ceil Exp Log Sqrt Tanh Sigmoid Sin Cos", (13, _FLOATS)),
    **_kernels("Erf Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Conv ConvTranspose AveragePool", (13, "float32")),
    **_kernels("And Or Xor Not", (13, "bool")),
    **_kernels("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", (18, _INTEGERS)),
    **_kernels("BitShift", (13, "uint8 uint16 uint32 uint64")),
    **_kernels("Equal Tile", (13, f"bool {_NUMBERS}")),
    **_kernels("Expand", (13, f"bool {_NUMBERS} float16")),
    **_kernels("Pad", (13, f"bool {_SOME_NUMBERS}")),
    **_kernels("Concat Slice Split Gather GatherElements GatherND ScatterElements ScatterND", (13, _ALL)),
    **_kernels("Reshape", (13, _ALL), (21, _FLOAT8)),
    **_kernels("Transpose", (13, _ALL), (21, f"{_FLOAT8} int4 uint4")),
}


def choice(operator: str, dtype: np.dtype) -> tuple[np.dtype, int]:
    """The type to compute an operator in, for values of this type, and the version of the operator set that has it.

    It is the type itself for operators that are not listed, and where no wider type has a kernel.
    """
    versions = _KERNELS.get(operator)
    name = str(dtype)
    while versions is not None and name is not None:
        if name in versions:
            return _dtype(name), versions[name]
        name = _WIDER.get(name)
    return dtype, 1


def is_written(dtype: np.dtype) -> bool:
    """Whether values of a type are written: float64, complex numbers and some narrow floats are not."""
    return str(dtype) in _WIDER or str(dtype) in ("float32", "int64", "uint64")


def holds(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether a type has every number of another one; of floats, only those of 16 bits and more are compared."""
    if other == np.bool_:
        return dtype != np.bool_
    if dtype == np.bool_:
        return False
    if not jnp.issubdtype(dtype, np.floating):
        inner, outer = (None if jnp.issubdtype(each, np.floating) else jnp.iinfo(each) for each in (other, dtype))
        return inner is not None and outer is not None and outer.min <= inner.min and inner.max <= outer.max
    floats = jnp.finfo(dtype)
    if floats.bits < 16:
        return False
    if jnp.issubdtype(other, np.floating):
        inner = jnp.finfo(other)
        return inner.nmant <= floats.nmant and inner.maxexp <= floats.maxexp and inner.minexp >= floats.minexp
    return max(jnp.iinfo(other).max, -jnp.iinfo(other).min) <= 2 ** (floats.nmant + 1)


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))
