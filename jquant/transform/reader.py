"""Finds the sites of a program: reads it equation by equation, into calls, branches and loops."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jquant.errors import TransformError
from jquant.modes import ScaleGranularity
from jquant.transform import jaxprs, weight_graph
from jquant.transform.eligibility import is_embedding, is_table, why_not
from jquant.transform.jaxprs import Equation, Literal, Program
from jquant.transform.layouts import CONVOLUTION, EMBEDDING, MATMUL, Storage, layout_of, rows_of
from jquant.transform.plan import Path, Plan, Site, Unquantized
from jquant.transform.recipe import Activations, Recipe
from jquant.transform.values import Value, after, carried, is_random, unknown, why_unknown
from jquant.transform.weight_graph import Graph, Level, Node

_OTHER_PRODUCTS = "ragged_dot", "ragged_dot_general", "scaled_matmul_wrapper", "custom_call"


def read(program: Program, names: Sequence[str], recipe: Recipe) -> Plan:
    """Finds the sites of a program whose first inputs are the named parameters."""
    reader = _Reader(names, recipe)
    graph, jaxpr = reader.graph, program.jaxpr
    leaves = [_leaf(graph, number, var.aval) for number, var in enumerate(jaxpr.invars[: len(names)])]
    inputs = [Value() for _ in jaxpr.invars[len(names) :]]
    reader.count(reader.read(program, (), (), [*leaves, *inputs]))
    inner = frozenset(path[:length] for path in reader.sites for length in range(1, len(path)))
    used = {recipe.rule_for(name, kind) for name, kind in reader.candidates.items()}
    unused = [pattern for index, (pattern, _) in enumerate(recipe.rules) if index not in used and not _is_any(pattern)]
    if unused:
        known_names = ", ".join(reader.candidates) or "none"
        raise TransformError(
            f"recipe: the pattern {unused[0]!r} matches no site, or only those of an earlier rule; sites: {known_names}"
        )
    return Plan(program, reader.sites, reader.floats, reader.loops, inner, frozenset(reader.shared(inner)))


def _is_any(pattern: str) -> bool:
    """Whether a pattern is for whatever there may be."""
    return pattern in ("*", MATMUL, CONVOLUTION, EMBEDDING)


def _leaf(graph: Graph, number: int, aval: Any) -> Value:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return Value(is_random=True)
    return Value(graph.leaf(number, aval))


class _Reader:
    """One pass over a program, equation by equation, into calls, branches and loops."""

    def __init__(self, names: Sequence[str], recipe: Recipe):
        self.graph = Graph()
        self.sites: dict[Path, Site] = {}
        self.floats: list[Unquantized] = []
        self.loops: dict[Level, int] = {}
        self.candidates: dict[str, str] = {}  # the names of what could be a site, with the kind of each
        self._names, self._recipe = names, recipe
        self._taken: dict[str, int] = {}
        self._stored: dict[Any, str] = {}
        self._inputs: dict[Any, str] = {}
        self._quantized: set[Value] = set()
        self._reads: Counter[Value] = Counter()
        self._places: dict[Value, list[tuple[Path, int]]] = {}

    def count(self, values: Iterable[Value]) -> None:
        """Counts the readers of values."""
        self._reads.update(values)

    def shared(self, inner: frozenset[Path]) -> Iterator[tuple[Path, int]]:
        """The sources of what sites quantize, where something else reads them, too."""
        for value in self._quantized:
            visited = (
                (path, number)
                for path, number in self._places.get(value, ())
                if all(path[:length] in inner for length in range(1, len(path)))
            )
            if self._reads[value] > 1:
                yield from itertools.islice(visited, 1)

    def read(self, program: Program, path: Path, levels: tuple[Level, ...], inputs: Sequence[Value]) -> list[Value]:
        jaxpr, constants = program
        known_values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            known_values[var] = Value(self.graph.constant(constant, var.aval))

        def value(atom: Any) -> Value:
            return Value(self.graph.constant(atom.val, atom.aval)) if isinstance(atom, Literal) else known_values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            outputs = self._equation(equation, (*path, number), levels, list(map(value, equation.invars)))
            known_values.update(zip(equation.outvars, outputs, strict=True))
            for output, value_of_output in enumerate(outputs):
                self._places.setdefault(value_of_output, []).append(((*path, number), output))
        return list(map(value, jaxpr.outvars))

    def _equation(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        name = equation.primitive.name
        called = jaxprs.called(equation)
        if called is not None:
            return self.read(called, path, levels, inputs)
        if name in ("scan", "while", "cond"):
            return getattr(self, f"_{name}")(equation, path, levels, inputs)
        count = len(equation.outvars)
        if any(True for _ in jaxprs.programs(equation)):
            self._list_inside(equation, f"it is inside {name}, whose body is not transformed")
            self.count(inputs)
            return [Value() for _ in range(count)]
        nodes = [value.node for value in inputs]
        all_known = [node for node in nodes if node is not None]
        if len(all_known) == len(nodes) and nodes and not equation.effects and not is_random(equation):
            outputs = [self.graph.operation(equation, all_known, output, levels) for output in range(count)]
            return [Value(node) for node in outputs]
        if not self._site(equation, path, inputs):
            self.count(inputs)
        return [unknown(equation, inputs) for _ in range(count)]

    def _scan(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.loop(equation)
        self.loops[path] = loop.length
        num_constants, num_carry = loop.num_constants, loop.num_carry
        constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
        layers = [self._layer(value, path) for value in inputs[num_constants + num_carry :]]
        carry = carried(loop.body, num_constants, carry)
        outputs = self.read(loop.body, path, (*levels, path), [*constants, *carry, *layers])
        self.count(outputs)
        return [*map(after, carry), *(Value() for _ in outputs[num_carry:])]

    def _layer(self, value: Value, level: Level) -> Value:
        return Value(self.graph.layer(value.node, level)) if value.node is not None else dataclasses.replace(value)

    def _while(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.while_loop(equation)
        self._list(loop.condition.jaxpr, "it is in the condition of a loop")
        inputs = inputs[loop.num_condition_constants :]
        constants, carry = inputs[: loop.num_body_constants], inputs[loop.num_body_constants :]
        carry = carried(loop.body, loop.num_body_constants, carry)
        self.count(self.read(loop.body, path, levels, [*constants, *carry]))
        return list(map(after, carry))

    def _cond(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        branches = [
            self.read(jaxprs.closed(branch), (*path, number), levels, inputs[1:])
            for number, branch in enumerate(equation.params["branches"])
        ]
        for outputs in branches:
            self.count(outputs)
        joined = []
        for values in zip(*branches, strict=True):
            same = all(value.node is not None and value.node is values[0].node for value in values)
            picked = any(value.node is not None and len(value.node.shape) > 1 and value.node.leaves for value in values)
            joined.append(values[0] if same else Value(origin="a branch selects its weights" if picked else None))
        return joined

    def _site(self, equation: Equation, path: Path, inputs: list[Value]) -> bool:
        """Whether an equation is a site. One that could be a site, but is not, is listed."""
        name = equation.primitive.name
        nodes = [value.node for value in inputs[:2]]
        if name == "gather":
            if nodes[0] is not None and is_table(nodes[0]) and is_embedding(equation):
                return self._add(EMBEDDING, equation, path, 0, inputs)
            return False
        if name not in ("dot_general", "conv_general_dilated"):
            if name in _OTHER_PRODUCTS:
                self._float(equation, name, f"{name} has no quantized form here")
            return False
        kind = MATMUL if name == "dot_general" else CONVOLUTION
        operand = 1 if kind == CONVOLUTION or nodes[1] is not None else 0
        node = nodes[operand]
        if node is None:
            self._float(equation, kind, why_unknown(inputs))
        elif not node.leaves:
            self._float(equation, kind, "its weights are not a parameter, but a constant of the function")
        else:
            return self._add(kind, equation, path, operand, inputs)
        return False

    def _add(self, kind: str, equation: Equation, path: Path, operand: int, inputs: list[Value]) -> bool:
        node = inputs[operand].node
        assert node is not None
        weights, dimensions = weight_graph.root(node)
        name = self._name(weights, kind)
        reason = why_not(kind, equation, operand, inputs[1 - operand], weights, self._recipe.smallest)
        scheme = None
        if reason is None:
            self.candidates[name] = kind
            rule = self._recipe.rule_for(name, kind)
            scheme = None if rule is None else self._recipe.rules[rule][1]
            reason = "no pattern of the recipe matches it" if rule is None else "the recipe leaves it in float"
        if scheme is None:
            self._float(equation, kind, reason, name)
            return False
        filter = dimensions if kind == CONVOLUTION else None
        layout = layout_of(kind, equation, operand, dimensions)
        storage = Storage(layout, ScaleGranularity(scheme.weights), scheme.weight_type, filter)
        stored = self._stored.setdefault((weights, storage), name)
        quantizer = scheme.activations, scheme.activation_type, scheme.observer, rows_of(kind, equation, operand, scheme)
        source = self._inputs.setdefault((inputs[1 - operand], weights.levels, quantizer), name)
        given = name, kind, equation, operand, weights, dimensions, storage, stored, source, scheme
        self.sites[path] = Site(*given)
        if kind != EMBEDDING and scheme.activations != Activations.FLOAT:
            self._quantized.add(inputs[1 - operand])
        if source == name:
            self.count(inputs[1 - operand : 2 - operand])
        return True

    def _name(self, weights: Node, kind: str) -> str:
        """The path of the weights among the parameters, and a number if that is taken."""
        name = self._names[weights.leaves[0]] or kind
        number = self._taken[name] = self._taken.get(name, 0) + 1
        return name if number == 1 else f"{name}#{number}"

    def _float(self, equation: Equation, kind: str, reason: str, name: str | None = None) -> None:
        stack = jaxprs.name_stack(equation)
        shape = " x ".join(str(list(var.aval.shape)) for var in equation.invars[:2])
        self.floats.append(Unquantized(name or stack or "-", kind, shape, reason))

    def _list_inside(self, equation: Equation, reason: str) -> None:
        for jaxpr in jaxprs.programs(equation):
            self._list(jaxpr, reason)

    def _list(self, jaxpr: Any, reason: str) -> None:
        """Lists the products of a program that is not searched for sites."""
        for equation in jaxpr.eqns:
            kinds = {"dot_general": MATMUL, "conv_general_dilated": CONVOLUTION}
            kind = kinds.get(equation.primitive.name)
            if kind is not None:
                self._float(equation, kind, reason)
            self._list_inside(equation, reason)
