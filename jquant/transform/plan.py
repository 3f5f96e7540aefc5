"""Where a function multiplies by its parameters: the sites, and the products that are none, with the reason."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import DescriptorError
from jquant.modes import ScaleGranularity
from jquant.transform import jaxprs, known
from jquant.transform.jaxprs import Equation, Literal, Program
from jquant.transform.known import Graph, Level, Node
from jquant.transform.recipe import Activations, Recipe, Scheme

Path = tuple[Any, ...]  # the numbers of the equations that lead to one, and of the branches

PRODUCT, CONVOLUTION, LOOK_UP = "product", "convolution", "look-up"
_OTHER_PRODUCTS = "ragged_dot", "ragged_dot_general", "scaled_matmul_wrapper", "custom_call"
_PICKING = "gather", "dynamic_slice", "select_n", "ragged_dot", "ragged_dot_general"
_MOVING = "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy", "rev"


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """What is known of a value while a program is read.

    Attributes:
      node: if it depends on nothing but parameters and constants.
      is_random: whether it depends on a random key among the parameters, and on no input.
      is_flag: whether it says yes or no, as 0 and 1: a row of these picks rows of the weights.
      origin: why it is no known value, if it comes from parameters nearly alone.
    """

    node: Node | None = None
    is_random: bool = False
    is_flag: bool = False
    origin: str | None = None


class Layout(NamedTuple):
    """The dimensions of weights as those of a matrix. Of a filter, what is kept is the dimension of the filters."""

    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    kept: tuple[int, ...]


class Storage(NamedTuple):
    """How weights are stored, of which equal weights are stored once.

    Attributes:
      layout: what shares a scale: what is contracted.
      scales: whether it does, or everything.
      weight_type: the integers, which may be fewer than those of int8.
      filter: the dimensions of a filter in the order of the operand; None for a matrix.
    """

    layout: Layout
    scales: ScaleGranularity
    weight_type: str
    filter: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A product, a convolution or a look-up whose weights depend on the parameters alone.

    Attributes:
      name: the path of the weights among the parameters, with a number where that is taken.
      kind: ``"product"``, ``"convolution"`` or ``"look-up"``.
      equation: what the function computes there.
      operand: which operand the weights are.
      weights: them as the parameters hold them, which are quantized.
      dimensions: of each dimension of the operand, which one of `weights` it is.
      storage: how the weights are stored.
      stored: the name of the first site that stores the same.
      input: the name of the first site that quantizes the same input in the same way.
      scheme: how it is quantized.
    """

    name: str
    kind: str
    equation: Equation
    operand: int
    weights: Node
    dimensions: tuple[int, ...]
    storage: Storage
    stored: str
    input: str
    scheme: Scheme

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.weights.levels

    @property
    def input_operand(self) -> int:
        return 1 - self.operand

    @property
    def input_type(self) -> Any:
        return self.equation.invars[self.input_operand].aval

    @property
    def output_type(self) -> Any:
        return self.equation.outvars[0].aval

    @property
    def has_static_input(self) -> bool:
        return self.kind != LOOK_UP and self.scheme.activations == Activations.STATIC


