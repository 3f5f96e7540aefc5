"""Argument handling of com.microsoft's unary operators, from a quantized tensor X to a tensor Y of its type."""

from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def descriptor(operator: Operator) -> Descriptor:
    """The table of such an operator. The specifications differ in which zero points are optional; here all are."""
    return Descriptor(
        operator,
        (
            Tensor("X", "Input", None, "INT8 UINT8"),
            Tensor("X_scale", "Input", (0, 1), "FLOAT32", "[1]"),
            Tensor("X_zero_point", "Optional input", (0, 1), "INT8 UINT8", "[1]"),
            Tensor("Y_scale", "Input", (0, 1), "FLOAT32", "[1]"),
            Tensor("Y_zero_point", "Optional input", (0, 1), "INT8 UINT8", "[1]"),
            Tensor("Y", "Output", None, "INT8 UINT8"),
        ),
        same_data_type=(("X", "X_zero_point"), ("X", "Y_zero_point"), ("X", "Y")),
    )


def operands(
    table: Descriptor,
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None,
) -> tuple[Quantized, ScaleZeroPoint]:
    """The tensor, and how the output is quantized, checked against the table."""
    call = Call(table)
    tensor = call.quantized("X", x, x_scale, x_zero_point)
    output, dtype = call.output("Y", output_scale, output_zero_point, None, default=tensor.values.dtype)
    call.check(tensor.values.shape, dtype)  # or fewer elements, as the operator defines it
    return tensor, output
