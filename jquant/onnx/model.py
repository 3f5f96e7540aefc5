"""The model of an ONNX file as a JAX function."""

import collections
import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from onnx import inliner

from jquant.errors import ModelError
from jquant.onnx import arguments, branches, files, functions, fusion, packing, registry, statics
from jquant.onnx import converters as _converters  # noqa: F401  # importing them fills the table
from jquant.onnx.evaluate import Evaluation, Watch
from jquant.onnx.graph import DEFAULT_DOMAIN, JQUANT, MICROSOFT, Graph, Reader, Value, versions
from jquant.onnx.registry import Converter
from jquant.onnx.values import fitted, to_jax

_OLDEST, _NEWEST = 7, 28  # operator sets of ONNX's own domain
_LARGEST_CONSTANT = 1  # elements of a Constant node that is not made a parameter


class Model:
    """What `load` returns for an ONNX model: a pure function of parameters and inputs.

    It is static to JAX (hashable, compared by identity). Everything that changes is in its arguments, so
    ``jax.jit(model)(model.params, inputs)`` compiles it once.

    Attributes:
      params: the initializers by name, as arrays. Integer matrices that only products read are `jquant.PackedMatrix`; those
        in blocks are `jquant.PackedBlockMatrix`, which hold their scales and zero points. Those scales and zero points have
        no names of their own here, unless something else reads them. Save the parameters, shard them, donate them or replace
        them by others.
      inputs, outputs: what the file declares for each name.
      fused: by name, how many operators are computed in integers instead of in float.
    """

    params: dict[str, Any]
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    fused: dict[str, int]

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, np.ndarray],
        overrides: Mapping[str, Converter],
        name: str,
        fused: Mapping[str, int],
    ):
        self._graph, self._constants, self._overrides, self._name = graph, dict(constants), dict(overrides), name
        self.fused = dict(fused)
        self.inputs = {value.name: value for value in graph.inputs if value.name not in constants}
        self.outputs = {value.name: value for value in graph.outputs}
        scopes = list(graph.scopes())
        small = {name: array for each in scopes for name, array in each.constants.items() if array.size <= _LARGEST_CONSTANT}
        known = {name: array for each in scopes for name, array in {**each.initializers, **each.constants}.items()}
        known |= constants
        analysis = statics.Analysis(graph, known)
        problems = [*_unsupported(graph, self._overrides, constants), *analysis.problems]
        if problems:
            raise ModelError(f"{name} is not supported:" + "".join(f"\n  {each}" for each in dict.fromkeys(problems)))
        self._static = frozenset(analysis.static)
        self._deciding = branches.deciding(graph)
        packed = packing.packed(graph, self._static, self._overrides)
        self._known: dict[str, np.ndarray | None] = {}
        self.params = {}
        for value_name, array in known.items():
            if value_name in self._static or value_name in constants or value_name in small:
                self._known[value_name] = array
            elif value_name in packed.matrices:
                self.params[value_name] = packed.matrices[value_name]
            elif value_name in packed.within:
                self._known[value_name] = None
            else:
                self.params[value_name] = to_jax(array, f"{name}: the initializer {value_name!r}")

    def __call__(
        self, params: Mapping[str, Any], inputs: Mapping[str, ArrayLike], *, where: arguments.Where | None = None
    ) -> dict[str, jax.Array]:
        """The outputs by name.

        Args:
          params: those of the model, or others of the same structure.
          inputs: an array for every input of the model. 64-bit integers become 32-bit in JAX: values in NumPy arrays must
            fit.
          where: a boolean mask over the leading dimensions of activations, such as (batch, length). Only positions where it
            is true count in the ranges of dynamic quantization, so padding changes nothing. Or a tuple of such masks of
            different shapes, such as those of an encoder and of a decoder. A mask is matched to its activations by shape, so
            none of its sizes may equal that of another dimension in the same place.

        Raises:
          ModelError: inputs that are missing, unknown, or of another dtype or shape than the file declares, or that differ
            in a size to which the file gives one name; missing parameters; a mask that is not boolean or whose dimensions no
            dynamically quantized activation has, or two masks of one shape.
        """
        return self._run(params, inputs, where, None)

    def watched(self, inputs: Mapping[str, ArrayLike], watch: Watch) -> dict[str, jax.Array]:
        """The outputs, computed node by node with the model's own parameters.

        Args:
          watch: called with every node, its operands and its results. It may return other results to continue with. Inside
            subgraphs that JAX traces, these are traced.
        """
        return self._run(self.params, inputs, None, watch)

    def _run(
        self, params: Mapping[str, Any], inputs: Mapping[str, ArrayLike], where: arguments.Where | None, watch: Watch | None
    ) -> dict[str, jax.Array]:
        arguments.check_params(self.params, params, self.inputs)
        values: dict[str, Any] = {**self._known, **params, **arguments.inputs(self.inputs, inputs)}
        masks = arguments.masks(where)
        self._dry_run(values, masks)
        evaluation = Evaluation(self._overrides, self._static, masks, watch, self._deciding)
        results = self._evaluated(evaluation, values)
        for mask in evaluation.where:
            if mask.shape not in evaluation.used:
                raise ModelError(
                    f"where has shape {mask.shape}; no dynamically quantized activation has these as its leading dimensions"
                )
        return {name: to_jax(value, repr(name)) for name, value in zip(self.outputs, results, strict=True)}

    def _evaluated(self, evaluation: Evaluation, values: dict[str, Any]) -> list[Any]:
        # The operators of ONNX broadcast, whatever the caller's JAX settings are.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return evaluation.run(self._graph, values)

    def _dry_run(self, values: Mapping[str, Any], masks: tuple[jax.Array, ...]) -> None:
        """Outside of `jax.jit`, finds results that are too large before anything is computed."""
        arrays = {name: value for name, value in values.items() if name not in self._known or value is not self._known[name]}
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arrays, masks))):
            return

        def run(arrays: Mapping[str, Any], masks: tuple[jax.Array, ...]) -> None:
            evaluation = Evaluation(self._overrides, self._static, masks, deciding=self._deciding)
            self._evaluated(evaluation, {**self._known, **arrays})

        jax.eval_shape(run, arrays, masks)

    def __str__(self) -> str:
        return "\n".join(_lines(self, self._graph, self._name))


