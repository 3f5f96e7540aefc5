"""Reads a program equation by equation, into calls, branches and loops, and finds its sites."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jquant import jaxprs
from jquant.errors import TransformError
from jquant.jaxprs import Equation, Literal, Path, Program
from jquant.lowering import recording
from jquant.transform.program.collector import Collector, Inside
from jquant.transform.program.eligibility import looks_up
from jquant.transform.program.layouts import ACTIVATION_MATMUL, CONVOLUTION, EMBEDDING, MATMUL
from jquant.transform.program.plan import Plan
from jquant.transform.program.selections import moved, selection
from jquant.transform.program.values import (
    Known,
    Origin,
    carry_after,
    carry_inside,
    is_known,
    is_weight,
    nodes_of,
    unknown,
    unselected,
)
from jquant.transform.program.weight_graph import Level, WeightGraph
from jquant.transform.recipes.recipe import Recipe


def read(program: Program, names: Sequence[str], recipe: Recipe) -> Plan:
    """Finds the sites of a program whose first inputs are the named parameters."""
    graph = WeightGraph()
    collector = Collector(graph, names, recipe)
    reader, jaxpr = _Reader(graph, collector), program.jaxpr
    leaves = [_leaf(graph, number, var.aval) for number, var in enumerate(jaxpr.invars[: len(names)])]
    inputs = [Known() for _ in jaxpr.invars[len(names) :]]
    collector.trails.name([*leaves, *inputs])
    collector.add_readers(reader.read(program, (), (), [*leaves, *inputs]))
    collector.share_tables()
    paths = [*collector.sites, *collector.products, *collector.selecting]
    inner = frozenset(path[:length] for path in paths for length in range(1, len(path)))
    used = collector.candidates.values()
    patterns = [pattern for index, (pattern, _) in enumerate(recipe.rules) if index not in used]
    unused = [pattern for pattern in patterns if not _may_be_unused(pattern)]
    if unused:
        known_names = ", ".join(collector.candidates) or "none"
        raise TransformError(
            f"recipe: the pattern {unused[0]!r} matches no site, or only those of an earlier rule; sites: {known_names}"
        )
    return Plan(
        program=program,
        sites=collector.sites,
        products=collector.products,
        floats=[*collector.floats, *collector.unread_selections()],
        loops=reader.loops,
        selecting=frozenset(collector.selecting),
        inner=inner,
        shared=frozenset(collector.shared(inner)),
    )


def _may_be_unused(pattern: str) -> bool:
    """Whether a pattern is general: for a whole function, or a kind. Others are meant for sites that exist."""
    return pattern in ("*", MATMUL, CONVOLUTION, EMBEDDING, ACTIVATION_MATMUL)


def _leaf(graph: WeightGraph, number: int, aval: Any) -> Known:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return Known(is_random=True)
    return Known(graph.leaf(number, aval))


class _Reader:
    """The state of one pass over a program."""

    def __init__(self, graph: WeightGraph, collector: Collector):
        self.loops: dict[Level, int] = {}
        self._graph, self._collector, self._trails = graph, collector, collector.trails

    def read(self, program: Program, path: Path, levels: tuple[Level, ...], inputs: Sequence[Known]) -> list[Known]:
        """The values of the outputs of a program, whose sites are added."""
        jaxpr, constants = program
        values: dict[Any, Known] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            values[var] = Known(self._graph.constant(constant, var.aval))

        def value(atom: Any) -> Known:
            return Known(self._graph.constant(atom.val, atom.aval)) if isinstance(atom, Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            inputs = list(map(value, equation.invars))
            outputs = self._equation(equation, (*path, number), levels, inputs)
            values.update(zip(equation.outvars, outputs, strict=True))
            for index, output in enumerate(outputs):
                self._trails.add(output, equation, index, inputs)
                self._collector.add_source(output, (*path, number), index)
        return list(map(value, jaxpr.outvars))

    def _equation(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Known]) -> list[Known]:
        name = equation.primitive.name
        called = jaxprs.called(equation)
        if called is not None:
            return self.read(called, path, levels, inputs)
        rule = self._RULES.get(name)
        if rule is not None and (name != "shard_map" or self._collector.inside is None):
            return rule(self, equation, path, levels, inputs)
        call = recording.call_of(equation, inputs)
        if call is not None and all(value.node is not None for value in inputs):  # as where calls are not recorded
            return self.read(jaxprs.closed(call.formula), path, levels, inputs)
        count = len(equation.outvars)
        if any(True for _ in jaxprs.programs(equation)):
            self._collector.leave_inner_products(equation, f"it is inside {name}, whose body is not transformed")
            self._collector.add_readers(inputs)
            return [Known() for _ in range(count)]
        nodes, outputs = nodes_of(equation, inputs), []
        if nodes is not None:
            outputs = [self._graph.operation(equation, nodes, output, levels) for output in range(count)]
            if is_known(equation, inputs, nodes):
                return list(map(Known, outputs))
        if self._collector.add(equation, path, inputs):
            outputs = []
        else:
            self._collector.add_readers(inputs)
        made = outputs if outputs and not outputs[0].leaves else (None,) * count
        return [dataclasses.replace(self._unknown(equation, path, inputs), made=node) for node in made]

    def _unknown(self, equation: Equation, path: Path, inputs: list[Known]) -> Known:
        """An output that is not a known value."""
        if looks_up(equation, inputs):
            return Known()
        first, chosen = inputs[0] if inputs else Known(), None
        if first.node is not None:
            chosen = selection(equation, path, first.node)
        elif first.selection is not None:
            chosen = moved(equation, path, first.selection)
        return dataclasses.replace(unknown(equation, path, inputs), selection=chosen)

    def _scan(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Known]) -> list[Known]:
        loop = jaxprs.loop(equation)
        self.loops[path] = loop.length
        num_constants, num_carry = loop.num_constants, loop.num_carry
        outer, inputs = inputs, [*inputs[:num_constants], *map(unselected, inputs[num_constants:])]
        constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
        layers = [self._layer(value, path) for value in inputs[num_constants + num_carry :]]
        carry = carry_inside(loop.body, num_constants, carry)
        self._trails.enter("scan", [*constants, *carry, *layers], outer)
        outputs = self.read(loop.body, path, (*levels, path), [*constants, *carry, *layers])
        self._collector.add_readers(outputs)
        return [*map(carry_after, carry), *(Known() for _ in outputs[num_carry:])]

    def _layer(self, value: Known, level: Level) -> Known:
        """The slice of a stacked input in each iteration of a loop."""
        if value.node is not None:
            return Known(self._graph.layer(value.node, level))
        return dataclasses.replace(value, made=None if value.made is None else self._graph.layer(value.made, level))

    def _while(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Known]) -> list[Known]:
        loop = jaxprs.while_loop(equation)
        self._collector.leave_products(loop.condition.jaxpr, "it is in the condition of a loop")
        inputs = inputs[loop.num_condition_constants :]
        constants, carry = inputs[: loop.num_body_constants], list(map(unselected, inputs[loop.num_body_constants :]))
        carry = carry_inside(loop.body, loop.num_body_constants, carry)
        self._trails.enter("while", [*constants, *carry], inputs)
        self._collector.add_readers(self.read(loop.body, path, levels, [*constants, *carry]))
        return list(map(carry_after, carry))

    def _shard_map(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Known]) -> list[Known]:
        mapped = jaxprs.shard_map(equation)
        shards = []
        for value, spec, var in zip(inputs, mapped.in_specs, mapped.body.jaxpr.invars, strict=True):
            node = value.node
            shards.append(Known() if node is None else Known(self._graph.shard(node, spec, var.aval.shape)))
        self._trails.enter("shard_map", shards, inputs)
        self._collector.inside = Inside(path, mapped.mesh)
        outputs = self.read(mapped.body, path, levels, shards)
        self._collector.inside = None
        self._collector.add_readers([*inputs, *outputs])
        return [Known() for _ in outputs]

    def _cond(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Known]) -> list[Known]:
        branches = [
            self.read(jaxprs.closed(branch), (*path, number), levels, inputs[1:])
            for number, branch in enumerate(equation.params["branches"])
        ]
        for outputs in branches:
            self._collector.add_readers(outputs)
        joined = []
        for values in zip(*branches, strict=True):
            same = all(value.node is not None and value.node is values[0].node for value in values)
            origin = Origin("a branch selects its weights", None) if any(map(is_weight, values)) else None
            joined.append(values[0] if same else Known(origin=origin))
        return joined

    _RULES: ClassVar[Mapping[str, Callable[..., list[Known]]]] = {
        "cond": _cond,
        "scan": _scan,
        "shard_map": _shard_map,
        "while": _while,
    }
