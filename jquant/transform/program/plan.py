"""The sites of a program, and what stays float, with the reason."""

import dataclasses
import math
from typing import Any, NamedTuple

from jquant.jaxprs import Equation, Path, Program
from jquant.transform.program.layouts import EMBEDDING, RAGGED, Storage
from jquant.transform.program.uses import Trail
from jquant.transform.program.weight_graph import Level, WeightNode
from jquant.transform.recipes.recipe import Activations, Scheme


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A product, a convolution or an embedding whose weights depend on the parameters alone.

    Attributes:
      name: the path of the weights among the parameters, with a number if that name is taken.
      parameter: the path alone.
      use: how its input is computed, which tells the uses of one weight apart.
      kind: ``"matmul"``, ``"convolution"`` or ``"embedding"``.
      equation: what the function computes there.
      operand: the index of the operand that is the weights.
      weights: the weights as the parameters hold them. These are quantized.
      dimensions: for each dimension of the operand, the corresponding dimension of `weights`; None for a dimension of the
        index that selects them, or of the groups of a `jax.lax.ragged_dot`.
      selected: the dimensions of `weights` that the index or the groups select from.
      fills: whether an index beyond these dimensions selects NaN.
      storage: how the weights are stored.
      stored: the name of the first site that stores the same weights.
      input: the name of the first site that quantizes the same input in the same way.
      statistics: the name of the first site whose weights are prepared with the same statistics of the same input.
      scheme: how the site is quantized.
      shard_map: the path to the `jax.shard_map` around the site; None outside of any.
      spec: the axes of its mesh that split each dimension of the weights, or None.
    """

    name: str
    parameter: str
    use: Trail
    kind: str
    equation: Equation
    operand: int
    weights: WeightNode
    dimensions: tuple[int | None, ...]
    selected: tuple[int, ...]
    fills: bool
    storage: Storage
    stored: str
    input: str
    statistics: str
    scheme: Scheme
    shard_map: Path | None = None
    spec: tuple[Any, ...] = ()

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
    def is_ragged(self) -> bool:
        """Whether groups of rows are multiplied by matrices of their own: a `jax.lax.ragged_dot`."""
        return self.equation.primitive.name == RAGGED

    @property
    def depth(self) -> int:
        """How many rows the matrices of the weights have."""
        return math.prod(self.weights.shape[dimension] for dimension in self.storage.layout.contracted)

    @property
    def matrix_batch(self) -> tuple[int, ...]:
        """The number of matrices, for a batch of products; () for a single one, and for a stack to select from."""
        batch = self.storage.layout.batch
        return (math.prod(self.weights.shape[d] for d in batch),) if batch and not self.selected else ()

    @property
    def needs_statistics(self) -> bool:
        """Whether the weights are prepared for the input. (A look-up may read a table that is prepared for a product.)"""
        return self.kind != EMBEDDING and self.storage.preparation.needs_statistics

    @property
    def has_static_input(self) -> bool:
        return self.kind != EMBEDDING and self.scheme.activations == Activations.STATIC


@dataclasses.dataclass(frozen=True, eq=False)
class ActivationProduct:
    """A product of two activations, such as the scores of attention.

    Attributes:
      name: the kind, ``"activation_matmul"``, with the `jax.named_scope` around it, and a number if that name is taken.
      parameter: the same without the number.
      use: how its operands are computed.
      equation: what the function computes there.
      inputs: for each operand, the name of the first site or operand that quantizes the same input in the same way.
      scheme: how both are quantized.
    """

    name: str
    parameter: str
    use: Trail
    equation: Equation
    inputs: tuple[str, str]
    scheme: Scheme


class Unquantized(NamedTuple):
    """A product, a convolution or an embedding that stays float, and why."""

    name: str
    kind: str
    shape: str
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The sites of a program.

    Attributes:
      program: the program that was read.
      sites: the sites, by the path to the equation.
      products: the products of two activations that are quantized, likewise.
      floats: what stays float.
      loops: the lengths of the loops around sites.
      selecting: the equations that select the weights of a site from a stack, or move what is selected.
      inner: the paths to all equations that have any of these inside.
      shared: the outputs of equations, by path and number, that a site quantizes and another equation reads too.
    """

    program: Program
    sites: dict[Path, Site]
    products: dict[Path, ActivationProduct]
    floats: list[Unquantized]
    loops: dict[Level, int]
    selecting: frozenset[Path]
    inner: frozenset[Path]
    shared: frozenset[tuple[Path, int]]

    def stored(self) -> list[Site]:
        """The sites that store weights, which other sites may read as well."""
        return [site for site in self.sites.values() if site.stored == site.name]

    def inputs(self) -> list[Site]:
        """The sites whose inputs are quantized with a range of their own."""
        return [site for site in self.sites.values() if site.has_static_input and site.input == site.name]

    def prepared(self) -> list[Site]:
        """The sites of whose inputs statistics are observed."""
        return [site for site in self.sites.values() if site.needs_statistics and site.statistics == site.name]

    def sizes(self, site: Site) -> tuple[int, ...]:
        """How many layers each level of a site has."""
        return tuple(self.loops[level] for level in site.levels)
