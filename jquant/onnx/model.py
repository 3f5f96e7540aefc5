"""The model of an ONNX file as a JAX function."""

import collections
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jquant import jaxprs
from jquant.errors import ModelError
from jquant.lowering import recording
from jquant.onnx import arguments, summary
from jquant.onnx.graphs.graph import Value, without_arrays
from jquant.onnx.graphs.values import as_parameter, is_narrowed, to_jax
from jquant.onnx.running import branches, limits, packing, recorded_nodes, statics, unsupported
from jquant.onnx.running.evaluate import Evaluation, Watch
from jquant.onnx.running.folding import Folded
from jquant.onnx.running.registry import Converter

_LARGEST_CONSTANT = 1  # elements of a Constant node that does not become a parameter
_Memory = weakref.WeakKeyDictionary
# For each model, and what JAX traces programs under, the types of arguments whose results are known to be small enough.
_checked: "_Memory[Model, _Memory[Hashable, set[Hashable]]]" = _Memory()  # not in the models, which can be pickled


class Model:
    """An ONNX model as a pure function of parameters and inputs; `load` returns it.

    It is static to JAX (hashable, compared by identity). Everything that changes is in its arguments, so
    ``jax.jit(model)(model.params, inputs)`` compiles it once.

    Attributes:
      params: the initializers by name, as arrays, and what follows from them alone, by the names of the values, in place of
        what only that was computed from (``load(..., fold=False)`` keeps the initializers). An integer matrix that only
        products read is a `jquant.PackedMatrix`; one in blocks, which may be an embedding table as well, is a
        `jquant.PackedBlockMatrix`, which holds its scales and zero points: unless something else reads these, they have no
        entries of their own. The parameters can be saved, sharded, donated or replaced.
      inputs, outputs: what the file declares about each input and output, by name.
      fused: by operator, how many are computed in integers instead of in float.
    """

    params: dict[str, Any]
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    fused: dict[str, int]

    def __init__(
        self,
        folded: Folded,
        constants: Mapping[str, np.ndarray],
        overrides: Mapping[str, Converter],
        name: str,
        fused: Mapping[str, int],
    ):
        graph = folded.graph
        self._overrides, self._name, self._origin = dict(overrides), name, folded.origin
        self.fused = dict(fused)
        self.inputs = {value.name: value for value in graph.inputs if value.name not in constants}
        self.outputs = {value.name: value for value in graph.outputs}
        small = {
            key for scope in graph.scopes() for key, array in scope.constants.items() if array.size <= _LARGEST_CONSTANT
        }
        arrays = graph.arrays()
        analysis = statics.Analysis(graph, {*arrays, *constants})
        problems = [*unsupported.problems(graph, self._overrides, constants), *analysis.problems]
        if problems:
            lines = "".join(f"\n  {problem}" for problem in dict.fromkeys(problems))
            raise ModelError(f"{name} is not supported:{lines}")
        self._static = frozenset(analysis.static)
        self._deciding = branches.deciding(graph)
        self._graph = without_arrays(graph)  # the parameters are the only copy
        types = {key: array.dtype for key, array in arrays.items()}
        del graph
        folded.release()
        packed = packing.packed(self._graph, arrays, self._static | small, self._overrides)
        self._known: dict[str, np.ndarray | None] = dict(constants)
        self.params = {}
        for key in types:
            if key in self._static or key in small:
                self._known[key] = arrays[key]
            elif key in packed.matrices:
                self.params[key] = packed.matrices[key]
            elif key in packed.absorbed:
                self._known[key] = None
            else:
                self.params[key] = as_parameter(arrays.pop(key), f"{name}: the initializer {key!r}")
        self._computed = [key for key in folded.results if isinstance(self.params.get(key), jax.Array)]
        operators = collections.Counter(node.qualified_operator for node in folded.origin.nodes)
        self._folding = summary.Folding(operators, *folded.bytes)
        types = {key: dtype for key, dtype in types.items() if key in self.params}
        types |= {key: value.dtype for key, value in self.inputs.items() if value.dtype is not None}
        self._wide = {key: dtype for key, dtype in types.items() if is_narrowed(dtype)}

    def __call__(
        self, params: Mapping[str, Any], inputs: Mapping[str, ArrayLike], *, where: arguments.Where | None = None
    ) -> dict[str, jax.Array]:
        """The outputs by name.

        Args:
          params: the model's `params`, or others of the same structure.
          inputs: an array for every input of the model. 64-bit integers become 32-bit in JAX: the values of NumPy arrays
            must fit.
          where: a boolean mask over the leading dimensions of activations, such as (batch, length). Only positions where it
            is true count in the ranges of dynamic quantization, so padding changes nothing. Or a tuple of such masks of
            different shapes, such as those of an encoder and of a decoder. A mask is matched to its activations by shape, so
            none of its sizes may equal that of another dimension in the same position.

        Raises:
          ModelError: inputs that are missing or unknown, whose dtype or shape is not the one that the file declares, or that
            differ in a size to which the file gives one name; missing parameters; a mask that is not boolean, or whose shape
            no dynamically quantized activation begins with; two masks of one shape.
        """
        return self._run(params, inputs, where, None)

    def watched(self, inputs: Mapping[str, ArrayLike], watch: Watch) -> dict[str, jax.Array]:
        """The outputs, computed node by node with the model's own parameters.

        Args:
          watch: called with every node, its operands and its results. It may return other results to continue with. In
            subgraphs that JAX traces, operands and results are tracers.
        """
        return self._run(self.params, inputs, None, watch)

    def _run(
        self, params: Mapping[str, Any], inputs: Mapping[str, ArrayLike], where: arguments.Where | None, watch: Watch | None
    ) -> dict[str, jax.Array]:
        arguments.check_params(self.params, params, self.inputs)
        values: dict[str, Any] = {**self._known, **params, **arguments.inputs(self.inputs, inputs)}
        masks = arguments.masks(where)
        self._dry_run(values, masks)
        if recording.is_active():
            values |= {key: recorded_nodes.typed(values[key], dtype) for key, dtype in self._wide.items()}
            values |= {key: recorded_nodes.computed(values[key], key, self._origin.of(key)) for key in self._computed}
        evaluation = self._evaluation(masks, limits.budget(values), watch)
        results = self._evaluate(evaluation, values)
        for mask in evaluation.where:
            if mask.shape not in evaluation.matched:
                raise ModelError(
                    f"where has shape {mask.shape}; no dynamically quantized activation has these as its leading dimensions"
                )
        names = (value.name for value in self._graph.outputs)  # a file may list one twice
        return {name: to_jax(value, repr(name)) for name, value in zip(names, results, strict=True)}

    def _evaluation(self, masks: tuple[jax.Array, ...], budget: limits.Budget, watch: Watch | None = None) -> Evaluation:
        return Evaluation(
            overrides=self._overrides,
            static=self._static,
            where=masks,
            watch=watch,
            deciding=self._deciding,
            budget=budget,
        )

    def _evaluate(self, evaluation: Evaluation, values: dict[str, Any]) -> list[Any]:
        # The operators of ONNX broadcast, whatever the caller's JAX settings are.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return evaluation.run(self._graph, values)

    def _dry_run(self, values: Mapping[str, Any], masks: tuple[jax.Array, ...]) -> None:
        """Traces the model, unless JAX traces it anyway, to find results that are too large before anything is computed.

        This takes longer than the call itself, and is done once for arguments of the same types.
        """
        arrays = {name: value for name, value in values.items() if name not in self._known or value is not self._known[name]}
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arrays, masks))):
            return

        def run(arrays: Mapping[str, Any], masks: tuple[jax.Array, ...]) -> None:
            self._evaluate(self._evaluation(masks, limits.budget(values)), {**self._known, **arrays})

        checked = _checked.setdefault(self, _Memory()).setdefault(jaxprs.context(), set())
        types = jaxprs.input_types((arrays, masks))
        if types not in checked:
            jax.eval_shape(run, arrays, masks)
            checked.add(types)

    def __str__(self) -> str:
        return summary.table(
            self._name,
            self._graph,
            inputs=self.inputs,
            outputs=self.outputs,
            params=self.params,
            fused=self.fused,
            folded=self._folding,
        )
