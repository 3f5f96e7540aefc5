"""Compares an exported model with the function that it was written from."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx

from jquant.calibration.batches import with_progress
from jquant.errors import ModelError, shown
from jquant.onnx.compare.measures import decibels_of, deviation_of, is_integer, same_argmax, ulps_of
from jquant.onnx.compare.node_by_node import Row, nodes, table
from jquant.onnx.graphs.values import fitted
from jquant.onnx.onnxruntime_session import run, session
from jquant.onnx.reading import files
from jquant.onnx.writing import signature

_NAME = "compare.exported"
_STEPS = 5  # two sessions, the function, and a run of each session
_HINT = (
    "floats may differ in their last bits, and integers that follow from them; node_by_node=True compares each node alone"
)


@dataclasses.dataclass(frozen=True)
class ExportedOutput:
    """The comparison of one output of an exported model with the result of the function.

    Attributes:
      name, dtype: those in the model.
      optimized: whether all of onnxruntime's optimizations were on; else, none was.
      elements, different: how many elements were compared, and how many of them differ.
      deviation, ulps: the largest difference of floats, absolute and in units of the last place; infinite if only one of two
        is NaN, or if the shapes differ. 0 for integers. `ulps` is NaN, and printed as "-", if two floats differ in sign, or
        by more than a factor of 2, as numbers near 0 may.
      snr: the signal-to-noise ratio of floats, in dB, ``10 * log10(sum(y**2) / sum((y - y_model)**2))``; infinite if
        there is no noise. NaN for integers.
      argmax: the share of positions at which the largest element of the last axis is the same.
    """

    name: str
    dtype: np.dtype
    optimized: bool
    elements: int
    different: int
    deviation: float
    ulps: float
    snr: float
    argmax: float

    @property
    def is_integer(self) -> bool:
        """Whether its elements are integers, which have to be equal."""
        return is_integer(np.empty(0, self.dtype))


@dataclasses.dataclass(frozen=True)
class Exported:
    """The comparison of an exported model with its function. It prints as a table, and says how to go on if outputs differ.

    Attributes:
      outputs: each output, with onnxruntime's optimizations off and on.
      nodes: by operator, the nodes of the model as jquant computes them, given the operands that onnxruntime had; None if
        they were not asked for.
    """

    outputs: tuple[ExportedOutput, ...]
    nodes: tuple[Row, ...] | None = None

    @property
    def different(self) -> int:
        """How many integers differ, in outputs and in nodes."""
        outputs = sum(output.different for output in self.outputs if output.is_integer)
        return outputs + sum(row.different for row in self.nodes or ())

    def __str__(self) -> str:
        width = max(6, *(len(output.name) for output in self.outputs)) if self.outputs else 6
        lines = [
            f"  {'output':<{width}}  {'optimizations':<13}  {'type':<8}  {'elements':>11}  {'different':>11}"
            f"  {'largest deviation':>17}  {'in ulps':>11}  {'SNR, dB':>8}  {'same argmax':>11}"
        ]
        for each in self.outputs:
            level = "all" if each.optimized else "none"
            counts = f"{each.elements:>11,}  {each.different:>11,}"
            ulps = "-" if math.isnan(each.ulps) else f"{each.ulps:,.0f}"
            measures = f"{each.deviation:.3g}", ulps, f"{each.snr:.2f}"
            floats = "  ".join(map("{:>{}}".format, ("", "", "") if each.is_integer else measures, (17, 11, 8)))
            lines.append(f"  {each.name:<{width}}  {level:<13}  {each.dtype!s:<8}  {counts}  {floats}  {each.argmax:>11.2%}")
        if self.nodes is not None:
            lines += ["node by node, each given the operands that onnxruntime had", table(self.nodes)]
        elif any(each.different for each in self.outputs):
            lines.append(_HINT)
        return "\n".join(lines)


def exported(
    function: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    model: files.Source,
    *,
    node_by_node: bool = False,
    progress: bool = False,
) -> Exported:
    """Compares a model that `jquant.onnx.export` wrote with its function, through onnxruntime on the CPU.

    Floats may differ in their last bits where onnxruntime computes a float operator, such as Exp or a sum, in its own way.
    Integers that are quantized from such floats may then differ by 1, and many of a tensor may if such a float is the end of
    its dynamic range; in a deep network, such differences grow. With `node_by_node`, each node gets the same operands on
    both sides, and no integer should differ.

    Args:
      function: the exported function. It is called as it is: pass ``jax.jit(function)`` to compare the compiled program, in
        which XLA may round floats once where the function, and the model, round twice.
      params: the first argument of the function; None for a function that has no parameters.
      inputs: the other arguments of the function, in a list.
      model: what `jquant.onnx.export` returned, or where it has been saved.
      node_by_node: whether to compare each node of the model, too.
      progress: whether to show a progress bar, and one of the nodes, which need tqdm.

    Raises:
      ImportError: onnxruntime is not installed, or `progress` is set, but tqdm is not.
      ModelError: arguments that are not those of the model; onnxruntime does not accept the model.

    Example:
      >>> import numpy as np, jquant.onnx
      >>> function = jquant.dynamic_quantize_linear
      >>> x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
      >>> comparison = jquant.onnx.compare.exported(function, None, [x], jquant.onnx.export(function, x))
      >>> comparison.different
      0
    """
    if isinstance(inputs, Mapping) or not isinstance(inputs, Sequence):
        raise ModelError(f"inputs is a {type(inputs).__name__}; it must be a list of the arguments after the parameters")
    if not isinstance(progress, bool):
        raise ModelError(f"progress is {shown(progress)}; it must be True or False")
    done = _shown_step() if progress else lambda value: value
    proto = files.read(model).whole()
    arguments = tuple(inputs) if params is None else (params, *inputs)
    feeds = _feeds(function, arguments, proto)
    levels = {optimized: done(session(proto.SerializeToString(), optimized=optimized)) for optimized in (False, True)}
    result = done(jax.block_until_ready(function(*arguments)))
    leaves = signature.of_result(function, result)
    values = [np.asarray(leaf.value) for leaf in signature.in_order(leaves, leaves)]
    names = [value.name for value in proto.graph.output]
    if len(names) != len(values):
        raise ModelError(
            f"the function returns {len(values)} arrays; the model has {len(names)} outputs, {', '.join(names)}"
        )
    actual = {optimized: done(run(level, feeds)) for optimized, level in levels.items()}
    outputs = [
        _output(name, actual[optimized][name], expected, optimized)
        for name, expected in zip(names, values, strict=True)
        for optimized in levels
    ]
    rows = tuple(nodes(proto, feeds, progress=_shown_nodes if progress else None)) if node_by_node else None
    return Exported(tuple(outputs), rows)


def _shown_step() -> Callable[[Any], Any]:
    """Begins a progress bar of the steps; returns the identity of their results, which goes on to the next one."""
    steps = iter(with_progress(_NAME, range(_STEPS), "comparing", "step"))
    next(steps)

    def done(value: Any) -> Any:
        next(steps, None)
        return value

    return done


def _shown_nodes(numbers: Iterable[Any], count: int) -> Iterable[Any]:
    return with_progress(_NAME, numbers, "comparing", "node", count)


def _feeds(function: Callable[..., Any], arguments: tuple[Any, ...], proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The inputs of the model by name, in its types.

    Raises:
      ModelError: arguments that do not have the number, the types or the sizes that the model declares.
    """
    leaves = signature.of_arguments(function, arguments)[signature.parameters(arguments) :]
    declared, leaves = list(proto.graph.input), signature.in_order(leaves, leaves)
    if len(leaves) != len(declared):
        names = ", ".join(value.name for value in declared)
        raise ModelError(f"the arguments hold {len(leaves)} inputs; the model has {len(declared)}, {names}")
    return {value.name: _feed(leaf, value) for leaf, value in zip(leaves, declared, strict=True)}


