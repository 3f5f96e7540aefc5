"""Programs that a function names, or calls with rules of their own for derivatives and the like: what they compute."""

from collections.abc import Sequence
from typing import Any

from jquant import jaxprs
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor


@primitive("call", "composite", "custom_vmap_call", "linear_call", "xla_metadata_call")
def _called(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    (program,) = jaxprs.closed_programs(equation)
    return walk.write(builder, program, operands)
