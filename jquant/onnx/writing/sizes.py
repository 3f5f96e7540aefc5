"""Open sizes, which a graph computes from the shapes of its inputs."""

import ast
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.writing.tensor import Size, Tensor, known

_TYPE = jax.ShapeDtypeStruct((1,), np.int64)
_OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}


class Shared(Protocol):
    """What sizes need of the model: by the name of an open size, an input, and which dimension it is."""

    sizes: dict[str, tuple[str, int]]


class Builder(Protocol):
    """What sizes need of the graph that is written."""

    @property
    def shared(self) -> Shared: ...
    @property
    def version(self) -> int: ...
    def node(self, operator: str, operands: Sequence[Any], types: Any, **options: Any) -> Any: ...
    def once(self, key: Hashable, make: Callable[[], Any]) -> Any: ...


def written(builder: Builder, size: Size) -> Tensor:
    """A symbolic size as a tensor of one element."""
    return _written(builder, _parsed(str(size)).body)


def _parsed(text: str) -> ast.Expression:
    """The text of a symbolic size: an expression of Python but for the sign of powers, in which names are sizes."""
    return ast.parse(text.replace("^", "**"), mode="eval")


def _written(builder: Builder, node: ast.expr) -> Tensor:
    def operand(node: ast.expr) -> Tensor:
        return builder.once(("size", ast.unparse(node)), lambda: _written(builder, node))

    if isinstance(node, ast.Constant):
        return known(np.array([node.value], np.int64))
    if isinstance(node, ast.Name):
        return _of_input(builder, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return builder.node("Neg", [operand(node.operand)], _TYPE, since=13, label="size")
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = [operand(node.left), operand(node.right)]
        return builder.node(_OPERATORS[type(node.op)], sides, _TYPE, since=14, label="size")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = operand(node.left), int(ast.unparse(node.right))
        power = base
        for _ in range(exponent - 1):
            power = builder.node("Mul", [power, base], _TYPE, since=14, label="size")
        return power
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        a, b = map(operand, node.args)
        match node.func.id:
            case "max":
                return builder.node("Max", [a, b], _TYPE, since=13, label="size")
            case "min":
                return builder.node("Min", [a, b], _TYPE, since=13, label="size")
            case "mod":
                return builder.node("Mod", [a, b], _TYPE, since=13, label="size")
            case "floordiv":  # Div rounds toward zero; less the remainder, whose sign is that of the divisor, it is exact
                rest = builder.node("Mod", [a, b], _TYPE, since=13, label="size")
                return builder.node(
                    "Div", [builder.node("Sub", [a, rest], _TYPE, since=14, label="size"), b], _TYPE, since=14, label="size"
                )
    raise ModelError(f"the size {ast.unparse(node)} is not supported")


def _of_input(builder: Builder, name: str) -> Tensor:
    """An open size, from the shape of an input that has it; or that has a multiple of it and a number."""
    if name not in builder.shared.sizes:
        return _solved(builder, name)
    return _dimension(builder, *builder.shared.sizes[name], name)


def _solved(builder: Builder, name: str) -> Tensor:
    for text, (input, dimension) in builder.shared.sizes.items():
        line = _line(text, name)
        if line is None:
            continue
        factor, constant = (known(np.array([number], np.int64)) for number in line)
        whole = _dimension(builder, input, dimension, f"{name}_of")
        difference = builder.node("Sub", [whole, constant], _TYPE, since=14, label="size")
        return builder.node("Div", [difference, factor], _TYPE, since=14, label=name)
    raise ModelError(f"no input has the size {name}, or a multiple of it")


def _line(text: str, name: str) -> tuple[int, int] | None:
    """Factor and constant of a size that is a multiple of another, and a number; None if it is something else."""
    expression = _parsed(text)
    if {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} != {name}:
        return None
    program = compile(expression, "size", "eval")
    at = [eval(program, {"__builtins__": {}, name: number}) for number in range(4)]  # the text is that of a symbolic size
    factor = at[1] - at[0]
    return (factor, at[0]) if factor and all(at[k] == at[0] + k * factor for k in range(4)) else None


def _dimension(builder: Builder, input: str, dimension: int, name: str) -> Tensor:
    source = Tensor(np.dtype(np.int64), (), name=input)
    if builder.version >= 15:
        return builder.node("Shape", [source], _TYPE, since=15, start=dimension, end=dimension + 1, label=name)
    shape = builder.node("Shape", [source], _TYPE, since=1, label="shape")
    return builder.node("Gather", [shape, known(np.array([dimension], np.int64))], _TYPE, since=13, axis=0, label=name)