def _feed(leaf: signature.Leaf, declared: onnx.ValueInfoProto) -> np.ndarray:
    """An argument in the type of an input.

    Raises:
      ModelError: an argument of another type, apart from the width of integers, or of other sizes.
    """
    tensor = declared.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    array = np.asarray(leaf.value)
    if array.dtype.kind == "f":
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))  # as JAX does when the function is called
    sizes = [each.dim_value if each.HasField("dim_value") else each.dim_param for each in tensor.shape.dim]
    has_type = array.dtype == dtype or {array.dtype.kind, dtype.kind} <= {"i", "u"}
    fits = len(sizes) == array.ndim and all(
        isinstance(size, str) or size == actual for size, actual in zip(sizes, array.shape, strict=True)
    )
    if not (has_type and fits):
        actual = f"{array.dtype}{list(array.shape)}"
        expected = f"{dtype}[{', '.join(map(str, sizes))}]"
        raise ModelError(f"the argument {leaf.name} is {actual}; the model takes {declared.name}, {expected}")
    return fitted(array, dtype, f"the argument {leaf.name}")


def _output(name: str, actual: Any, expected: np.ndarray, optimized: bool) -> ExportedOutput:
    integers = is_integer(actual)
    if actual.shape != expected.shape:
        different = actual.size
    elif integers:
        different = int(np.count_nonzero(actual.astype(np.int64) != expected.astype(np.int64)))
    else:
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        different = int(np.count_nonzero(~same))
    return ExportedOutput(
        name=name,
        dtype=actual.dtype,
        optimized=optimized,
        elements=actual.size,
        different=different,
        deviation=0.0 if integers else deviation_of(actual, expected),
        ulps=0.0 if integers else ulps_of(actual, expected),
        snr=math.nan if integers else decibels_of(actual, expected),
        argmax=same_argmax(actual, expected),
    )
