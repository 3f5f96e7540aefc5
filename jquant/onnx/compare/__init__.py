"""Compares a model with onnxruntime: node by node, end to end, and in time; and an exported model with its function."""

from jquant.onnx.compare.exports import Exported, ExportedOutput, exported
from jquant.onnx.compare.node_by_node import Row, nodes, table
from jquant.onnx.compare.whole import Output, Times, end_to_end

__all__ = ["Exported", "ExportedOutput", "Output", "Row", "Times", "end_to_end", "exported", "nodes", "table"]


def __dir__() -> list[str]:
    return sorted(__all__)
