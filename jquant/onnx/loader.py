"""Loads ONNX models."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from jax.typing import ArrayLike
from onnx import inliner

from jquant.errors import ModelError
from jquant.onnx import arguments
from jquant.onnx import nodes as _nodes  # noqa: F401  # importing them fills the table of the registry
from jquant.onnx.fusing import fusion, moving_parts, sorted_indices, tied_embeddings, widened_weights
from jquant.onnx.graphs.element_types import element_types
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, Graph
from jquant.onnx.graphs.n_bits import MATMUL_N_BITS, with_int8_rows
from jquant.onnx.graphs.values import fitted
from jquant.onnx.model import Model
from jquant.onnx.reading import files, functions
from jquant.onnx.reading.reader import Reader, versions
from jquant.onnx.running import branches, folding, limits, parameter_shapes, registry
from jquant.onnx.running.registry import Converter

_OLDEST, _NEWEST = 7, 28  # operator sets of ONNX's own domain


def load(
    source: files.Source,
    *,
    constants: Mapping[str, ArrayLike] | None = None,
    overrides: Mapping[str, Callable[..., Any]] | None = None,
    qdq: Literal["as_written", "fused"] = "as_written",
    n_bits: Literal["float", "int8"] = "float",
    fold: bool = True,
) -> Model:
    """Loads an ONNX model as a JAX function.

    ``qdq`` is for models with QuantizeLinear and DequantizeLinear. ``"as_written"`` computes the operators between them in
    float, as the file says. The results equal those of onnxruntime without optimizations, bit for bit if the float operators
    agree. ``"fused"`` computes in integers: DequantizeLinear, an operator and QuantizeLinear become one integer operator, as
    in onnxruntime's optimizations. That is faster, but a result may differ in its last bit: an integer sum is exact, while a
    float sum is rounded at each step; and the scales are multiplied with each other before they are multiplied with the sum,
    which is one rounding instead of several. Constant weights of int8, uint8, int4 or uint4 that the file widens, by Cast
    and Mul (and Sub of a zero point) or by DequantizeLinear, stay integers in `params`, with one scale for all, for each
    column or for each block of rows: a float MatMul or Gemm by them becomes `jquant.matmul_n_bits`, which multiplies by the
    same weights in another order of rounding. Which of the two is right depends on how the model was evaluated. The default
    is what the file says, because that is well defined, whereas every engine fuses differently.

    Args:
      source: a path, bytes, a binary file or an `onnx.ModelProto`. Data in other files is read from the folder of the path.
      constants: inputs of the model to fix, by name. Inputs that shapes depend on must be fixed.
      overrides: functions that replace operators with floating-point operands, by the operator's name, such as
        ``{"MatMul": f}``. A function is called with the operands by position; those that shapes depend on (and the exponent
        of Pow, if it is a constant) are NumPy arrays. It gets the attributes for which it has keyword-only parameters; the
        others must have their defaults.
      qdq: whether QuantizeLinear and DequantizeLinear are computed "as_written", or "fused" with the operators between them.
        ``print(model)`` shows what was fused. Scales and zero points in `params` that are equal must then stay equal, the
        results of Sigmoid and LeakyRelu for all integers are in tables that do not follow them, and `overrides` applies to
        what stays float.
      n_bits: how MatMulNBits multiplies where the file gives it the `accuracy_level` 4, as files for CPUs do: "float", or
        with each row of its operand rounded to "int8" by the largest of its values, as `block_scaled_matmul` does.
        onnxruntime rounds there, too, by block. On a CPU with jquant-native, decoding then takes about half as long.
      fold: whether nodes whose operands are all initializers and constants are computed now, once, each as a call outside
        `jit` computes it, instead of in every call. Their results are then in `params`, under the names of these values, in
        place of what only they were computed from: ``DequantizeLinear`` of int8 weights leaves float32, which takes four
        times the memory. ``print(model)`` says what was computed, and the bytes. `jquant.onnx.export` writes the nodes of
        the file, as long as these parameters are as they were loaded. ``False`` keeps the file's own parameters, to train
        them, or to have their bytes.

    Returns:
      A `Model`.

    Raises:
      ModelError: a model that is not valid; or, all in one error, the operators that are not supported and the shapes that
        depend on data.
      OSError: a file that cannot be read.
    """
    if qdq not in ("as_written", "fused"):
        raise ModelError(f"qdq is {qdq!r}; it must be 'as_written' or 'fused'")
    if n_bits not in ("float", "int8"):
        raise ModelError(f"n_bits is {n_bits!r}; it must be 'float' or 'int8'")
    if not isinstance(fold, bool):
        raise ModelError(f"fold is {fold!r}; it must be True or False")
    file = files.read(source)
    proto, large, name = file.model, file.arrays(), file.name
    del file
    operator_sets = versions(proto.opset_import)
    version = operator_sets.get(DEFAULT_DOMAIN, _NEWEST)
    if not _OLDEST <= version <= _NEWEST:
        raise ModelError(f"{name}: its operator set is {version}; those from {_OLDEST} to {_NEWEST} are supported")
    try:
        with _model_errors():
            if proto.functions:
                limits.check_expanded(proto)
                proto = inliner.inline_local_functions(proto)
            graph = Reader(operator_sets).graph(proto.graph, large=large)
        fixed, replacements = _fixed(graph, constants or {}), _replacements(overrides or {})
        with _model_errors():
            parameter_shapes.check_file(graph, fixed, replacements)
            dtypes = element_types(proto, large)
            del proto, large  # the graph has their arrays
            graph = branches.decided(graph, fixed)
            fused: dict[str, int] = {}
            if qdq == "fused":
                graph, fused = fusion.fused(graph, dtypes)
                graph, weight_only = widened_weights.with_integer_weights(graph, replacements)
                fused |= weight_only
            graph = functions.expanded(graph, dtypes)
            graph = tied_embeddings.with_columns(graph, replacements)
            graph = moving_parts.with_parts(graph, replacements)
            graph = sorted_indices.with_indices(graph, replacements)
            if n_bits == "int8" and MATMUL_N_BITS not in replacements:
                graph = with_int8_rows(graph)
            folded = folding.folded(graph, fixed, replacements.keys()) if fold else folding.Folded(graph)
            del graph  # the model takes over its arrays, one by one
            return Model(folded, constants=fixed, overrides=replacements, name=name, fused=fused)
    except ModelError as error:
        raise error if str(error).startswith(name) else ModelError(f"{name}: {error}") from error


@contextlib.contextmanager
def _model_errors() -> Iterator[None]:
    """Turns whatever a malformed file raises into a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{type(error).__name__}: {error}") from error


def _replacements(overrides: Mapping[str, Callable[..., Any]]) -> dict[str, Converter]:
    known = {f"{domain}.{operator}" if domain else operator for domain, operator in registry.operators()}
    unknown = [name for name in overrides if name not in known]
    if unknown:
        lower = {name.lower() for name in unknown}
        similar = [name for name in known if name.lower() in lower]
        hint = f", but there is {arguments.listed(similar)}" if similar else ""
        raise ModelError(f"overrides has {arguments.listed(unknown)}: there is no such operator{hint}")
    return {name: Converter(function) for name, function in overrides.items()}


def _fixed(graph: Graph, constants: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The constants in the dtypes that the graph declares."""
    declared = {value.name: value for value in graph.inputs}
    arrays = {}
    for name, value in constants.items():
        if name not in declared:
            raise ModelError(f"constants has {name!r}; the model takes {arguments.listed(declared)}")
        dtype = declared[name].dtype
        array = np.asarray(value)
        arrays[name] = array if dtype is None else fitted(array, dtype, f"the constant {name!r}")
    return arrays
