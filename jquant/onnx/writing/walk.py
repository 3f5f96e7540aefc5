"""Writes the equations of a jaxpr as nodes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jquant import jaxprs
from jquant.errors import ModelError
from jquant.jaxprs import Literal, Program
from jquant.lowering import recording
from jquant.onnx.writing import refused
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.table import PRIMITIVES, WRITERS
from jquant.onnx.writing.tensor import Tensor, is_static, known


def write(builder: Builder, program: Program, operands: Sequence[Tensor]) -> list[Tensor]:
    """The results of a program.

    What cannot be written is noted in ``builder.shared.unsupported``; its results are values that no node computes.
    """
    jaxpr, constants = program
    values = dict(zip(jaxpr.invars, operands, strict=True))
    values |= zip(jaxpr.constvars, map(known, constants), strict=True)

    def value(atom: Any) -> Tensor:
        if not isinstance(atom, Literal):
            return values[atom]
        type: Any = atom.aval
        return known(np.asarray(atom.val, type.dtype))

    for equation in jaxpr.eqns:
        with builder.scope(jaxprs.name_stack(equation), source=functools.partial(jaxprs.source, equation)):
            results = _results(builder, equation, [value(atom) for atom in equation.invars])
        for variable, result in zip(equation.outvars, results, strict=True):
            expected = _array_type(variable.aval)
            assert result.dtype == expected.dtype, equation
            assert [*map(str, result.shape)] == [*map(str, expected.shape)], equation
            values[variable] = result
    return [value(atom) for atom in jaxpr.outvars]


def traced(builder: Builder, function: Callable[..., Any], *operands: Tensor) -> Tensor:
    """The array that a function of arrays returns for these operands, written as JAX traces it."""
    with recording.active():
        jaxpr = jax.make_jaxpr(function)(*(operand.type for operand in operands))
    (result,) = write(builder, jaxprs.closed(jaxpr), operands)
    return result


def _results(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    call = recording.call_of(equation, operands)
    if call is not None:
        return _operator(builder, call, [variable.aval for variable in equation.outvars])
    body = jaxprs.called(equation)
    if body is not None:
        return write(builder, body, operands)
    name = equation.primitive.name
    try:
        is_folded = all(operand.is_known for operand in operands) and _folds(equation)
        refused.check(equation, is_folded=is_folded)
        if is_folded:
            return _folded(equation, operands)
        types = [variable.aval for variable in equation.outvars]
        if types and all(is_static(type.shape) and 0 in type.shape for type in types):
            return [known(np.zeros(type.shape, type.dtype)) for type in types]
        rule = PRIMITIVES.get(name)
        if rule is None:
            raise ModelError(refused.reason(name) or "is not supported")
        results = rule(builder, equation, operands)
    except ModelError as error:
        builder.shared.unsupported[f"{name}{builder.source}: {error}"] = None
        return [builder.result(_array_type(variable.aval), name) for variable in equation.outvars]
    return [results] if isinstance(results, Tensor) else list(results)


def _operator(builder: Builder, call: recording.RecordedCall, types: list[Any]) -> Sequence[Tensor]:
    """The results of an operator: those of the node that says the same, or else of its formula."""
    for entry in WRITERS.get(call.operator, ()):
        if not builder.allows(entry.domain):
            continue
        results = builder.attempt(lambda entry=entry: entry.function(builder, types, **call.arguments, **call.static))
        if results is not None:
            return jax.tree.leaves(results, is_leaf=lambda leaf: isinstance(leaf, Tensor))
    leaves = jax.tree.leaves(dict(call.arguments))
    if any(entry.keeps_weights for entry in WRITERS.get(call.operator, ())):
        leaves = [_kept(builder, leaf) for leaf in leaves]
    return write(builder, jaxprs.closed(call.formula), leaves)


_FOLDED_WEIGHTS = 256  # bytes


def _kept(builder: Builder, value: Tensor) -> Tensor:
    """Weights of 8 bits as an initializer that nodes read: the model would be larger with what is computed of them."""
    is_kept = value.known is not None and value.dtype in (np.int8, np.uint8) and value.known.nbytes > _FOLDED_WEIGHTS
    return Tensor(value.dtype, value.shape, name=builder.name(value)) if is_kept else value


# A compiled program would compute all steps of a loop at once; an open size has no operands, and is not known.
_NOT_FOLDED = frozenset({"scan", "while", "cond", "dim_as_value"})
_REPEATING = frozenset({"broadcast_in_dim", "iota"})


def _folds(equation: Any) -> bool:
    """Whether the results of an equation with known operands are known as well."""
    if equation.effects or equation.primitive.name in _NOT_FOLDED:
        return False
    return all(is_static(_array_type(variable.aval).shape) for variable in equation.outvars)


def _array_type(aval: Any) -> Any:
    """The type of an array, or one in place of a token's, which has none."""
    return aval if hasattr(aval, "dtype") else jax.ShapeDtypeStruct((), np.bool_)


def _folded(equation: Any, operands: list[Tensor]) -> list[Tensor]:
    """The results, computed by JAX one equation at a time, so that each rounds once."""
    labels = {operand.label for operand in operands if operand.label}
    label = labels.pop() if len(labels) == 1 else ""
    if equation.primitive.name in _REPEATING:
        return [_repeated(equation, *operands)]
    with jax.default_device(jax.devices("cpu")[0]), jax.numpy_dtype_promotion("standard"):
        results = jaxprs.bind(equation, *(operand.known for operand in operands))
    return [known(result, label) for result in results]


def _repeated(equation: Any, operand: Tensor | None = None) -> Tensor:
    """An array that is broadcast, or counts along a dimension, without memory for the elements that repeat others."""
    shape = equation.params["shape"]
    if operand is None:
        dimensions = (equation.params["dimension"],)
        operand = known(np.arange(shape[dimensions[0]]).astype(equation.outvars[0].aval.dtype))
    else:
        dimensions = equation.params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for dimension, size in zip(dimensions, operand.shape, strict=True):
        sizes[dimension] = size
    assert operand.known is not None
    return known(np.broadcast_to(operand.known.reshape(sizes), shape), operand.label)
