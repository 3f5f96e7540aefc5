"""Operator descriptors: the specifications' tables as data, and the assertions that they imply.

An operator states its table once, with `Descriptor` and `Tensor`, and calls `Descriptor.check` before it
computes. DirectML has a table for each of several feature levels, ONNX a single one. The assertions are chex's: they run
while tracing, cost nothing at run time, and ``chex.disable_asserts()`` turns them off. In eager calls, looking a
signature up costs a dictionary access.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol

import chex
import numpy as np

from jquant.arithmetic.broadcasting import aligned, broadcasts
from jquant.errors import DescriptorError, DescriptorTypeError
from jquant.modes import FeatureLevel, RoundMode, data_type_name


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


def require(satisfied: bool, message: str, error: type[DescriptorError] = DescriptorError) -> None:
    """Asserts a constraint through chex, which is called only if it fails: an eager call should cost little."""
    if not satisfied:
        try:
            chex.assert_equal(False, True)
        except AssertionError:
            raise error(message) from None  # without the text that chex adds


def require_round_mode(operator: str, round_mode: RoundMode, allowed: tuple[RoundMode, ...]) -> None:
    """Asserts that the operator's specification has this rounding mode."""
    require(round_mode in allowed, f"{operator}: round_mode is {round_mode}; the operator allows {', '.join(allowed)}")


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


class Violation(NamedTuple):
    """What is wrong with a call."""

    message: str
    error: type[DescriptorError] = DescriptorError


