"""Quantized checkpoints: safetensors of GPTQ, AWQ, auto-round, compressed-tensors, ModelOpt, fp8 and MXFP4, and GGUF.

import jquant.checkpoints

checkpoint = jquant.checkpoints.load("model")
weight = checkpoint["model.layers.0.mlp.up_proj.weight"]
"""

from jquant.checkpoints.checkpoint import Checkpoint, load
from jquant.checkpoints.weight import PackedWeight, QuantizedWeight
from jquant.errors import CheckpointError

__all__ = ["Checkpoint", "CheckpointError", "PackedWeight", "QuantizedWeight", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
