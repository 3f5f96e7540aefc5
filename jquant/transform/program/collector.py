"""Collects the sites of a program, and what stays float, from its equations."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jquant import jaxprs
from jquant.errors import TransformError
from jquant.jaxprs import Equation, Path
from jquant.transform.formats.floats_as_integers import AsIntegers
from jquant.transform.formats.integer_formats import Blocks, Columns
from jquant.transform.formats.stored_weights import WeightFormat
from jquant.transform.program import partition, weight_graph
from jquant.transform.program.eligibility import (
    is_plainly_ragged,
    looks_up,
    why_not,
    why_not_activations,
    why_not_scheme,
    why_not_weights,
)
from jquant.transform.program.layouts import (
    ACTIVATION_MATMUL,
    CONVOLUTION,
    EMBEDDING,
    MATMUL,
    RAGGED,
    Storage,
    WeightLayout,
    input_quantizer,
    preparation_of,
    product_dimensions,
    weight_layout,
)
from jquant.transform.program.plan import ActivationProduct, Site, Unquantized
from jquant.transform.program.selections import parts, selection
from jquant.transform.program.uses import Trails
from jquant.transform.program.values import Known, are_activations, is_weight, why_unknown
from jquant.transform.program.weight_graph import Level, Shard, WeightGraph, WeightNode
from jquant.transform.recipes.preparation import Preparation
from jquant.transform.recipes.recipe import Activations, Recipe, Scheme

_KINDS = {"dot_general": MATMUL, "conv_general_dilated": CONVOLUTION}
_UNSUPPORTED_PRODUCTS = "ragged_dot", RAGGED, "scaled_matmul_wrapper", "custom_call"


class Inside(NamedTuple):
    """The `jax.shard_map` around an equation."""

    path: Path
    mesh: Any


class Collector:
    """The sites of a program, in the order of its equations.

    Attributes:
      sites, products, selecting, floats: as in a `Plan`.
      candidates: the names of all eligible equations, with the index of the rule of each.
      trails: how values are computed.
      inside: the `jax.shard_map` around the equations that are added; None outside of any.
    """

    def __init__(self, graph: WeightGraph, names: Sequence[str], recipe: Recipe):
        self.sites: dict[Path, Site] = {}
        self.products: dict[Path, ActivationProduct] = {}
        self.selecting: set[Path] = set()
        self.floats: list[Unquantized] = []
        self.candidates: dict[str, int | None] = {}
        self.inside: Inside | None = None
        self.trails = Trails()
        self._graph, self._names, self._recipe = graph, names, recipe
        self._num_named: Counter[str] = Counter()  # how many equations have a name
        self._stored: dict[Any, str] = {}  # the first site of weights and their storage
        self._inputs: dict[Any, str] = {}  # the first site of an input and its quantizer
        self._statistics: dict[Any, str] = {}  # the first site of an input and what is observed of it
        self._quantized: set[Known] = set()
        self._selections: dict[Path, Unquantized] = {}  # matrices of stacks that no product has read yet
        self._num_readers: Counter[Known] = Counter()
        self._sources: dict[Known, list[tuple[Path, int]]] = {}  # the outputs of equations that are a value

    def add_readers(self, values: Iterable[Known]) -> None:
        """Counts a reader of each value."""
        self._num_readers.update(values)

    def add_source(self, value: Known, path: Path, output: int) -> None:
        """Notes that a value is an output of an equation."""
        self._sources.setdefault(value, []).append((path, output))

    def share_tables(self) -> None:
        """Lets look-ups read a table that is stored anyway, for a product whose inputs shaped its numbers.

        A smoothed or rotated one is another table.
        """
        products = {
            (site.weights, site.storage._replace(preparation=Preparation()), site.spec): site
            for site in self.sites.values()
            if site.kind == MATMUL and not site.storage.preparation.changes_input
        }
        for path, site in self.sites.items():
            product = products.get((site.weights, site.storage._replace(preparation=Preparation()), site.spec))
            if site.kind == EMBEDDING and product is not None:
                self.sites[path] = dataclasses.replace(site, storage=product.storage, stored=product.stored)

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

    def add(self, equation: Equation, path: Path, inputs: list[Known]) -> bool:
        """Adds an equation to the sites, or to what stays float, and returns whether it is a site."""
        name = equation.primitive.name
        nodes = [value.node for value in inputs[:2]]
        if parts(equation) is not None:
            return self._add_look_up(equation, path, inputs)
        kind = _KINDS.get(name)
        if name == RAGGED and nodes[1] is not None and is_plainly_ragged(equation):
            kind = MATMUL
        if kind is None:
            if name in _UNSUPPORTED_PRODUCTS:
                self._mark_read(inputs)
                self.leave(equation, name, f"{name} has no quantized form here")
            return False
        self._mark_read(inputs)
        stacks = [value.selection and value.selection.stack for value in inputs[:2]] if kind == MATMUL else [None, None]
        nodes = [node or stack for node, stack in zip(nodes, stacks, strict=True)]
        operand = 1 if kind == CONVOLUTION or nodes[1] is not None else 0
        node = nodes[operand]
        if kind == MATMUL and are_activations(inputs):
            return self._add_product(equation, path, inputs)
        if node is None:
            self.leave(equation, kind, why_unknown(inputs))
        elif not node.leaves:
            self.leave(equation, kind, "its weights are not a parameter, but a constant of the function")
        else:
            return self._add_site(kind, equation, path, operand, inputs)
        return False

    def _add_look_up(self, equation: Equation, path: Path, inputs: list[Known]) -> bool:
        """`add` for an equation that takes parts of its first operand at an index."""
        counts = all(value.is_counter or value.node is not None for value in inputs[1:])
        if looks_up(equation, inputs) and not counts:
            return self._add_site(EMBEDDING, equation, path, 0, inputs)
        table = inputs[0]
        node = table.node if table.selection is None else table.selection.stack
        if node is None or not is_weight(Known(node)) or not weight_graph.is_float(node):
            return False
        self._mark_read([table])
        weights, _ = weight_graph.root(node)
        name, reason = self._names[weights.leaves[0]], why_not_weights(weights, self._recipe.smallest)
        if looks_up(equation, inputs):
            self.leave(equation, EMBEDDING, reason or "each pass of a loop takes a vector of its own", name)
        elif table.selection is not None:
            self.leave(equation, EMBEDDING, reason or "its table is a matrix that an index selects", name)
        elif selection(equation, path, node) is None:
            self.leave(equation, EMBEDDING, reason or "what it takes are not whole rows or columns of a table", name)
        else:
            reason = reason or "it takes matrices of a stack, and no product reads these as they are"
            self._selections[path] = _unquantized(equation, EMBEDDING, reason, name)
        return False

    def _mark_read(self, inputs: Iterable[Known]) -> None:
        """Notes that an equation that is listed reads what is selected."""
        for value in inputs:
            if value.origin is not None and value.origin.path is not None:
                self._selections.pop(value.origin.path, None)

    def unread_selections(self) -> list[Unquantized]:
        """The equations that select matrices of a stack that no product reads."""
        return list(self._selections.values())

    def _add_site(self, kind: str, equation: Equation, path: Path, operand: int, inputs: list[Known]) -> bool:
        """`add` for an equation with known weights, those of `operand`."""
        input = inputs[1 - operand]
        chosen = inputs[operand].selection
        weights, dimensions, selected = _weights(equation, operand, inputs[operand])
        inside = None if self.inside is None else self.inside.path
        shard = None if self.inside is None else self._graph.whole(weights)
        weights = weights if shard is None else shard.whole
        layout = weight_layout(kind, equation, operand, dimensions, selected)
        parameter = self._names[weights.leaves[0]] or kind
        name = self._numbered(parameter)
        reason = why_not(kind, equation, operand, input, weights, layout, self._recipe.smallest)
        if self.inside is not None and kind != MATMUL:
            reason = "it is inside shard_map, and no product"
        elif self.inside is not None and shard is None:
            reason = "it is inside shard_map, where its weights are computed"
        scheme = format = None
        if reason is None:
            scheme, reason = self._scheme(name, kind)
        if scheme is not None:
            format, reason = self._format(kind, scheme, layout, weights, shard)
        if scheme is None or format is None:
            self.leave(equation, kind, reason, name)
            return False
        preparation = preparation_of(kind, scheme)
        if kind != CONVOLUTION and isinstance(format, Columns | Blocks | AsIntegers):
            obstacle = format.why_not_in_parts(math.prod(weights.shape[dimension] for dimension in layout.contracted))
            if obstacle is not None:
                raise TransformError(f"recipe: k_parts is {scheme.k_parts} for {name}, whose {obstacle}")
        storage = Storage(
            layout=layout,
            format=format,
            filter=tuple(d for d in dimensions if d is not None) if kind == CONVOLUTION else None,
            preparation=preparation,
        )
        rows = tuple(map(tuple, product_dimensions(equation, 1 - operand))) if kind == MATMUL else None
        needed = preparation.needs_products, preparation.needs_errors
        observed = input, weights.levels, rows, bool(selected), needed
        statistics = self._statistics.setdefault(observed, name) if preparation.needs_statistics else name
        shaped_by = statistics if preparation.needs_statistics else None
        spec = None if shard is None else shard.spec
        quantizer = input_quantizer(kind, equation, 1 - operand, scheme)
        site = Site(
            name=name,
            parameter=parameter,
            use=self.trails.use(equation, [input]),
            kind=kind,
            equation=equation,
            operand=operand,
            weights=weights,
            dimensions=dimensions,
            selected=selected,
            fills=chosen is not None and chosen.fills,
            storage=storage,
            stored=self._stored.setdefault((weights, storage, shaped_by, inside, spec), name),
            input=self._first_reader(
                input, weights.levels, scheme, (quantizer, name) if preparation.smoothing else quantizer, name
            ),
            statistics=statistics,
            scheme=scheme,
            shard_map=inside,
            spec=spec or (),
        )
        self.sites[path] = site
        self.selecting.update(chosen.equations if chosen is not None else ())
        if kind != EMBEDDING and (scheme.activations != Activations.FLOAT or preparation.changes_input):
            self._quantized.add(input)
        return True

    def _add_product(self, equation: Equation, path: Path, inputs: list[Known]) -> bool:
        """`add` for a product of two activations."""
        scope = jaxprs.name_stack(equation)
        place = f"{ACTIVATION_MATMUL}/{scope}" if scope else ACTIVATION_MATMUL
        name = self._numbered(place)
        reason, scheme = why_not_activations(equation, inputs), None
        if reason is None:
            scheme, reason = self._scheme(name, ACTIVATION_MATMUL)
        if scheme is None:
            self.leave(equation, ACTIVATION_MATMUL, reason, name)
            return False
        obstacle = why_not_scheme(scheme)
        if obstacle is not None:
            raise TransformError(f"recipe: the scheme of {name}: {obstacle}")
        left, right = (
            self._first_reader(
                value, (), scheme, input_quantizer(ACTIVATION_MATMUL, equation, operand, scheme), f"{name}:{operand}"
            )
            for operand, value in enumerate(inputs)
        )
        self.products[path] = ActivationProduct(
            name=name,
            parameter=place,
            use=self.trails.use(equation, inputs),
            equation=equation,
            inputs=(left, right),
            scheme=scheme,
        )
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
        self, kind: str, scheme: Scheme, layout: WeightLayout, weights: WeightNode, shard: Shard | None
    ) -> tuple[WeightFormat | None, str]:
        """The format of the weights of a site; if a scheme cannot store them, None and the reason."""
        format = scheme.filter_format if kind == CONVOLUTION else scheme.format
        if format is None:
            return None, f"convolutions take INT8 and 8-bit floats without blocks, not {scheme.format.title}"
        if shard is None or self.inside is None:
            return format, ""
        if scheme.activations == Activations.STATIC:
            return None, "it is inside shard_map, where ranges are not observed"
        if scheme.preparation.needs_statistics or scheme.preparation.changes_input:
            return None, "it is inside shard_map, where inputs are neither observed nor changed"
        obstacle = partition.why_not(format, layout, weights.shape, shard.spec, self.inside.mesh)
        return (format, "") if obstacle is None else (None, obstacle)

    def _first_reader(self, input: Known, levels: tuple[Level, ...], scheme: Scheme, quantizer: Hashable, name: str) -> str:
        """The name of the first operand that quantizes the same input in the same way: `name`, if it is the first."""
        of_layers = levels if scheme.activations == Activations.STATIC else ()
        first = self._inputs.setdefault((input, of_layers, quantizer), name)
        if first == name:
            self.add_readers([input])
        return first

    def _numbered(self, name: str) -> str:
        """A name, with a number if it is taken."""
        self._num_named[name] += 1
        number = self._num_named[name]
        return name if number == 1 else f"{name}#{number}"

    def leave(self, equation: Equation, kind: str, reason: str, name: str | None = None) -> None:
        """Lists an equation that stays float."""
        self.floats.append(_unquantized(equation, kind, reason, name))

    def leave_products(self, jaxpr: Any, reason: str) -> None:
        """Lists the products of a program that is not searched for sites."""
        for equation in jaxpr.eqns:
            kind = _KINDS.get(equation.primitive.name)
            if kind is not None:
                self.leave(equation, kind, reason)
            self.leave_inner_products(equation, reason)

    def leave_inner_products(self, equation: Equation, reason: str) -> None:
        for jaxpr in jaxprs.programs(equation):
            self.leave_products(jaxpr, reason)


def _unquantized(equation: Equation, kind: str, reason: str, name: str | None) -> Unquantized:
    """The row of an equation that stays float."""
    shape = " x ".join(str(list(var.aval.shape)) for var in equation.invars[:2])
    return Unquantized(name=name or jaxprs.name_stack(equation) or "-", kind=kind, shape=shape, reason=reason)


def _weights(equation: Equation, operand: int, value: Known) -> tuple[WeightNode, tuple[int | None, ...], tuple[int, ...]]:
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