def load(
    source: files.Source,
    *,
    constants: Mapping[str, ArrayLike] | None = None,
    overrides: Mapping[str, Callable[..., Any]] | None = None,
    qdq: Literal["as_written", "fused"] = "as_written",
) -> Model:
    """Reads an ONNX model as a JAX function.

    ``qdq`` is for models with QuantizeLinear and DequantizeLinear. ``"as_written"`` computes the operators between
    them in float, as the file says. The results equal those of onnxruntime without optimizations, bit for bit if the float
    operators in between agree. ``"fused"`` computes in integers: DequantizeLinear, an operator and QuantizeLinear become one
    integer operator, as in onnxruntime's optimizations. That is faster, but a result may differ in its last bit: an integer
    sum is exact, while a float sum is rounded at each step; and the scales are multiplied with each other before they are
    multiplied with the sum, which is one rounding instead of several. Which of the two is right depends on how the model was
    evaluated. The default is what the file says, because that is well defined, whereas every engine fuses differently.

    Args:
      source: a path, bytes, a binary file or an `onnx.ModelProto`. Data beside the file is read from its folder.
      constants: inputs of the model to fix, by name. Inputs that shapes depend on must be fixed.
      overrides: functions that replace operators with floating-point operands, by the operator's name, such as
        ``{"MatMul": f}``. They are called with the operands by position; those that shapes depend on (and the exponent of
        Pow, if it is a constant) are NumPy arrays. Attributes are passed if the function has keyword-only parameters for
        them. An attribute for which it has no parameter must have its default.
      qdq: whether QuantizeLinear and DequantizeLinear are computed "as_written", or "fused" with the operators between
        them. ``print(model)`` shows what was fused. Scales and zero points in `params` that are equal must then stay equal,
        and `overrides` applies to what stays float.

    Returns:
      A `Model`.

    Raises:
      ModelError: a model that is not valid; or, in one error, every operator that is not supported and every shape that
        depends on data.
      OSError: a file that cannot be read.
    """
    if qdq not in ("as_written", "fused"):
        raise ModelError(f"qdq is {qdq!r}; it must be 'as_written' or 'fused'")
    proto, name = files.read(source)
    imports = versions(proto.opset_import)
    version = imports.get(DEFAULT_DOMAIN, _NEWEST)
    if not _OLDEST <= version <= _NEWEST:
        raise ModelError(f"{name}: its operator set is {version}; those from {_OLDEST} to {_NEWEST} are supported")
    try:
        with _broken_files():
            if proto.functions:
                proto = inliner.inline_local_functions(proto)
            graph = Reader(imports).graph(proto.graph)
        fixed, functions_of_caller = _fixed(graph, constants or {}), _overrides(overrides or {})
        with _broken_files():
            dtypes = functions.element_types(proto)
            graph = branches.decided(graph, fixed)
            graph, fused = fusion.fused(graph, dtypes) if qdq == "fused" else (graph, {})
            return Model(functions.expanded(graph, dtypes), fixed, functions_of_caller, name, fused)
    except ModelError as error:
        raise error if str(error).startswith(name) else ModelError(f"{name}: {error}") from error


