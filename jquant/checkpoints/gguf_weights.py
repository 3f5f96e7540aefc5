"""The weights in the tensors of a GGUF file: in blocks that products take, or dequantized by the package gguf."""

import numpy as np

from jquant.checkpoints.entry import Entry, array_entry
from jquant.checkpoints.gguf_blocks import PARTS
from jquant.checkpoints.gguf_files import UNQUANTIZED, package
from jquant.checkpoints.rows import DecodedRows
from jquant.checkpoints.weight import QuantizedWeight, columns
from jquant.files.stored_tensor import StoredTensor


def entry(tensor: StoredTensor) -> Entry:
    """A tensor as an array if it is not quantized, as a weight if products take its blocks, and dequantized otherwise."""
    if tensor.type_name in UNQUANTIZED:
        return array_entry(tensor)
    if tensor.type_name in PARTS and len(tensor.shape) >= 2:
        return _in_blocks(tensor).entry(tensor.type_name, tensor.nbytes)

    def read() -> np.ndarray:
        gguf = package()
        try:
            with np.errstate(all="ignore"):
                return gguf.quants.dequantize(tensor.read(), gguf.GGMLQuantizationType[tensor.type_name])
        except NotImplementedError:
            tensor.refuse(f"is {tensor.type_name}, which the package gguf does not dequantize")

    return Entry(kind=f"{tensor.type_name}, dequantized to float32", nbytes=tensor.nbytes, read=read)


def _in_blocks(tensor: StoredTensor) -> DecodedRows:
    gguf = package()
    _, itemsize = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type_name]]

    def decode(first: int, count: int) -> QuantizedWeight:
        data = tensor.rows(first, count).read()
        with np.errstate(all="ignore"):  # the scales in a file may be anything
            parts = PARTS[tensor.type_name](data.reshape(count, -1, itemsize))
        values, scale = columns(parts.values), columns(parts.scale)
        return QuantizedWeight(
            values=values,
            scale=scale,
            zero_point=None,
            minimum=None if parts.minimum is None else columns(parts.minimum),
            permutation=None,
            block_size=len(values) // len(scale),
            dequantized_dtype="float32",
        )

    return DecodedRows(tensor, decode, tensor.shape[-1] // itemsize)
