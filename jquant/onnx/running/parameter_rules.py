"""The shapes that weights, biases, scales and zero points may have: those that onnxruntime takes, and ONNX's own."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jquant.onnx.graphs import n_bits
from jquant.onnx.graphs.graph import MICROSOFT

_Shape = tuple[int, ...]
_ONE: list[_Shape] = [(), (1,)]


class Parameter(NamedTuple):
    """What the shapes that a parameter may have depend on.

    Attributes:
      value, position: the parameter itself.
      operands: all operands by their names in lower case, as far as their shapes are known. A packed matrix is as the file
        has it.
      attributes: those of the node.
      in_file: whether a file is loaded, rather than computed.
    """

    value: Any
    position: int
    operands: Mapping[str, Any]
    attributes: Mapping[str, Any]
    in_file: bool

    def shape(self, operand: str) -> _Shape | None:
        """The shape of an operand of this name in lower case, if it is known."""
        return self.operands[operand].shape if operand in self.operands else None


_Rule = Callable[[Parameter], Sequence[_Shape] | None]  # the shapes that a parameter may have; None if any


def _one(_: Parameter) -> list[_Shape]:
    return _ONE


def _one_element(parameter: Parameter) -> list[_Shape]:
    """In any rank."""
    return [tuple(parameter.value.shape)] if math.prod(parameter.value.shape) == 1 else _ONE


def _scalar(parameter: Parameter) -> list[_Shape]:
    """onnxruntime infers from the shapes that a file states that there is no dimension, and computes with one."""
    return [()] if parameter.in_file else _ONE


def _per_column(parameter: Parameter) -> list[_Shape] | None:
    """One, or one per column of B, or such a row for each matrix of a batch."""
    matrix = parameter.shape("b")
    return columns(matrix) if matrix else None


def columns(matrix: _Shape) -> list[_Shape]:
    """The shapes that a parameter of a matrix has, which is one, or one per column in each matrix of a batch."""
    count = matrix[len(matrix) - 1]
    rows = [(*matrix[:-2], 1, count)] if len(matrix) > 1 else []
    return [*_ONE, (count,), *rows]


def _per_row(parameter: Parameter) -> list[_Shape] | None:
    """One, or, for which onnxruntime has no kernel, one per row, or such a column for each matrix of a batch."""
    a = parameter.shape("a")
    if not a:
        return None
    if len(a) < 2:
        return _ONE
    b = parameter.shape("b")
    batches = {(), a[:-2], _joint_batch(a, b) or a[:-2] if b else a[:-2]}
    return [*_ONE, (a[-2],), *((*batch, a[-2], 1) for batch in sorted(batches, key=len))]


def _joint_batch(a: _Shape, b: _Shape) -> _Shape | None:
    """The batch of a product; None for batches that do not broadcast, which the product itself refuses."""
    try:
        return np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        return None


def _scale_of_product(parameter: Parameter) -> list[_Shape] | None:
    """A scale that broadcasts to the product is multiplied with it."""
    a, b, shape = parameter.shape("a"), parameter.shape("b"), tuple(parameter.value.shape)
    if not a or not b or len(a) < 2 or len(b) < 2:
        return None
    batch = _joint_batch(a, b)
    if batch is None:
        return None
    product = (*batch, a[-2], b[-1])
    aligned = itertools.zip_longest(reversed(shape), reversed(product), fillvalue=1)
    if all(size in (1, other) for size, other in aligned):
        return None
    return [*columns(b), (a[-2], 1), product]


def _bias_of_columns(parameter: Parameter) -> list[_Shape] | None:
    """In any shape with one element per column of B."""
    matrix = parameter.shape("b")
    if not matrix or math.prod(parameter.value.shape) == matrix[-1]:
        return None
    return [(matrix[-1],)]


def _columns_of_gemm(parameter: Parameter) -> int | None:
    matrix = parameter.shape("b")
    return matrix[-2 if parameter.attributes.get("transB", 0) else -1] if matrix and len(matrix) == 2 else None


def _parameter_of_gemm(parameter: Parameter) -> list[_Shape] | None:
    """One or one per column, alike for the scale and the zero point of B."""
    count = _columns_of_gemm(parameter)
    if count is None:
        return None
    sizes = {math.prod(shape) for shape in map(parameter.shape, ("b_scale", "b_zero_point")) if shape is not None}
    return [(count,)] if len(sizes) > 1 else [*_ONE, (count,)]


def _bias_of_gemm(parameter: Parameter) -> list[_Shape] | None:
    a, count = parameter.shape("a"), _columns_of_gemm(parameter)
    if not a or len(a) != 2 or count is None:
        return None
    rows = a[-1 if parameter.attributes.get("transA", 0) else -2]
    return [*_ONE, (count,), *itertools.product(dict.fromkeys((1, rows)), dict.fromkeys((1, count)))]


def _of_size(operand: str, axis: int, *, or_one: bool = False) -> _Rule:
    """A rule for a vector with as many elements as an operand has along an axis; `or_one` allows a single one, too."""

    def rule(parameter: Parameter) -> list[_Shape] | None:
        shape = parameter.shape(operand)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return [*(_ONE if or_one else ()), (shape[axis],)]

    return rule


def _bias_of_transposed_filters(parameter: Parameter) -> list[_Shape] | None:
    filters = parameter.shape("w")
    return [(filters[1] * parameter.attributes.get("group", 1),)] if filters and len(filters) > 1 else None


def _per_channel(parameter: Parameter) -> list[_Shape] | None:
    """One element for each channel. An old version with ``spatial=0`` has one for each element of a channel: no rule."""
    x = parameter.shape("x") or parameter.shape("input")
    return [(x[1],)] if x and len(x) > 1 and parameter.attributes.get("spatial", 1) else None


def _matrix(parameter: Parameter) -> list[_Shape] | None:
    shape = tuple(parameter.value.shape)
    return None if len(shape) == 2 else [("rows", "columns")]  # type: ignore[list-item]


def _recurrent(gates: int, transposed: bool = False) -> dict[str, _Rule]:
    """The rules for the weights of a recurrent layer.

    Args:
      transposed: whether the gates are the last dimension of the matrices.
    """

    def of_layer(make: Callable[[int, int, Parameter], list[_Shape] | None]) -> _Rule:
        def rule(parameter: Parameter) -> list[_Shape] | None:
            r = parameter.shape("r")
            of_matrix = r[1 if transposed else 2] if r and len(r) == 3 else 0
            hidden = parameter.attributes.get("hidden_size", 0) or of_matrix
            directions = 2 if parameter.attributes.get("direction", "forward") == "bidirectional" else 1
            return make(directions, hidden, parameter) if hidden else None

        return rule

    def matrix(directions: int, rows: int, columns: int) -> list[_Shape]:
        return [(directions, columns, rows) if transposed else (directions, rows, columns)]

    def of_inputs(directions: int, hidden: int, parameter: Parameter) -> list[_Shape] | None:
        x = parameter.shape("x")
        return matrix(directions, gates * hidden, x[-1]) if x else None

    parameters = {
        "w": of_layer(of_inputs),
        "r": of_layer(lambda directions, hidden, _: matrix(directions, gates * hidden, hidden)),
        "b": of_layer(lambda directions, hidden, _: [(directions, 2 * gates * hidden)]),
    }
    if transposed:
        per_gate = of_layer(lambda directions, hidden, _: [(directions,), (directions, gates * hidden)])
        parameters |= _of_all("w_scale w_zero_point r_scale r_zero_point", per_gate)
    return parameters


def _along_axis(parameter: Parameter) -> list[_Shape] | None:
    """A scale that is not in blocks."""
    x = parameter.shape("x")
    axis = parameter.attributes.get("axis", 1)
    if x is None or parameter.attributes.get("block_size", 0) or not -len(x) <= axis < len(x):
        return None if x or parameter.attributes.get("block_size", 0) or x is None else _ONE
    return [*_ONE, (x[axis],)]


def _as_scale(parameter: Parameter) -> list[_Shape] | None:
    scale = parameter.shape("x_scale") if "x_scale" in parameter.operands else parameter.shape("y_scale")
    if scale is None:
        return None
    return _ONE if scale in _ONE else [scale]


def _blocks(make: Callable[[n_bits.Sizes, int, Parameter], list[_Shape]]) -> _Rule:
    """A rule for a MatMulNBits, from its sizes and the number of its blocks along a column."""

    def rule(parameter: Parameter) -> list[_Shape] | None:
        if parameter.attributes.get("weight_prepacked", 0) or 0 in parameter.value.shape:  # no weights: a product of zeros
            return None
        named = {key: parameter.attributes[key] for key in ("K", "N", "bits", "block_size") if key in parameter.attributes}
        sizes = n_bits.sizes(**named)
        return make(sizes, -(-sizes.rows // sizes.block_size), parameter)

    return rule


def _matrix_of_blocks(sizes: n_bits.Sizes, blocks: int, parameter: Parameter) -> list[_Shape]:
    """Without any bytes, it is a matrix of zeros."""
    if not math.prod(parameter.value.shape):
        return [tuple(parameter.value.shape)]
    return [(sizes.columns, blocks, sizes.block_size * sizes.bits // 8)]


def _flat_or_rows(rows: int, columns: int) -> list[_Shape]:
    return [(rows * columns,), (rows, columns)]


def _zero_points_of_blocks(sizes: n_bits.Sizes, blocks: int, parameter: Parameter) -> list[_Shape]:
    is_packed = parameter.value.dtype == np.uint8
    return _flat_or_rows(sizes.columns, -(-blocks * sizes.bits // 8) if is_packed else blocks)


def _of_all(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_QUANTIZE = {"y_scale": _along_axis, "y_zero_point": _as_scale}
_DEQUANTIZE = {"x_scale": _along_axis, "x_zero_point": _as_scale}
_CONVOLUTION = {
    **_of_all("x_scale x_zero_point y_scale y_zero_point", _one),
    **_of_all("w_scale w_zero_point", _of_size("w", 0, or_one=True)),
    "B": _of_size("w", 0),
}
_GEMM = {"b": _matrix, "c": _bias_of_gemm}
_BINARY = _of_all("A_scale A_zero_point B_scale B_zero_point C_scale C_zero_point", _scalar)
_TO_FLOAT = {"b_zero_point": _per_column, "b_scale": _scale_of_product, "bias": _bias_of_columns}
_EMBEDDINGS = ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")
RULES: dict[str, Mapping[str, _Rule]] = {
    "QuantizeLinear": _QUANTIZE,
    "DequantizeLinear": _DEQUANTIZE,
    "MatMulInteger": {"a_zero_point": _per_row, "b_zero_point": _per_column},
    "QLinearMatMul": {
        **_of_all("a_scale a_zero_point y_scale y_zero_point", _per_row),
        **_of_all("b_scale b_zero_point", _per_column),
    },
    "ConvInteger": {"x_zero_point": _one, "w_zero_point": _of_size("w", 0, or_one=True)},
    "QLinearConv": _CONVOLUTION,
    "Conv": {"b": _of_size("w", 0)},
    "ConvTranspose": {"b": _bias_of_transposed_filters},
    "Gemm": _GEMM,
    "BatchNormalization": _of_all("scale b mean var input_mean input_var", _per_channel),
    "InstanceNormalization": _of_all("scale b", _per_channel),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    f"{MICROSOFT}.BiasGelu": {"b": _of_size("a", -1)},
    f"{MICROSOFT}.FastGelu": {"bias": _of_size("x", -1)},
    f"{MICROSOFT}.SkipLayerNormalization": _of_all("gamma beta bias", _of_size("input", -1)),
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _of_all("gamma bias", _of_size("input", -1)),
    f"{MICROSOFT}.FusedConv": {"b": _of_size("w", 0)},
    f"{MICROSOFT}.FusedGemm": _GEMM,
    f"{MICROSOFT}.DynamicQuantizeLSTM": _recurrent(4, transposed=True),
    f"{MICROSOFT}.QAttention": {
        "weight": _matrix,
        "bias": _of_size("weight", -1),
        **_of_all("input_scale input_zero_point", _one),
        **_of_all("weight_scale weight_zero_point", _of_size("weight", -1, or_one=True)),
    },
    f"{MICROSOFT}.QuantizeLinear": _QUANTIZE,
    f"{MICROSOFT}.DequantizeLinear": _DEQUANTIZE,
    f"{MICROSOFT}.QLinearConv": _CONVOLUTION,
    f"{MICROSOFT}.DynamicQuantizeMatMul": _TO_FLOAT,
    f"{MICROSOFT}.MatMulIntegerToFloat": {**_TO_FLOAT, "a_scale": _scale_of_product, "a_zero_point": _one},
    f"{MICROSOFT}.QGemm": {
        **_of_all("a_scale a_zero_point y_scale y_zero_point", _one),
        **_of_all("b_scale b_zero_point", _parameter_of_gemm),
        "C": _bias_of_gemm,
    },
    f"{MICROSOFT}.MatMulNBits": {
        "B": _blocks(_matrix_of_blocks),
        "scales": _blocks(lambda sizes, blocks, _: _flat_or_rows(sizes.columns, blocks)),
        "zero_points": _blocks(_zero_points_of_blocks),
        "g_idx": _blocks(lambda sizes, blocks, _: [(sizes.rows,), (blocks * sizes.block_size,)]),
        "bias": _blocks(lambda sizes, *_: [(sizes.columns,)]),
    },
    f"{MICROSOFT}.QLinearAdd": _BINARY,
    f"{MICROSOFT}.QLinearMul": _BINARY,
    f"{MICROSOFT}.QLinearAveragePool": _of_all("x_scale x_zero_point y_scale y_zero_point", _scalar),
    f"{MICROSOFT}.QLinearGlobalAveragePool": _of_all("x_scale x_zero_point y_scale y_zero_point", _one),
    f"{MICROSOFT}.QLinearSigmoid": _of_all("X_scale X_zero_point Y_scale Y_zero_point", _one),
    f"{MICROSOFT}.QLinearLeakyRelu": _of_all("X_scale X_zero_point Y_scale Y_zero_point", _one),
    f"{MICROSOFT}.QLinearSoftmax": {"X_scale": _one, **_of_all("x_zero_point y_scale y_zero_point", _one_element)},
    f"{MICROSOFT}.QLinearWhere": _of_all("x_scale x_zero_point y_scale y_zero_point z_scale z_zero_point", _one_element),
    f"{MICROSOFT}.QLinearConcat": {
        **_of_all("Y_scale Y_zero_point", _one_element),
        "inputs": lambda parameter: None if parameter.position % 3 == 2 else _one_element(parameter),
    },
    f"{MICROSOFT}.QEmbedLayerNormalization": {
        f"{name}_{kind}": _one for name in _EMBEDDINGS for kind in ("scale", "zero_point")
    },
}