class Float(NamedTuple):
    """A product that stays float, and why."""

    name: str
    kind: str
    shape: str
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The sites of a program.

    Attributes:
      program: what was read.
      sites: by the path to the equation.
      floats: the products that stay float.
      loops: the lengths of the loops around sites.
      inner: the paths to all equations that have a site inside.
      shared: the outputs of equations, by path and number, that a site quantizes and something else reads.
    """

    program: Program
    sites: dict[Path, Site]
    floats: list[Float]
    loops: dict[Level, int]
    inner: frozenset[Path]
    shared: frozenset[tuple[Path, int]]

    def stored(self) -> list[Site]:
        """The sites that store weights, which others may read as well."""
        return [site for site in self.sites.values() if site.stored == site.name]

    def inputs(self) -> list[Site]:
        """The sites whose inputs are quantized by a range of their own."""
        return [site for site in self.sites.values() if site.has_static_input and site.input == site.name]

    def sizes(self, site: Site) -> tuple[int, ...]:
        """How many layers each level of a site has."""
        return tuple(self.loops[level] for level in site.levels)


def read(program: Program, names: Sequence[str], recipe: Recipe) -> Plan:
    """Finds the sites of a program whose first inputs are the parameters of those names."""
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
        raise DescriptorError(
            f"recipe: the pattern {unused[0]!r} matches no site, or a rule before it does; sites: {known_names}"
        )
    return Plan(program, reader.sites, reader.floats, reader.loops, inner, frozenset(reader.shared(inner)))


def _is_any(pattern: str) -> bool:
    """Whether a pattern is for whatever there may be."""
    return pattern in ("*", PRODUCT, CONVOLUTION, LOOK_UP)


def _leaf(graph: Graph, number: int, aval: Any) -> Value:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return Value(is_random=True)
    return Value(graph.leaf(number, aval))


class _Reader:
    """One reading of a program, equation by equation, into calls, branches and loops."""

    def __init__(self, names: Sequence[str], recipe: Recipe):
        self.graph = Graph()
        self.sites: dict[Path, Site] = {}
        self.floats: list[Float] = []
        self.loops: dict[Level, int] = {}
        self.candidates: dict[str, str] = {}  # by the name of what could be a site, its kind
        self._names, self._recipe = names, recipe
        self._taken: dict[str, int] = {}
        self._stored: dict[Any, str] = {}
        self._inputs: dict[Any, str] = {}
        self._quantized: set[Value] = set()
        self._reads: Counter[Value] = Counter()
        self._places: dict[Value, list[tuple[Path, int]]] = {}

    def count(self, values: Iterable[Value]) -> None:
        """Counts what reads the values."""
        self._reads.update(values)

    def shared(self, inner: frozenset[Path]) -> Iterator[tuple[Path, int]]:
        """Where what sites quantize comes from, if something else reads it, too."""
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
            self._list_inside(equation, f"it is inside {name}, which is not read")
            self.count(inputs)
            return [Value() for _ in range(count)]
        nodes = [value.node for value in inputs]
        all_known = [node for node in nodes if node is not None]
        if len(all_known) == len(nodes) and nodes and not equation.effects and not _is_random(equation):
            outputs = [self.graph.operation(equation, all_known, output, levels) for output in range(count)]
            return [Value(node) for node in outputs]
        if not self._site(equation, path, inputs):
            self.count(inputs)
        return [_unknown(equation, inputs) for _ in range(count)]

    def _scan(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.loop(equation)
        self.loops[path] = loop.length
        num_constants, num_carry = loop.num_constants, loop.num_carry
        constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
        layers = [self._layer(value, path) for value in inputs[num_constants + num_carry :]]
        carry = _carried(loop.body, num_constants, carry)
        outputs = self.read(loop.body, path, (*levels, path), [*constants, *carry, *layers])
        self.count(outputs)
        return [*map(_after, carry), *(Value() for _ in outputs[num_carry:])]

    def _layer(self, value: Value, level: Level) -> Value:
        return Value(self.graph.layer(value.node, level)) if value.node is not None else dataclasses.replace(value)

    def _while(self, equation: Equation, path: Path, levels: tuple[Level, ...], inputs: list[Value]) -> list[Value]:
        loop = jaxprs.while_loop(equation)
        self._list(loop.condition.jaxpr, "it is in the condition of a loop")
        inputs = inputs[loop.num_condition_constants :]
        constants, carry = inputs[: loop.num_body_constants], inputs[loop.num_body_constants :]
        carry = _carried(loop.body, loop.num_body_constants, carry)
        self.count(self.read(loop.body, path, levels, [*constants, *carry]))
        return list(map(_after, carry))

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
            joined.append(values[0] if same else Value(origin="a branch picks its weights" if picked else None))
        return joined

    def _site(self, equation: Equation, path: Path, inputs: list[Value]) -> bool:
        """Whether an equation is a site. One that could be, and is none, is listed."""
        name = equation.primitive.name
        nodes = [value.node for value in inputs[:2]]
        if name == "gather":
            if nodes[0] is not None and _is_table(nodes[0]) and _is_look_up(equation):
                return self._add(LOOK_UP, equation, path, 0, inputs)
            return False
        if name not in ("dot_general", "conv_general_dilated"):
            if name in _OTHER_PRODUCTS:
                self._float(equation, name, f"{name} has no int8 form here")
            return False
        kind = PRODUCT if name == "dot_general" else CONVOLUTION
        operand = 1 if kind == CONVOLUTION or nodes[1] is not None else 0
        node = nodes[operand]
        if node is None:
            self._float(equation, kind, _why_unknown(inputs))
        elif not node.leaves:
            self._float(equation, kind, "its weights are no parameter, but a constant of the function")
        else:
            return self._add(kind, equation, path, operand, inputs)
        return False

    def _add(self, kind: str, equation: Equation, path: Path, operand: int, inputs: list[Value]) -> bool:
        node = inputs[operand].node
        assert node is not None
        weights, dimensions = known.root(node)
        name = self._name(weights, kind)
        reason = _why_not(kind, equation, operand, inputs[1 - operand], weights, self._recipe.smallest)
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
        layout = _layout(kind, equation, operand, dimensions)
        storage = Storage(layout, ScaleGranularity(scheme.weights), scheme.weight_type, filter)
        stored = self._stored.setdefault((weights, storage), name)
        quantizer = scheme.activations, scheme.activation_type, scheme.observer, _rows(kind, equation, operand, scheme)
        source = self._inputs.setdefault((inputs[1 - operand], weights.levels, quantizer), name)
        given = name, kind, equation, operand, weights, dimensions, storage, stored, source, scheme
        self.sites[path] = Site(*given)
        if kind != LOOK_UP and scheme.activations != Activations.FLOAT:
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
        self.floats.append(Float(name or stack or "-", kind, shape, reason))

    def _list_inside(self, equation: Equation, reason: str) -> None:
        for jaxpr in jaxprs.programs(equation):
            self._list(jaxpr, reason)

    def _list(self, jaxpr: Any, reason: str) -> None:
        """Lists the products of a program that is not read."""
        for equation in jaxpr.eqns:
            kinds = {"dot_general": PRODUCT, "conv_general_dilated": CONVOLUTION}
            kind = kinds.get(equation.primitive.name)
            if kind is not None:
                self._float(equation, kind, reason)
            self._list_inside(equation, reason)


def _carried(body: Program, first: int, carry: list[Value]) -> list[Value]:
    """What is known of the carry of a loop: what each pass hands on as it got it."""
    inputs, outputs = body.jaxpr.invars[first:], body.jaxpr.outvars
    return [value if inputs[i] is outputs[i] else Value() for i, value in enumerate(carry)]


def _after(carried: Value) -> Value:
    """What a loop gives, of what it carries: something new, unless each pass hands it on."""
    return carried if carried.node is not None else Value()


def _is_random(equation: Equation) -> bool:
    """Whether a random key goes in or out."""
    types = [getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars)]
    return any(dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) for dtype in types)


def _unknown(equation: Equation, inputs: list[Value]) -> Value:
    """An output that is no known value."""
    name = equation.primitive.name
    of_parameters = all(value.node is not None or value.is_random for value in inputs)
    if of_parameters and (_is_random(equation) or any(value.is_random for value in inputs)):
        return Value(is_random=True)
    if name in _MOVING:
        of_flags = equation.invars[0].aval.dtype == np.bool or inputs[0].is_flag
        return Value(is_flag=of_flags, origin=inputs[0].origin)
    weights = [value.node for value in inputs if value.node is not None and len(value.node.shape) > 1 and value.node.leaves]
    if name in _PICKING and weights:
        return Value(origin="its weights are picked by a value that is known only when it runs")
    return Value()


def _why_unknown(inputs: Sequence[Value]) -> str:
    if any(value.is_random for value in inputs):
        return "its weights depend on a random key"
    origins = [value.origin for value in inputs if value.origin]
    return origins[0] if origins else "neither operand depends on the parameters alone"


def _is_table(node: Node) -> bool:
    return bool(node.leaves) and len(node.shape) == 2 and known.is_float(node)


def _is_look_up(equation: Equation) -> bool:
    """Whether a gather takes whole rows, or columns, of a table."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    if (
        len(numbers.start_index_map) != 1
        or numbers.operand_batching_dims
        or numbers.collapsed_slice_dims != numbers.start_index_map
    ):
        return False
    (index,) = numbers.start_index_map
    return all(size == (1 if dimension == index else shape[dimension]) for dimension, size in enumerate(sizes))


