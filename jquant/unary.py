"""What the operators of com.microsoft have in common that take a quantized tensor X to one of its type, Y."""

from jax.typing import ArrayLike

from jquant.descriptor import Descriptor, Signature, Tensor
from jquant.operands import Operand, onnx, output_quantization, quantized


def descriptor(operator: str) -> Descriptor:
    """The table of such an operator. The documents differ in the zero points that may be missing; here all may."""
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
) -> tuple[Operand, Operand, Operand | None, Operand, Operand | None]:
    """The operands as arrays that satisfy the table, or None; the scales and zero points without dimensions."""
    x, x_scale, x_zero_point = quantized(table.operator, onnx("X"), x, x_scale, x_zero_point)
    output_scale, output_zero_point, dtype = output_quantization(
        table, None, onnx("Y"), output_scale, output_zero_point, None, default=x.dtype
    )
    table.check(
        None,
        X=x,
        X_scale=x_scale,
        X_zero_point=x_zero_point,
        Y_scale=output_scale,
        Y_zero_point=output_zero_point,
        Y=Signature(x.shape, dtype),  # or fewer elements, as the operator has it
    )
    return x, x_scale, x_zero_point, output_scale, output_zero_point