@contextlib.contextmanager
def _broken_files() -> Iterator[None]:
    """Turns whatever a broken file raises into a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{type(error).__name__}: {error}") from error


def _overrides(given: Mapping[str, Callable[..., Any]]) -> dict[str, Converter]:
    known = {f"{domain}.{operator}" if domain else operator for domain, operator in registry.operators()}
    unknown = [name for name in given if name not in known]
    if unknown:
        similar = [name for name in known if name.lower() in {each.lower() for each in unknown}]
        hint = f", but there is {arguments.listed(similar)}" if similar else ""
        raise ModelError(f"overrides has {arguments.listed(unknown)}: there is no such operator{hint}")
    return {name: Converter(function) for name, function in given.items()}


def _fixed(graph: Graph, constants: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    declared = {value.name: value for value in graph.inputs}
    found = {}
    for name, value in constants.items():
        if name not in declared:
            raise ModelError(f"constants has {name!r}; the model takes {arguments.listed(declared)}")
        dtype = declared[name].dtype
        found[name] = np.asarray(value) if dtype is None else fitted(np.asarray(value), dtype, f"the constant {name!r}")
    return found


def _unsupported(graph: Graph, overrides: Mapping[str, Converter], constants: Collection[str]) -> list[str]:
    found = _undefined(graph, set())
    strings = [value.name for value in graph.inputs if value.dtype is not None and value.dtype.kind in "OUS"]
    found += [f"the input {name!r} holds strings, for which JAX has no arrays" for name in strings if name not in constants]
    for node in graph.walk():
        entry = registry.find(node)
        if entry is None:
            reason = registry.REFUSED.get(node.kind)
            found.append(f"{node.title}: this operator is not supported" + (f": {reason}" if reason else ""))
            continue
        _, unknown = registry.arguments(node, entry)
        found += [f"{node.title}: its attribute {name} = {node.attributes[name]!r} is not supported" for name in unknown]
        if node.kind in overrides:
            _, unknown = registry.arguments(node, overrides[node.kind])
            found += [
                f"{node.title}: overrides[{node.kind!r}] has no parameter for {name} = {node.attributes[name]!r}"
                for name in unknown
            ]
        if len(node.inputs) > len(entry.operands) and not entry.takes_rest:
            found.append(f"{node.title}: its operand number {len(entry.operands) + 1} is not supported")
    return found


def _undefined(graph: Graph, outer: set[str]) -> list[str]:
    """The values that a graph reads or returns without computing them first."""
    known = {"", *outer, *graph.initializers, *graph.constants, *(value.name for value in graph.inputs)}
    found = []
    for node in graph.nodes:
        found += [f"{node.title}: nothing before it computes {name!r}" for name in node.inputs if name not in known]
        for subgraph in node.subgraphs.values():
            found += _undefined(subgraph, known)
        known |= set(node.outputs)
    return found + [f"nothing computes the output {value.name!r}" for value in graph.outputs if value.name not in known]


def _lines(model: Model, graph: Graph, name: str) -> list[str]:
    """A summary of the model, as a table."""
    lines = [
        f"{name}: operator sets "
        + ", ".join(f"{node_domain or 'ai.onnx'} {version}" for node_domain, version in _domains(graph))
    ]
    lines += [f"  input   {key}  {value}" for key, value in model.inputs.items()]
    lines += [f"  output  {key}  {value}" for key, value in model.outputs.items()]
    counts = collections.Counter(node.kind for node in graph.walk())
    width = max((len(kind) for kind in counts), default=0)
    for kind, count in sorted(counts.items(), key=lambda item: (not _is_quantized(item[0]), -item[1], item[0])):
        lines.append(f"  {kind:<{width}}  {count:>5}{'  quantized' if _is_quantized(kind) else ''}")
    if model.fused:
        lines.append("  fused: " + ", ".join(f"{count} {operator}" for operator, count in model.fused.items()))
    leaves = jax.tree.leaves(model.params)
    integers = sum(_bytes(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.integer))
    total = sum(map(_bytes, leaves))
    lines.append(f"  parameters: {total:,} bytes in {len(model.params)} tensors, {integers:,} of them in integers")
    return lines


def _domains(graph: Graph) -> list[tuple[str, int]]:
    return sorted({(node.domain, node.version) for node in graph.walk() if node.domain != JQUANT})


def _bytes(leaf: Any) -> int:
    return (
        math.ceil(math.prod(leaf.shape) * jnp.iinfo(leaf.dtype).bits / 8)
        if jnp.issubdtype(leaf.dtype, jnp.integer)
        else leaf.nbytes
    )


def _is_quantized(kind: str) -> bool:
    if kind.startswith(f"{JQUANT}."):
        return True
    name = kind.removeprefix(f"{MICROSOFT}.")
    return any(part in name for part in ("uantize", "Integer", "QLinear", "QGemm", "QAttention", "NBits"))
