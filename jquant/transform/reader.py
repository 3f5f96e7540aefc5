"""Finds the sites of a program: reads it equation by equation, into calls, branches and loops."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jquant.errors import TransformError
from jquant.transform import jaxprs, partition, weight_graph
from jquant.transform.eligibility import (
    is_plainly_ragged,
    looks_up,
    why_not,
    why_not_activations,
    why_not_scheme,
)
from jquant.transform.integer_formats import Blocks, Columns
from jquant.transform.jaxprs import Equation, Literal, Program
from jquant.transform.layouts import (
    ACTIVATION_MATMUL,
    CONVOLUTION,
    EMBEDDING,
    MATMUL,
    RAGGED,
    Layout,
    Storage,
    row_dimensions,
    weight_layout,
)
from jquant.transform.plan import ActivationProduct, Path, Plan, Site, Unquantized
from jquant.transform.recipe import Activations, Recipe, Scheme
from jquant.transform.selections import moved, selection
from jquant.transform.stored_weights import WeightFormat
from jquant.transform.values import (
    Value,
    are_activations,
    carry_after,
    carry_inside,
    is_random,
    is_weight,
    unknown,
    unselected,
    why_unknown,
)
from jquant.transform.weight_graph import Graph, Level, Node, Shard

_KINDS = {"dot_general": MATMUL, "conv_general_dilated": CONVOLUTION}
_UNSUPPORTED_PRODUCTS = "ragged_dot", RAGGED, "scaled_matmul_wrapper", "custom_call"


def read(program: Program, names: Sequence[str], recipe: Recipe) -> Plan:
    """Finds the sites of a program whose first inputs are the named parameters."""
    reader = _Reader(names, recipe)
    graph, jaxpr = reader.graph, program.jaxpr
    leaves = [_leaf(graph, number, var.aval) for number, var in enumerate(jaxpr.invars[: len(names)])]
    inputs = [Value() for _ in jaxpr.invars[len(names) :]]
    reader.add_readers(reader.read(program, (), (), [*leaves, *inputs]))
    paths = [*reader.sites, *reader.products, *reader.selecting]
    inner = frozenset(path[:length] for path in paths for length in range(1, len(path)))
    patterns = [pattern for index, (pattern, _) in enumerate(recipe.rules) if index not in reader.candidates.values()]
    unused = [pattern for pattern in patterns if not _may_be_unused(pattern)]
    if unused:
        known_names = ", ".join(reader.candidates) or "none"
        raise TransformError(
            f"recipe: the pattern {unused[0]!r} matches no site, or only those of an earlier rule; sites: {known_names}"
        )
    return Plan(
        program=program,
        sites=reader.sites,
        products=reader.products,
        floats=reader.floats,
        loops=reader.loops,
        selecting=frozenset(reader.selecting),
        inner=inner,
        shared=frozenset(reader.shared(inner)),
    )


def _weights(equation: Equation, operand: int, value: Value) -> tuple[Node, tuple[int | None, ...], tuple[int, ...]]:
    """The weights that an operand is, or is selected from, as a parameter; and `Site.dimensions` and `Site.selected`."""
    chosen = value.selection
    node = value.node if chosen is None else chosen.stack
    assert node is not None
    weights, dimensions = weight_graph.root(node)
    if chosen is not None:
        return (
            weights,
            tuple(None if d is None else dimensions[d] for d in chosen.dimensions),
            tuple(dimensions[d] for d in chosen.selected),
        )
    if equation.primitive.name != RAGGED:
        return weights, dimensions, ()
    (group,) = equation.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
    return weights, tuple(None if d == group else each for d, each in enumerate(dimensions)), (dimensions[group],)


def _may_be_unused(pattern: str) -> bool:
    """Whether a pattern is general: for a whole function, or a kind. Others are meant for sites that exist."""
    return pattern in ("*", MATMUL, CONVOLUTION, EMBEDDING, ACTIVATION_MATMUL)


def _leaf(graph: Graph, number: int, aval: Any) -> Value:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return Value(is_random=True)
    return Value(graph.leaf(number, aval))


class _Reader:
    """The state of one pass over a program."""

    def __init__(self, names: Sequence[str], recipe: Recipe):
        self.graph = Graph()
        self.sites: dict[Path, Site] = {}
        self.products: dict[Path, ActivationProduct] = {}
        self.selecting: set[Path] = set()
        self.floats: list[Unquantized] = []
        self.loops: dict[Level, int] = {}
        self.candidates: dict[str, int | None] = {}  # the names of all eligible equations, with the rule of each
        self._names, self._recipe = names, recipe
        self._shard_map_path: Path | None = None  # of the shard_map around what is read
        self._mesh: Any = None  # of that
        self._num_named: Counter[str] = Counter()  # how many equations have a name
        self._stored: dict[Any, str] = {}  # the first site of weights and their storage
        self._inputs: dict[Any, str] = {}  # the first site of an input and its quantizer
        self._quantized: set[Value] = set()
        self._num_readers: Counter[Value] = Counter()
        self._sources: dict[Value, list[tuple[Path, int]]] = {}  # the outputs of equations that are a value

    def add_readers(self, values: Iterable[Value]) -> None:
        """Counts a reader of each value."""
        self._num_readers.update(values)

    def shared(self, inner: frozenset[Path]) -> Iterator[tuple[Path, int]]:
        """The sources of what sites quantize and other equations read too."""
        for value in self._quantized:
            rewritten = (
                (path, output)
                for path, output in self._sources.get(value, ())
                if all(path[:length] in inner for length in range(1, len(path)))
            )
            if self._num_readers[value] > 1:
                yield from itertools.islice(rewritten, 1)

    def read(self, program: Program, path: Path, levels: tuple[Level, ...], inputs: Sequence[Value]) -> list[Value]:
        """The values of the outputs of a program, whose sites are added."""
        jaxpr, constants = program
        values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            values[var] = Value(self.graph.constant(constant, var.aval))

        def value(atom: Any) -> Value:
            return Value(self.graph.constant(atom.val, atom.aval)) if isinstance(atom, Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            outputs = self._equation(equation, (*path, number), levels, list(map(value, equation.invars)))
            values.update(zip(equation.outvars, outputs, strict=True))
            for index, output in enumerate(outputs):
                self._sources.setdefault(output, []).append(((*path, number), index))
        return list(map(value, jaxpr.outvars))

    def _equation(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        name = equation.primitive.name
        called = jaxprs.called(equation)
        if called is not None:
            return self.read(called, path, levels, inputs)
        if name in ("scan", "while", "cond") or (name == "shard_map" and self._mesh is None):
            return getattr(self, f"_{name}")(equation, path, levels, inputs)
        count = len(equation.outvars)
        if any(True for _ in jaxprs.programs(equation)):
            self._leave_inner_products(equation, f"it is inside {name}, whose body is not transformed")
            self.add_readers(inputs)
            return [Value() for _ in range(count)]
        nodes = [value.node for value in inputs if value.node is not None]
        if nodes and len(nodes) == len(inputs) and not equation.effects and not is_random(equation):
            return [Value(self.graph.operation(equation, nodes, output, levels)) for output in range(count)]
        if not self._site(equation, path, inputs):
            self.add_readers(inputs)
        return [self._unknown(equation, path, inputs) for _ in range(count)]

    def _unknown(self, equation: Equation, path: Path, inputs: list[Value]) -> Value:
        """An output that is not a known value."""
        if looks_up(equation, inputs):
            return Value()
        chosen = None
        for first in inputs[:1]:
            if first.node is not None:
                chosen = selection(equation, path, first.node)
            elif first.selection is not None:
                chosen = moved(equation, path, first.selection)
        return dataclasses.replace(unknown(equation, inputs), selection=chosen)

    def _scan(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.loop(equation)
        self.loops[path] = loop.length
        num_constants, num_carry = loop.num_constants, loop.num_carry
        inputs = [*inputs[:num_constants], *map(unselected, inputs[num_constants:])]
        constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
        layers = [self._layer(value, path) for value in inputs[num_constants + num_carry :]]
        carry = carry_inside(loop.body, num_constants, carry)
        outputs = self.read(loop.body, path, (*levels, path), [*constants, *carry, *layers])
        self.add_readers(outputs)
        return [*map(carry_after, carry), *(Value() for _ in outputs[num_carry:])]

    def _layer(self, value: Value, level: Level) -> Value:
        """The slice of a stacked input in each pass of a loop."""
        return Value(self.graph.layer(value.node, level)) if value.node is not None else dataclasses.replace(value)

    def _while(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.while_loop(equation)
        self._leave_products(loop.condition.jaxpr, "it is in the condition of a loop")
        inputs = inputs[loop.num_condition_constants :]
        constants, carry = inputs[: loop.num_body_constants], list(map(unselected, inputs[loop.num_body_constants :]))
        carry = carry_inside(loop.body, loop.num_body_constants, carry)
        self.add_readers(self.read(loop.body, path, levels, [*constants, *carry]))
        return list(map(carry_after, carry))

    def _shard_map(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        mapped = jaxprs.shard_map(equation)
        shards = []
        for value, spec, var in zip(inputs, mapped.in_specs, mapped.body.jaxpr.invars, strict=True):
            node = value.node
            shards.append(Value() if node is None else Value(self.graph.shard(node, spec, var.aval.shape)))
        self._shard_map_path, self._mesh = path, mapped.mesh
        outputs = self.read(mapped.body, path, levels, shards)
        self._shard_map_path = self._mesh = None
        self.add_readers([*inputs, *outputs])
        return [Value() for _ in outputs]

    def _cond(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        branches = [
            self.read(jaxprs.closed(branch), (*path, number), levels, inputs[1:])
            for number, branch in enumerate(equation.params["branches"])
        ]
        for outputs in branches:
            self.add_readers(outputs)
        joined = []
        for values in zip(*branches, strict=True):
            same = all(value.node is not None and value.node is values[0].node for value in values)
            origin = "a branch selects its weights" if any(map(is_weight, values)) else None
            joined.append(values[0] if same else Value(origin=origin))
        return joined

    def _site(self, equation: Equation, path: Path, inputs: list[Value]) -> bool:
        """Adds an equation to the sites, or to what stays float, and returns whether it is a site."""
        name = equation.primitive.name
        nodes = [value.node for value in inputs[:2]]
        if name == "gather":
            return looks_up(equation, inputs) and self._add(EMBEDDING, equation, path, 0, inputs)
        kind = _KINDS.get(name)
        if name == RAGGED and nodes[1] is not None and is_plainly_ragged(equation):
            kind = MATMUL
        if kind is None:
            if name in _UNSUPPORTED_PRODUCTS:
                self._leave(equation, name, f"{name} has no quantized form here")
            return False
        stacks = [value.selection and value.selection.stack for value in inputs[:2]] if kind == MATMUL else [None, None]
        nodes = [node or stack for node, stack in zip(nodes, stacks, strict=True)]
        operand = 1 if kind == CONVOLUTION or nodes[1] is not None else 0
        node = nodes[operand]
        if kind == MATMUL and are_activations(inputs):
            return self._add_product(equation, path, inputs)
        if node is None:
            self._leave(equation, kind, why_unknown(inputs))
        elif not node.leaves:
            self._leave(equation, kind, "its weights are not a parameter, but a constant of the function")
        else:
            return self._add(kind, equation, path, operand, inputs)
        return False

    def _add(self, kind: str, equation: Equation, path: Path, operand: int, inputs: list[Value]) -> bool:
        """`_site` for an equation with known weights, those of `operand`."""
        input = inputs[1 - operand]
        chosen = inputs[operand].selection
        weights, dimensions, selected = _weights(equation, operand, inputs[operand])
        shard = None if self._mesh is None else self.graph.whole(weights)
        weights = weights if shard is None else shard.whole
        layout = weight_layout(kind, equation, operand, dimensions, selected)
        name = self._name(weights, kind)
        reason = why_not(kind, equation, operand, input, weights, layout, self._recipe.smallest)
        if self._mesh is not None and kind != MATMUL:
            reason = "it is inside shard_map, and no product"
        elif self._mesh is not None and shard is None:
            reason = "it is inside shard_map, where its weights are computed"
        scheme = format = None
        if reason is None:
            scheme, reason = self._scheme(name, kind)
        if scheme is not None:
            format, reason = self._format(kind, scheme, layout, weights, shard)
        if scheme is None or format is None:
            self._leave(equation, kind, reason, name)
            return False
        if kind != CONVOLUTION and isinstance(format, Columns | Blocks):
            obstacle = format.why_not_in_parts(math.prod(weights.shape[dimension] for dimension in layout.contracted))
            if obstacle is not None:
                raise TransformError(f"recipe: k_parts is {scheme.k_parts} for {name}, whose {obstacle}")
        storage = Storage(
            layout=layout,
            format=format,
            filter=tuple(d for d in dimensions if d is not None) if kind == CONVOLUTION else None,
        )
        site = Site(
            name=name,
            kind=kind,
            equation=equation,
            operand=operand,
            weights=weights,
            dimensions=dimensions,
            selected=selected,
            fills=chosen is not None and chosen.fills,
            storage=storage,
            stored=self._stored.setdefault((weights, storage, self._shard_map_path, shard and shard.spec), name),
            input=self._first_reader(
                input, weights.levels, scheme, row_dimensions(kind, equation, 1 - operand, scheme), name
            ),
            scheme=scheme,
            shard_map=self._shard_map_path,
            spec=() if shard is None else shard.spec,
        )
        self.sites[path] = site
        self.selecting.update(chosen.equations if chosen is not None else ())
        if kind != EMBEDDING and scheme.activations != Activations.FLOAT:
            self._quantized.add(input)
        return True

    def _add_product(self, equation: Equation, path: Path, inputs: list[Value]) -> bool:
        """`_site` for a product of two activations."""
        scope = jaxprs.name_stack(equation)
        name = self._numbered(f"{ACTIVATION_MATMUL}/{scope}" if scope else ACTIVATION_MATMUL)
        reason, scheme = why_not_activations(equation, inputs), None
        if reason is None:
            scheme, reason = self._scheme(name, ACTIVATION_MATMUL)
        if scheme is None:
            self._leave(equation, ACTIVATION_MATMUL, reason, name)
            return False
        obstacle = why_not_scheme(scheme)
        if obstacle is not None:
            raise TransformError(f"recipe: the scheme of {name}: {obstacle}")
        rows = [row_dimensions(ACTIVATION_MATMUL, equation, operand, scheme) for operand in (0, 1)]
        left, right = (
            self._first_reader(value, (), scheme, dimensions, f"{name}:{operand}")
            for operand, (value, dimensions) in enumerate(zip(inputs, rows, strict=True))
        )
        self.products[path] = ActivationProduct(name=name, equation=equation, inputs=(left, right), scheme=scheme)
        self._quantized.update(inputs)
        return True

    def _scheme(self, name: str, kind: str) -> tuple[Scheme | None, str]:
        """The scheme of an eligible equation or, if the recipe has none for it, None and the reason."""
        rule = self._recipe.rule_for(name, kind, only_by_kind=kind == ACTIVATION_MATMUL)
        self.candidates[name] = rule
        if rule is not None:
            return self._recipe.rules[rule][1], "the recipe leaves it in float"
        if kind == ACTIVATION_MATMUL:
            return None, f"only the pattern {ACTIVATION_MATMUL} matches it"
        return None, "no pattern of the recipe matches it"

    def _format(
        self, kind: str, scheme: Scheme, layout: Layout, weights: Node, shard: Shard | None
    ) -> tuple[WeightFormat | None, str]:
        """The format of the weights of a site; if a scheme cannot store them, None and the reason."""
        format = scheme.filter_format if kind == CONVOLUTION else scheme.format
        if format is None:
            return None, f"convolutions take INT8 and 8-bit floats without blocks, not {scheme.format.title}"
        if shard is None:
            return format, ""
        if scheme.activations == Activations.STATIC:
            return None, "it is inside shard_map, where ranges are not observed"
        obstacle = partition.why_not(format, layout, weights.shape, shard.spec, self._mesh)
        return (format, "") if obstacle is None else (None, obstacle)

    def _first_reader(
        self, input: Value, levels: tuple[Level, ...], scheme: Scheme, rows: tuple[int, ...] | None, name: str
    ) -> str:
        """The name of the first operand that quantizes the same input in the same way: `name`, if it is the first."""
        quantizer = scheme.activations, scheme.activation_type, scheme.observer, rows
        of_layers = levels if scheme.activations == Activations.STATIC else ()
        first = self._inputs.setdefault((input, of_layers, quantizer), name)
        if first == name:
            self.add_readers([input])
        return first

    def _name(self, weights: Node, kind: str) -> str:
        """The path of the weights among the parameters, with a number if that name is taken."""
        return self._numbered(self._names[weights.leaves[0]] or kind)

    def _numbered(self, name: str) -> str:
        self._num_named[name] += 1
        number = self._num_named[name]
        return name if number == 1 else f"{name}#{number}"

    def _leave(self, equation: Equation, kind: str, reason: str, name: str | None = None) -> None:
        """Lists an equation that stays float."""
        shape = " x ".join(str(list(var.aval.shape)) for var in equation.invars[:2])
        name = name or jaxprs.name_stack(equation) or "-"
        self.floats.append(Unquantized(name=name, kind=kind, shape=shape, reason=reason))

    def _leave_products(self, jaxpr: Any, reason: str) -> None:
        """Lists the products of a program that is not searched for sites."""
        for equation in jaxpr.eqns:
            kind = _KINDS.get(equation.primitive.name)
            if kind is not None:
                self._leave(equation, kind, reason)
            self._leave_inner_products(equation, reason)

    def _leave_inner_products(self, equation: Equation, reason: str) -> None:
        for jaxpr in jaxprs.programs(equation):
            self._leave_products(jaxpr, reason)
