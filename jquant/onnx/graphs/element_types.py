"""The element types of a model's values."""

from collections.abc import Mapping

import numpy as np
import onnx


def element_types(model: onnx.ModelProto, large: Mapping[str, np.ndarray]) -> dict[str, np.dtype]:
    """The dtypes of the values of the main graph, by name, as far as the file or ONNX's type inference knows them.

    Args:
      large: the initializers that are not in the message.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # at an unknown operator, inference fails
        graph = model.graph
    dtypes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.elem_type:
            dtypes[value.name] = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        dtypes[tensor.name] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return dtypes | {name: array.dtype for name, array in large.items()}
