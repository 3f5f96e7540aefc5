"""Leaves out what onnxruntime does not compute exactly on this processor."""

import numpy as np
import pytest

from jquant.transform import Scheme

# What the reason of such a skip begins with. A run counts it at its end, and `--no-skips` does not fail it: no package would
# change it.
NOT_COMPARED = "not compared: "


def need_exact_products(*operands) -> None:
    """Skips a test, `--no-skips` or not, if onnxruntime's products of these operands saturate on this processor.

    Args:
      operands: arrays or dtypes. Products of uint8 by int8 can saturate, those of one type are exact on every processor.
    """
    from jquant.onnx import onnxruntime_session  # needs onnx, which the caller has found

    if {np.dtype(np.uint8), np.dtype(np.int8)} <= set(map(np.result_type, operands)) and onnxruntime_session.saturates():
        pytest.skip(f"{NOT_COMPARED}{onnxruntime_session.SATURATION}")


def need_exact_products_of(scheme: Scheme) -> None:
    """Skips a test if onnxruntime's products of inputs and weights that are quantized so saturate on this processor."""
    if scheme.activations != "FLOAT" and scheme.weight_type == "INT8":
        need_exact_products(np.int8 if scheme.is_symmetric else np.uint8, np.int8)
