"""The network as an ONNX model, whose parameters are constants."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx

from benchmarks.program_size.network import IMAGE, Network

IMAGE_NAME = "image"
_MICROSOFT = "com.microsoft"


class Tensor(NamedTuple):
    """A tensor of the graph: where the network expects an array, it finds the shape, and may reshape."""

    graph: "Graph"
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def reshape(self, *shape: int) -> "Tensor":
        return self.graph.add("Reshape", [self, np.array(shape, np.int64)], shape, self.dtype)


class Graph:
    """The nodes of an ONNX graph, their outputs, and its constants."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[Tensor] = []
        self.constants: list[onnx.TensorProto] = []
        self._numbers = itertools.count()

    def add(
        self,
        operator: str,
        inputs: Sequence[Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        domain: str = "",
        **attributes: Any,
    ) -> Tensor:
        """The output, of this shape and dtype, of a new node; arrays among its inputs become constants."""
        name = f"{operator}_{next(self._numbers)}"
        names = [x.name if isinstance(x, Tensor) else self._constant(x) for x in inputs]
        self.nodes.append(onnx.helper.make_node(operator, names, [name], name=name, domain=domain, **attributes))
        self.outputs.append(Tensor(self, name, tuple(shape), np.dtype(dtype)))
        return self.outputs[-1]

    def _constant(self, value: Any) -> str:
        name = f"constant_{next(self._numbers)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name


class Recorded(NamedTuple):
    """A call of an operator, some of whose operands are tensors, and the tensor that is its result."""

    operator: Callable[..., jax.Array]
    operands: tuple
    options: dict[str, Any]
    output: Tensor


class Recorder(Network):
    """The network, which adds each of its nodes to a graph instead of computing it.

    Attributes:
      graph: the graph.
      calls: the calls of jquant's operators that became nodes.
    """

    def __init__(self, blocks: int, take: Callable[..., np.ndarray], graph: Graph) -> None:
        super().__init__(blocks, take)
        self.graph = graph
        self.calls: list[Recorded] = []

    def node(self, operator: Callable[..., jax.Array], *operands: Any, **options: Any) -> Any:
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in operands]
        output = jax.eval_shape(functools.partial(operator, **options), *types)
        name, inputs, attributes = FORMS[operator.__name__](*operands, **options)
        domain = _MICROSOFT if name in _CONTRIBUTED else ""
        result = self.graph.add(name, inputs, output.shape, output.dtype, domain, **attributes)
        self.calls.append(Recorded(operator, operands, options, result))
        return result


Form = tuple[str, Sequence[Any], dict[str, Any]]  # the name of an ONNX operator, its inputs and attributes


def _same(name: str, **attributes: Any) -> Callable[..., Form]:
    """The form of an operator whose inputs are those of jquant's, in the same order."""
    return lambda *operands, **options: (name, operands, attributes | options)


def _clip(x: Tensor, least: float, most: float, *, scale_bias: Any) -> Form:
    if (least, most) != (0.0, 1.0):
        raise NotImplementedError("HardSigmoid clips to 0 and 1")
    return "HardSigmoid", [x], {"alpha": float(scale_bias.scale), "beta": float(scale_bias.bias)}


def _convolution(x, x_scale, x_zero_point, weights, scales, zero_point, y_scale, y_zero_point, bias, **windows) -> Form:
    befores, afters = zip(*windows["padding"], strict=True)
    attributes = {"strides": windows["strides"], "pads": [*befores, *afters], "group": windows["groups"]}
    weights_and_scales = weights, scales, _zeros(zero_point, weights, scales)
    return (
        "QLinearConv",
        [x, x_scale, x_zero_point, *weights_and_scales, y_scale, y_zero_point, bias.reshape(-1)],
        attributes,
    )


def _gemm(a, a_scale, a_zero_point, b, b_scales, b_zero_point, bias, y_scale, y_zero_point) -> Form:
    b_zero_points = _zeros(b_zero_point, b, b_scales)
    return "QGemm", [a, a_scale, a_zero_point, b, b_scales, b_zero_points, bias, y_scale, y_zero_point], {}


def _zeros(zero_point: None, weights: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The zero points of symmetric weights, which ONNX requires."""
    if zero_point is not None:
        raise NotImplementedError("the weights of the network are symmetric")
    return np.zeros(scales.shape, weights.dtype)


FORMS: dict[str, Callable[..., Form]] = {  # by the names of jquant's operators
    "quantize_linear": _same("QuantizeLinear"),
    "dequantize_linear": _same("DequantizeLinear"),
    "clip": _clip,
    "clip1": _same("Clip"),
    "quantized_linear_convolution": _convolution,
    "quantized_linear_add": _same("QLinearAdd"),
    "quantized_linear_multiply": _same("QLinearMul"),
    "quantized_linear_global_average_pool": _same("QLinearGlobalAveragePool", channels_last=0),
    "quantized_gemm": _gemm,
    "quantized_linear_softmax": _same("QLinearSoftmax", opset=13),
}
_CONTRIBUTED = {"QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool", "QGemm", "QLinearSoftmax"}


def build(blocks: int, parameters: Sequence[np.ndarray]) -> tuple[onnx.ModelProto, Recorder]:
    """The network with the parameters that `network.draw` returns, and what recorded it."""
    graph, remaining = Graph(), iter(parameters)
    image = Tensor(graph, IMAGE_NAME, IMAGE, np.dtype(np.float32))
    recorder = Recorder(blocks, lambda make: next(remaining), graph)
    outputs = [declared(x) for x in recorder(image)]
    proto = onnx.helper.make_graph(graph.nodes, "network", [declared(image)], outputs, graph.constants)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(_MICROSOFT, 1)]
    return onnx.helper.make_model(proto, opset_imports=opsets, ir_version=10), recorder


def declared(x: Tensor) -> onnx.ValueInfoProto:
    """A tensor as an input or output of a graph."""
    return onnx.helper.make_tensor_value_info(x.name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
