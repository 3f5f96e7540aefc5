"""Products of matrices of 8-bit integers, and `dot_general`."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from .arguments import (
    BYTES,
    COLUMNS,
    FLOATS,
    ROWS,
    abstract,
    data_type,
    dtype_of,
    level,
    mode,
    scale,
    zero_point,
)
from .call import Argument, Call
from .kinds import (
    DotNumbers,
    MatrixOrPacked,
    Nothing,
    Precision,
    Tensor,
    ZeroPointOfPacked,
    exactly,
    one_element,
    one_element_or,
)
from .samples import floats, ints, packed_matrix
from .values import Like


def calls() -> list[Call]:
    a, b = ints("uint8", ROWS, 3), ints("int8", 3, 4)
    row, column = one_element_or((ROWS,), (ROWS, 1)), one_element_or((4,), (1, 4))
    implementation = mode("implementation", None, "xla")
    output = {
        "output_zero_point": zero_point("output_zero_point", 3, row, BYTES, "uint8"),
        "output_dtype": data_type("output_dtype", None, BYTES),
        "implementation": implementation,
        "feature_level": level("4_0"),
    }
    per_row, per_column = np.full((ROWS, 1), 0.5, np.float32), np.full((1, 4), 0.5, np.float32)

    def matrices(a_shapes: Any = row, b_shapes: Any = column) -> dict[str, Argument]:
        """Arrays, with Python scalars as scales and zero points."""
        return {
            "a": Argument(a, Tensor(BYTES, lambda shape: len(shape) == 2 and shape[1] == 3), "a"),
            "a_scale": scale("a_scale", shapes=a_shapes),
            "a_zero_point": zero_point("a_zero_point", shapes=a_shapes),
            "b": Argument(b, MatrixOrPacked(BYTES, b.shape), "b"),
            "b_scale": scale("b_scale", shapes=b_shapes),
            "b_zero_point": zero_point("b_zero_point", None, b_shapes, "int8"),
        }

    def with_arrays() -> dict[str, Argument]:
        """Scales and zero points per row and per column, as arrays of two dimensions."""
        rows, columns = one_element_or((ROWS, 1)), one_element_or((1, 4))
        return {
            "a": Argument(a, Tensor("uint8", exactly(a.shape)), "a"),
            "a_scale": scale("a_scale", per_row, rows),
            "a_zero_point": zero_point("a_zero_point", ints("uint8", ROWS, 1), rows),
            "b": Argument(b, Tensor("int8", exactly(b.shape)), "b b_zero_point"),
            "b_scale": scale("b_scale", per_column, columns),
            "b_zero_point": zero_point("b_zero_point", ints("int8", 1, 4), columns, "int8"),
        }

    def packed(arguments: dict[str, Argument]) -> dict[str, Argument]:
        """With packed weights, which hold their zero point."""
        weights = Argument(
            packed_matrix(1), MatrixOrPacked(BYTES, b.shape), arguments["b"].names, like=Like(b.shape, b.dtype)
        )
        zeros = Argument(None, ZeroPointOfPacked(1, (4,), (1, 4)), arguments["b_zero_point"].names, like=Like((4,), b.dtype))
        return {**arguments, "b": weights, "b_zero_point": zeros}

    def with_float16_scales(arguments: dict[str, Argument]) -> dict[str, Argument]:
        """With scales that may be float16, because the others are Python scalars, which take the same dtype."""
        scales = {name: dataclasses.replace(arguments[name].kind, data_types=FLOATS) for name in ("a_scale", "b_scale")}
        return {**arguments, **{name: dataclasses.replace(arguments[name], kind=kind) for name, kind in scales.items()}}

    def without_scales(arguments: dict[str, Argument]) -> dict[str, Argument]:
        return {name: argument for name, argument in arguments.items() if not name.endswith("_scale")}

    def shape(a: Any) -> tuple[int, int]:
        return a.shape[0], 4

    def to_int32(a: Any, **_: Any) -> Any:
        return abstract(shape(a), "int32")

    def to_float(a: Any, a_scale: Any, b_scale: Any, bias: Any, output_dtype: Any, **_: Any) -> Any:
        dtypes = [x.dtype for x in (a_scale, b_scale, bias) if hasattr(x, "dtype")]
        return abstract(shape(a), output_dtype or (dtypes or ["float32"])[0])

    def quantized(a: Any, output_zero_point: Any, output_dtype: Any, **_: Any) -> Any:
        return abstract(shape(a), output_dtype or dtype_of(output_zero_point, a.dtype))

    def bias(value: Any, data_types: str) -> Argument:
        shapes = exactly((), (ROWS, 4), (1, 4), (ROWS, 1), (1, 1))
        tensor = Tensor(data_types, shapes, "float32", optional=True)
        return Argument(value, tensor, "bias", like=Like((1, 4), np.dtype(np.float32)))

    x, weights = floats(ROWS, COLUMNS), floats(COLUMNS, 4)
    any_float = f"{FLOATS} bfloat16"
    numbers = (((1,), (0,)), ((), ()))
    spellings = {
        "dimensions of lists": lambda: [[[1], [0]], [[], []]],
        "dimensions of NumPy": lambda: ((np.array([1]), np.array([0])), ((), ())),
        "a negative dimension": lambda: (((-1,), (0,)), ((), ())),
        "a dimension too many": lambda: (((2,), (0,)), ((), ())),
        "a dimension of floats": lambda: (((1.0,), (0,)), ((), ())),
        "a dimension alone": lambda: ((1, 0), ((), ())),
    }
    precisions = {"Precision.HIGHEST": lambda: lax.Precision.HIGHEST, "two precisions": lambda: ["highest", "high"]}
    dot_general = {
        "lhs": Argument(x, Tensor(any_float, lambda shape: len(shape) >= 2 and shape[1] == COLUMNS), "lhs"),
        "rhs": Argument(weights, Tensor(any_float, lambda shape: len(shape) >= 1 and shape[0] == COLUMNS), "rhs"),
        "dimension_numbers": Argument(numbers, DotNumbers(), "dimension_numbers", spellings),
        "precision": Argument(None, Precision(), "precision", precisions),
        "preferred_element_type": data_type("preferred_element_type", None, any_float),
        "out_sharding": Argument(None, Nothing(), "out_sharding"),
        "lhs_scales": mode("lhs_scales", "PER_CHANNEL", "PER_CHANNEL PER_TENSOR"),
        "rhs_scales": mode("rhs_scales", "PER_CHANNEL", "PER_CHANNEL PER_TENSOR"),
    }

    def like_lax(lhs: Any, rhs: Any, preferred_element_type: Any, **_: Any) -> Any:
        options = {"dimension_numbers": numbers, "preferred_element_type": preferred_element_type}
        return jax.eval_shape(functools.partial(lax.dot_general, **options), lhs, rhs)

    calls = [Call("dot_general", dot_general, like_lax)]
    for arguments in (scalars := matrices(), with_arrays(), packed(scalars)):
        integers = without_scales(arguments) | {"implementation": implementation, "feature_level": level("4_0")}
        calls.append(Call("matmul_integer", integers, to_int32))
        output_fits = one_element_or((ROWS, 1)) if arguments["a_scale"].value is per_row else row
        outputs = {
            "output_scale": scale("output_scale", shapes=output_fits),
            **output,
            "output_zero_point": zero_point("output_zero_point", 3, output_fits, BYTES, "uint8"),
        }
        calls.append(Call("quantized_linear_matmul", {**arguments, **outputs}, quantized))
        options = {
            "output_dtype": data_type("output_dtype", None, "float32"),
            "implementation": implementation,
            "feature_level": level("6_2"),
        }
        if arguments["a_scale"].value is per_row:
            biased = {**arguments, "bias": bias(np.ones((1, 4), np.float32), "float32")}
        else:
            biased = {**with_float16_scales(arguments), "bias": bias(None, FLOATS)}
        calls.append(Call("matmul_integer_to_float", {**biased, **options}, to_float))
    biases = Tensor("int32", one_element_or((4,), (1, 4), (ROWS, 1), (ROWS, 4)), "int32", optional=True)
    for arguments in (scalars := matrices(one_element, one_element_or((4,))), packed(scalars)):
        gemm = {
            **arguments,
            "c": Argument(ints("int32", 4), biases, "c"),
            "output_scale": scale("output_scale"),
            "output_zero_point": zero_point("output_zero_point", data_types=BYTES, scalar="uint8"),
            "output_dtype": data_type("output_dtype", None, BYTES),
            "implementation": implementation,
        }
        calls.append(Call("quantized_gemm", gemm, quantized))
    return calls