class Descriptor:
    """The constraints of one operator, by feature level.

    Args:
      operator: the operator's name in the specification.
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

        def found(*spellings: str) -> str:
            return next((name for name in spellings if name in rows), "")

        return Names(
            found(f"{tensor}Tensor", tensor),
            found(f"{tensor}ScaleTensor", f"{tensor}_scale", f"{tensor.lower()}_scale", "ScaleTensor"),
            found(f"{tensor}ZeroPointTensor", f"{tensor}_zero_point", f"{tensor.lower()}_zero_point", "ZeroPointTensor"),
        )

    def check(self, level: FeatureLevel | None, tensors: Mapping[str, Shaped | None]) -> None:
        """Asserts that `tensors`, by the specification's names, satisfy the rows for `level` (None: the only table)."""
        signatures = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors.values()]
        violation = self._violation(level, tuple(tensors), tuple(signatures))
        if violation is not None:
            require(False, f"{self.operator}: {violation.message}", violation.error)

    def check_rank(self, level: FeatureLevel | None, name: str, shape: tuple[int, ...]) -> None:
        """Asserts that the tensor may have this rank. For use before `check`, if something is computed from it before."""
        violation = next(self._rank_violations(level, name, shape), None) if self._is_introduced(level) else None
        if violation is not None:
            require(False, f"{self.operator}: {violation.message}", violation.error)

    def check_data_type(self, level: FeatureLevel | None, name: str, dtype: np.dtype) -> None:
        """Asserts that the tensor may have the data type. For use before `check`, if a Python scalar is to have it, too."""
        if not self.allows_data_type(level, name, dtype):
            violation = self._data_type_violation(self._row(level, name), data_type_name(dtype), level)
            require(False, f"{self.operator}: {violation.message}", violation.error)

    def allows_data_type(self, level: FeatureLevel | None, name: str, dtype: np.dtype) -> bool:
        """Whether the tensor may have the data type. Before the operator's introduction, it may be anything."""
        return not self._is_introduced(level) or self._row(level, name).allows_data_type(data_type_name(dtype), level)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - descriptors are module constants
    def _violation(
        self, level: FeatureLevel | None, names: tuple[str, ...], signatures: tuple[tuple | None, ...]
    ) -> Violation | None:
        given = (None if signature is None else Signature(*signature) for signature in signatures)
        return next(self._violations(level, dict(zip(names, given, strict=True))), None)

    def _violations(self, level: FeatureLevel | None, tensors: Mapping[str, Signature | None]) -> Iterator[Violation]:
        if not self._is_introduced(level):
            yield Violation(f"not available before {_name(min(self.levels))}; {_name(level)} was given")
            return
        rows = self._rows(level)
        for row in rows:
            yield from self._row_violations(row, tensors, level)
        for one, other in self.same_data_type:
            a, b = tensors[one], tensors[other]
            if a is not None and b is not None and a.dtype != b.dtype:
                a_type, b_type = data_type_name(a.dtype), data_type_name(b.dtype)
                message = f"{other} has data type {b_type}; it must match that of {one}, {a_type}"
                yield Violation(message, DescriptorTypeError)
        yield from self._size_violations(rows, tensors, level)

    def _is_introduced(self, level: FeatureLevel | None) -> bool:
        return level is None or level >= min(self.levels)

    def _row(self, level: FeatureLevel | None, name: str) -> Tensor:
        return next(row for row in self._rows(level) if row.name == name)

    def _rows(self, level: FeatureLevel | None) -> tuple[Tensor, ...]:
        return self.table if level is None else self.levels[max(known for known in self.levels if known <= level)]

    def _row_violations(
        self, row: Tensor, tensors: Mapping[str, Signature | None], level: FeatureLevel | None
    ) -> Iterator[Violation]:
        tensor = tensors[row.name]
        if tensor is None:
            if row.kind != "Optional input":
                hint = self._from_level(row.name, lambda row, _: row.kind == "Optional input", level, "it may be None")
                yield Violation(f"{row.name} is None, but {_name(level)} requires it{hint}")
            return
        for violation in self._rank_violations(level, row.name, tensor.shape):
            remedy = self._reshaping(row, tensor.shape, len(self._output(level, tensors).shape))
            yield violation._replace(message=violation.message + remedy)
        name = data_type_name(tensor.dtype)
        if not row.allows_data_type(name, level):
            yield self._data_type_violation(row, name, level, self._model_of(row, tensors, level))

    def _rank_violations(self, level: FeatureLevel | None, name: str, shape: tuple[int, ...]) -> Iterator[Violation]:
        row, rank = self._row(level, name), len(shape)
        if not row.allows_rank(rank) and not (rank == 0 and self._may_be_scalar(row)):
            hint = self._from_level(name, lambda row, _: row.allows_rank(rank), level, f"{rank} is allowed")
            allowed = f"{_name(level)} allows {row.allowed_ranks()}{hint}"
            yield Violation(f"{name} has rank {rank} (shape {shape}); {allowed}")

    def _data_type_violation(
        self, row: Tensor, name: str, level: FeatureLevel | None, model: str | None = None
    ) -> Violation:
        if model is None:
            hint = self._from_level(
                row.name, lambda row, level: row.allows_data_type(name, level), level, f"{name} is allowed"
            )
            wanted = f"{_name(level)} allows {', '.join(row.allowed_data_types(level))}{hint}"
        else:
            wanted = f"it must match that of {model}"
        return Violation(f"{row.name} has data type {name}; {wanted}", DescriptorTypeError)

    def _model_of(self, row: Tensor, tensors: Mapping[str, Signature | None], level: FeatureLevel | None) -> str | None:
        """The tensor whose data type, an allowed one, this one must have; and that type."""
        rows = {other.name: other for other in self._rows(level)}
        for one, other in self.same_data_type:
            model = tensors[one]
            if other == row.name and model is not None:
                data_type = data_type_name(model.dtype)
                return f"{one}, {data_type}" if rows[one].allows_data_type(data_type, level) else None
        return None

    def _reshaping(self, row: Tensor, shape: tuple[int, ...], rank: int) -> str:
        """The end of a message on a tensor of lower rank than the output's `rank`: the shape that would be right."""
        if len(shape) < rank and row.name in self.broadcast:
            return f"; reshape it to {aligned(shape, rank)}"
        sizes = [] if row.sizes is None else row.sizes.split()
        if len(shape) == 1 and sum(size.strip("[]") != "1" for size in sizes) == 1:
            return f"; reshape it to ({', '.join('1' if name == '1' else '-1' for name in self._names(sizes, rank))})"
        return ""

    def _names(self, sizes: list[str], rank: int) -> list[str]:
        """The names of `rank` of the sizes, without the optional ones that are missing."""
        optional = [axis for axis, size in enumerate(sizes) if size.startswith("[")]
        missing = len(sizes) - rank
        left_out = optional[:missing] if self.lacks == "leading" else optional[len(optional) - missing :]
        return [size.strip("[]") for axis, size in enumerate(sizes) if axis not in left_out]

    def _output(self, level: FeatureLevel | None, tensors: Mapping[str, Signature | None]) -> Signature:
        output = tensors[self.output]
        assert output is not None
        return output

    def _may_be_scalar(self, row: Tensor) -> bool:
        """Whether a tensor of rank 0 can stand for this one: not if the table demands named sizes of it."""
        sizes = () if row.sizes is None else row.sizes.replace("[", "").replace("]", "").split()
        return all(size == "1" or size in self.counts for size in sizes)

    def _from_level(
        self, name: str, allows: Callable[[Tensor, FeatureLevel], bool], level: FeatureLevel | None, what: str
    ) -> str:
        """The end of a message: the level from which on the call would be right, if there is one."""
        if level is None:
            return ""
        for later in (*self.levels, FeatureLevel.EXTENDED):
            if later > level and allows(self._row(later, name), later):
                return f"; {what} from {_name(later)} on"
        return ""

    def _size_violations(
        self, rows: tuple[Tensor, ...], tensors: Mapping[str, Signature | None], level: FeatureLevel | None
    ) -> Iterator[Violation]:
        shapes = {name: tensor.shape for name, tensor in tensors.items() if tensor is not None}
        output = self.output
        for group in self.same_rank if level != FeatureLevel.EXTENDED else ():
            for one, other in itertools.pairwise(name for name in group if shapes.get(name, ()) != ()):
                a, b = shapes[one], shapes[other]
                if len(a) != len(b):
                    few, shape = (one, a) if len(a) < len(b) else (other, b)
                    to = aligned(shape, max(len(a), len(b)))
                    remedy = f"; reshape {few} to {to}, or use {_ALIGNS}" if output in group else ""
                    message = f"{one} has shape {a}, {other} has {b}: the dimension counts must be the same"
                    yield Violation(f"{message}{remedy}")
        bound: dict[str, tuple[int, str]] = {}
        for row in rows:
            shape = shapes.get(row.name, ())
            if shape == ():
                continue
            if row.name in self.one_element and any(size != 1 for size in shape):
                yield Violation(f"{row.name} has shape {shape}, but must have 1 element")
            elif row.name in self.per_channel:
                channels = tuple(size if axis == 1 else 1 for axis, size in enumerate(shapes[output]))
                if any(size != 1 for size in shape) and shape != channels:
                    text = f"{row.name} has shape {shape}, but must have 1 element, or 1 per channel in shape {channels}"
                    yield Violation(text)
            elif row.sizes is not None:
                yield from self._named_size_violations(row.name, row.sizes.split(), shape, bound)
            else:
                yield from self._broadcast_violations(row, self._to_fit(row, rows, output, shapes), output, shapes, level)

    def _to_fit(self, row: Tensor, rows: tuple[Tensor, ...], output: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """What `row` does not fit: the input that gives the output its shape, or else the output."""
        inputs = (other.name for other in rows if other != row and other.kind == "Input" and other.sizes is None)
        same = (name for name in inputs if shapes.get(name) == shapes[output])
        return next(same, output)

    def _broadcast_violations(
        self, row: Tensor, fitted: str, output: str, shapes: Mapping[str, tuple[int, ...]], level: FeatureLevel | None
    ) -> Iterator[Violation]:
        shape, to = shapes[row.name], shapes[output]
        aligns = row.name in self.broadcast and broadcasts(aligned(shape, len(to)), to)
        if not (broadcasts(shape, to) or (aligns and level in (None, FeatureLevel.EXTENDED))):
            yield Violation(
                f"{row.name} has shape {shape}, {fitted} has {to}: the dimension counts must be the same, and each size "
                "must be 1 or that of the output (a rank of 0 stands for one element)"
                + (f"; reshape it to {aligned(shape, len(to))}, or use {_ALIGNS}" if aligns else "")
            )

    def _named_size_violations(
        self, tensor: str, sizes: list[str], shape: tuple[int, ...], bound: dict[str, tuple[int, str]]
    ) -> Iterator[Violation]:
        """Compares `shape` with the `sizes` in the table; `bound` holds each named size, and the tensor it is from."""
        names = self._names(sizes, len(shape))
        for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
            if name == "1":
                allowed, why = {1}, f"its shape must be ({', '.join(names)})"
            elif name in self.counts:
                full, source = bound[self.counts[name]]
                allowed, why = {1, full}, f"{name} is 1 or {self.counts[name]}, which is {full} in {source}"
            else:
                known, source = bound.setdefault(name, (size, tensor))
                allowed, why = {known}, f"{name} is {known} in {source}"
                if name in self.batch and known == 1:
                    bound[name] = size, tensor
                if name in self.batch and 1 in (known, size):
                    continue
            if size not in allowed:
                options = " or ".join(map(str, sorted(allowed)))
                yield Violation(f"dimension {axis} of {tensor}, of shape {shape}, must be {options}: {why}")


_ALIGNS = "FeatureLevel.EXTENDED, which aligns ranks as NumPy does"


def _name(level: FeatureLevel | None) -> str:
    if level is None:
        return "the operator"
    return f"DML_FEATURE_LEVEL_{level}" if level <= FeatureLevel.LATEST else f"FeatureLevel.{level}"
