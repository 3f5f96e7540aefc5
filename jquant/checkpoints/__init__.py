"""Quantized checkpoints: safetensors of GPTQ, AWQ, auto-round and compressed-tensors, and GGUF.

import jquant.checkpoints

checkpoint = jquant.checkpoints.load("model")
weight = checkpoint["model.layers.0.mlp.up_proj.weight"]
"""

from jquant.checkpoints.checkpoint import Checkpoint as Checkpoint
from jquant.checkpoints.checkpoint import load as load
from jquant.checkpoints.weight import PackedWeight as PackedWeight
from jquant.checkpoints.weight import QuantizedWeight as QuantizedWeight
from jquant.errors import CheckpointError as CheckpointError
