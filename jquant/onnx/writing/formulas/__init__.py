"""The writers of steps that the formulas of operators share, which no node of a model is imported as."""

from jquant.onnx.writing.formulas import formula_steps as formula_steps
from jquant.onnx.writing.formulas import narrow_floats as narrow_floats
