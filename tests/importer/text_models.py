"""Models in ONNX's text format, as files."""

from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import parser


def saved(folder: Path, model) -> Path:
    """The path of the model, which is written into the folder."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def text_model(folder: Path, text: str) -> Path:
    """The path of a model of operator set 17, whose graph is given as text."""
    return saved(folder, parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text))