def _why_not(kind: str, equation: Equation, operand: int, other: Value, weights: Node, smallest: int) -> str | None:
    """Why an equation with known weights is no site by default."""
    shape = weights.shape
    if not all(isinstance(size, int) for size in shape):
        return "the shape of its weights depends on the inputs"
    if str(weights.dtype) not in ("float32", "float16", "bfloat16"):
        return f"its weights are of {weights.dtype}"
    if math.prod(shape) < smallest:
        return f"its weights have {math.prod(shape)} elements, fewer than {smallest}"
    if kind == LOOK_UP:
        return None
    given = equation.invars[1 - operand].aval
    if str(given.dtype) not in ("float32", "float16", "bfloat16"):
        return f"its input is of {given.dtype}"
    if kind == CONVOLUTION:
        return _why_no_convolution(equation)
    if other.is_flag:
        return "its input is of zeros and ones, which pick rows of the weights"
    layout = _layout(kind, equation, operand, tuple(range(len(equation.invars[operand].aval.shape))))
    sizes = equation.invars[operand].aval.shape
    if math.prod(sizes[d] for d in layout.kept) == 1:
        return "its weights are a vector"
    if math.prod(sizes[d] for d in layout.contracted) == 1:
        return "it sums over no dimension"
    return None


def _why_no_convolution(equation: Equation) -> str | None:
    parameters = equation.params
    if any(dilation != 1 for dilation in parameters["lhs_dilation"]):
        return "it is a transposed convolution, whose input is dilated"
    if parameters["batch_group_count"] != 1:
        return "its batch is divided into groups"
    if len(parameters["window_strides"]) not in (1, 2, 3):
        return "it has neither one, two nor three spatial dimensions"
    if any(number < 0 for pair in parameters["padding"] for number in pair):
        return "its padding is negative"
    return None


