"""Operator descriptors: the specifications' tables as data.

An operator states its table once, with `Descriptor` and `Tensor`. DirectML has a table for each of several feature levels,
ONNX a single one. `constraints` compiles the table into assertions.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import numpy as np

from jquant.modes import FeatureLevel, data_type_name


class Shaped(Protocol):
    """What a check needs to know about a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


class Signature(NamedTuple):
    """The shape and dtype of a tensor: those of an output, or as a key."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Names(NamedTuple):
    """The specification's names of a quantized tensor, its scale and its zero point."""

    tensor: str
    scale: str
    zero_point: str


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A row of a specification's "Tensor support" table.

    Attributes:
      name: the tensor's name in the specification.
      kind: as in the specification.
      ranks: smallest and largest supported dimension count; None if the specification has no limits.
      data_types: names of the supported data types.
      sizes: the sizes, as the specification writes them: numbers or names, ``[...]`` for a dimension that may be
        missing. None: those of the output.
    """

    name: str
    kind: Literal["Input", "Optional input", "Output"]
    ranks: tuple[int, int] | None
    data_types: str
    sizes: str | None = None

    def allows_rank(self, rank: int) -> bool:
        return self.ranks is None or self.ranks[0] <= rank <= self.ranks[1]

    def allowed_ranks(self) -> str:
        low, high = self.ranks or (0, 0)
        return f"{low} to {high}" if low < high else f"{low}"

    def allows_data_type(self, name: str, level: FeatureLevel | None) -> bool:
        return name in self.allowed_data_types(level)

    def allowed_data_types(self, level: FeatureLevel | None) -> tuple[str, ...]:
        names = tuple(self.data_types.split())
        extended = level == FeatureLevel.EXTENDED and "FLOAT16" in names
        return (*names, "BFLOAT16") if extended else names


class Descriptor:
    """The constraints of one operator, by feature level.

    Args:
      operator: the name of the function; an `Operator` has the one in the specification, too.
      levels: the rows of the specification's tables, by the feature level from which on they hold; just the rows if the
        specification has only one table.
      same_data_type: pairs of tensors that must agree.
      same_rank: groups of tensors of named sizes whose dimension counts must agree.
      one_element: tensors that must have one element.
      per_channel: tensors of one element, or of one for each channel, along the second dimension of the output's rank.
      counts: for each named size that may be 1 instead, the size it otherwise equals.
      batch: the named sizes in which 1 broadcasts.
      broadcast: tensors whose ranks may differ from the output's, aligned as in NumPy, at jquant's own level or if the
        specification has only one table. At that level, the groups of `same_rank` do not hold either.
      lacks: which of its optional sizes a tensor of fewer dimensions lacks: the leading or the trailing ones.

    Every tensor whose sizes the table does not give has the output's dimension count, where sizes of 1
    broadcast; a tensor of rank 0 stands for a one-element tensor of any rank.
    """

    def __init__(
        self,
        operator: str,
        levels: Mapping[str, tuple[Tensor, ...]] | tuple[Tensor, ...],
        *,
        same_data_type: tuple[tuple[str, str], ...] = (),
        same_rank: tuple[tuple[str, ...], ...] = (),
        one_element: tuple[str, ...] = (),
        per_channel: tuple[str, ...] = (),
        counts: Mapping[str, str] | None = None,
        batch: tuple[str, ...] = (),
        broadcast: tuple[str, ...] = (),
        lacks: Literal["leading", "trailing"] = "leading",
    ):
        self.operator = operator
        tables = {} if isinstance(levels, tuple) else levels
        self.table = levels if isinstance(levels, tuple) else ()
        self.levels = {FeatureLevel(level): rows for level, rows in sorted(tables.items())}
        self.same_data_type = same_data_type
        self.same_rank = same_rank
        self.one_element = one_element
        self.per_channel = per_channel
        self.counts = dict(counts or {})
        self.batch = batch
        self.broadcast = broadcast
        self.lacks = lacks

    @functools.cached_property
    def output(self) -> str:
        """The name of the output; of several, the one that the others describe."""
        rows = self.table or self.levels[max(self.levels)]
        return next(row.name for row in rows if row.kind == "Output")

    @functools.lru_cache(maxsize=64)  # noqa: B019 - descriptors are module constants
    def names(self, tensor: str) -> Names:
        """The names in the table of a tensor, its scale and its zero point: for A, as ATensor, a_scale, AZeroPointTensor."""
        rows = [row.name for row in self.table or self.levels[max(self.levels)]]

        def spelling(*candidates: str) -> str:
            return next((name for name in candidates if name in rows), "")

        def of(tensor: str, what: str) -> str:
            words = "".join(word.capitalize() for word in what.split("_"))
            return spelling(f"{tensor}{words}Tensor", f"{tensor}_{what}", f"{tensor.lower()}_{what}", f"{words}Tensor", what)

        return Names(spelling(f"{tensor}Tensor", tensor), of(tensor, "scale"), of(tensor, "zero_point"))

    def is_introduced(self, level: FeatureLevel | None) -> bool:
        return level is None or level >= min(self.levels)

    def rows(self, level: FeatureLevel | None) -> tuple[Tensor, ...]:
        """The rows that hold at a level; None for the only table."""
        return self.table if level is None else self.levels[max(known for known in self.levels if known <= level)]

    def row(self, level: FeatureLevel | None, name: str) -> Tensor:
        return next(row for row in self.rows(level) if row.name == name)

    def allows_data_type(self, level: FeatureLevel | None, name: str, dtype: np.dtype) -> bool:
        """Whether the tensor may have the data type. Before the operator's introduction, it may be anything."""
        return not self.is_introduced(level) or self.row(level, name).allows_data_type(data_type_name(dtype), level)
