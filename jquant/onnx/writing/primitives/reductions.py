"""Sums, extremes and the like along dimensions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jquant import jaxprs
from jquant.errors import ModelError
from jquant.jaxprs import Jaxpr
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, computed, elementwise, is_float, is_unsigned, like, reshape, sliced
from jquant.onnx.writing.table import PRIMITIVES, primitive
from jquant.onnx.writing.tensor import Size, Tensor, known


class Monoid(NamedTuple):
    """An associative function of two values, with what it leaves as it is.

    Attributes:
      operators: its node for bool, and for numbers.
      identity: from a dtype to the value that changes nothing.
      reduction: the node that applies it along dimensions, and the version from which the axes are an operand.
    """

    operators: tuple[str | None, str]
    identity: Callable[[np.dtype], Any]
    reduction: tuple[str, int] | None = None

    def joined(self, builder: Builder, a: Tensor, b: Tensor) -> Tensor:
        operator = self.operators[a.dtype != np.bool_]
        if operator is None:
            raise ModelError("is not written for bool")
        return elementwise(builder, operator, a, b)

    def nothing(self, dtype: np.dtype, shape: Sequence[Size] = ()) -> Tensor:
        return like(Tensor(dtype, tuple(shape)), self.identity(dtype))


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if is_float(dtype) else jax.numpy.iinfo(dtype).min if dtype != np.bool_ else False


def _highest(dtype: np.dtype) -> Any:
    return np.inf if is_float(dtype) else jax.numpy.iinfo(dtype).max if dtype != np.bool_ else True


def _ones(dtype: np.dtype) -> Any:
    return True if dtype == np.bool_ else jax.numpy.iinfo(dtype).max if is_unsigned(dtype) else -1


MONOIDS = {  # by the primitive of two values
    "add": Monoid((None, "Add"), lambda _: 0, ("ReduceSum", 13)),
    "mul": Monoid((None, "Mul"), lambda _: 1, ("ReduceProd", 18)),
    "max": Monoid(("Or", "Max"), _lowest, ("ReduceMax", 18)),
    "min": Monoid(("And", "Min"), _highest, ("ReduceMin", 18)),
    "and": Monoid(("And", "BitwiseAnd"), _ones),
    "or": Monoid(("Or", "BitwiseOr"), lambda _: 0),
    "xor": Monoid(("Xor", "BitwiseXor"), lambda _: 0),
}
_OF_BOOL = {"and": "min", "or": "max"}  # reductions of bool that are extremes


def reduced(builder: Builder, x: Tensor, name: str, axes: Sequence[int]) -> Tensor:
    """A monoid applied along dimensions."""
    if not axes:
        return x
    if x.dtype == np.bool_:
        name = _OF_BOOL.get(name, name)
    monoid = MONOIDS[name]
    shape = tuple(size for dimension, size in enumerate(x.shape) if dimension not in axes)
    if any(x.shape[axis] == 0 for axis in axes):
        return monoid.nothing(x.dtype, shape)
    if monoid.reduction is None or (name == "mul" and not is_float(x.dtype)):
        for axis in axes:
            x = _halved(builder, x, monoid, axis)
        return reshape(builder, x, shape)
    operator, since = monoid.reduction
    type = jax.ShapeDtypeStruct(shape, x.dtype)
    if builder.version >= since:
        return computed(builder, operator, [x, known(np.array(axes, np.int64))], type, since=13, keepdims=0)
    return computed(builder, operator, [x], type, since=13, axes=axes, keepdims=0)


def _halved(builder: Builder, x: Tensor, monoid: Monoid, axis: int) -> Tensor:
    """One element along an axis: the two halves are joined until one is left."""
    if not isinstance(x.shape[axis], int):
        raise ModelError("is not written along a dimension whose size is open")

    def part(start: int, limit: int) -> Tensor:
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[axis], limits[axis] = start, limit
        return sliced(builder, x, starts, limits, [1] * x.ndim)

    rest = []
    while (size := x.shape[axis]) > 1:
        half = size // 2
        if size % 2:
            rest.append(part(size - 1, size))
        x = monoid.joined(builder, part(0, half), part(half, 2 * half))
    return functools.reduce(lambda a, b: monoid.joined(builder, a, b), rest, x)


def _register() -> None:
    primitives = {"sum": "add", "prod": "mul", **{name: name for name in ("max", "min", "and", "or", "xor")}}
    for name, monoid in primitives.items():
        PRIMITIVES[f"reduce_{name}"] = lambda builder, equation, operands, monoid=monoid: reduced(
            builder, operands[0], monoid, [int(axis) for axis in equation.params["axes"]]
        )


_register()


def monoid_of(jaxpr: Jaxpr) -> str:
    """The name of the monoid that a jaxpr of two values is.

    Raises:
      ModelError: it is none of those that are known.
    """
    if len(jaxpr.eqns) == 1 and len(jaxpr.invars) == 2 and set(jaxpr.eqns[0].invars) == set(jaxpr.invars):
        (equation,) = jaxpr.eqns
        if (called := jaxprs.called(equation)) is not None:
            return monoid_of(called.jaxpr)
        if equation.primitive.name in MONOIDS:
            return equation.primitive.name
    raise ModelError("is written for sums, products, extremes and logical functions of one array alone")


@primitive("reduce")
def _reduced_by_function(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    name = monoid_of(jaxprs.closed(equation.params["jaxpr"]).jaxpr)
    x, start = operands  # a single array, as the monoid is one of two values
    result = reduced(builder, x, name, [int(axis) for axis in equation.params["dimensions"]])
    return MONOIDS[name].joined(builder, result, start)


@primitive("argmax", "argmin")
def _index(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """The first one. NaN is passed over, where JAX returns its index."""
    (x,), (axis,) = operands, equation.params["axes"]
    type = equation.outvars[0].aval
    operator = {"argmax": "ArgMax", "argmin": "ArgMin"}[equation.primitive.name]
    index = computed(
        builder, operator, [x], jax.ShapeDtypeStruct(type.shape, np.int64), since=13, axis=int(axis), keepdims=0
    )
    return cast(builder, index, type.dtype)