def _layout(kind: str, equation: Equation, operand: int, dimensions: tuple[int, ...]) -> Layout:
    """How the weights are stored, by `dimensions` of the weights for those of the operand."""

    def of_weights(operand_dimensions: Sequence[int]) -> tuple[int, ...]:
        return tuple(dimensions[dimension] for dimension in operand_dimensions)

    if kind == LOOK_UP:
        (index,) = equation.params["dimension_numbers"].start_index_map
        return Layout((), of_weights([d for d in range(len(dimensions)) if d != index]), of_weights([index]))
    if kind == CONVOLUTION:
        spec = equation.params["dimension_numbers"].rhs_spec
        return Layout((), of_weights([d for d in range(len(dimensions)) if d != spec[0]]), of_weights([spec[0]]))
    contracted, batch = product_dimensions(equation, operand)
    kept = [d for d in range(len(dimensions)) if d not in contracted and d not in batch]
    return Layout(of_weights(batch), of_weights(contracted), of_weights(kept))


def _rows(kind: str, equation: Equation, operand: int, scheme: Scheme) -> tuple[int, ...] | None:
    """The dimensions of the input that lie in one row, if rows have scales of their own."""
    if kind != PRODUCT or scheme.activations != Activations.DYNAMIC_ROW:
        return None
    return tuple(sorted(product_dimensions(equation, 1 - operand)[0]))


def product_dimensions(equation: Equation, operand: int) -> tuple[list[int], list[int]]:
    """The contracted and the batch dimensions of an operand, the former in the order in which the input has them."""
    contract, batch = equation.params["dimension_numbers"]
    mine, others = contract[operand], contract[1 - operand]
    return [d for _, d in sorted(zip(others, mine, strict=True))], list(batch[operand])
