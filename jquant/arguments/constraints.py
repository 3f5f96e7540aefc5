"""Descriptor tables compiled into chex's assertions on the shapes and types of a call.

They assert the rank, type, shape or size of a tensor, that ranks are equal, or that shapes broadcast.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from jquant.arguments.assertions import Constraint, once_for_each_signature, typed_as
from jquant.arguments.descriptor import Descriptor, Shaped, Signature, Tensor
from jquant.arguments.naming import argument, message
from jquant.arithmetic.broadcasting import aligned, broadcasts
from jquant.errors import DescriptorTypeError
from jquant.modes import FeatureLevel, data_type_name

Level = FeatureLevel | None  # None: the specification has a single table
Shape = tuple[int, ...]
Tensors = Mapping[str, Signature | None]  # by their names in the table


def check(descriptor: Descriptor, level: Level, tensors: Mapping[str, Shaped | None]) -> None:
    """Asserts that the tensors, by their names in the table, satisfy the rows for the level."""
    signatures = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors.values()]
    _check(descriptor, level, tuple(tensors), tuple(signatures))


@once_for_each_signature
def _check(
    descriptor: Descriptor,
    level: Level,
    names: tuple[str, ...],
    signatures: tuple[tuple[Shape, np.dtype] | None, ...],
) -> None:
    tensors = (None if signature is None else Signature(*signature) for signature in signatures)
    for constraint in constraints(descriptor, level, dict(zip(names, tensors, strict=True))):
        constraint.check()


@once_for_each_signature
def check_rank(descriptor: Descriptor, level: Level, name: str, shape: Shape) -> None:
    """Asserts that a tensor may have this rank. For use before `check`, if something is computed from the rank before."""
    if descriptor.is_introduced(level):
        for constraint in _Table(descriptor, level).rank(name, shape):
            constraint.check()


@once_for_each_signature
def check_data_type(descriptor: Descriptor, level: Level, name: str, dtype: np.dtype) -> None:
    """Asserts that a tensor may have the type. For use before `check`, if a Python scalar is to have it, too."""
    if descriptor.is_introduced(level):
        _Table(descriptor, level).data_type(descriptor.row(level, name), dtype).check()


def constraints(descriptor: Descriptor, level: Level, tensors: Tensors) -> Iterator[Constraint]:
    """The assertions that the table for the level implies, in order: each presupposes those before it."""
    table = _Table(descriptor, level)
    if level is not None and min(descriptor.levels) > min(FeatureLevel):
        yield table.introduction(level)
    for row in descriptor.rows(level):
        yield from table.row(row, tensors)
    yield from table.same_data_types(tensors)
    shapes = {name: tensor.shape for name, tensor in tensors.items() if tensor is not None}
    yield from table.same_ranks(shapes)
    yield from table.sizes(shapes)


class _Table:
    """The constraints of one table."""

    def __init__(self, descriptor: Descriptor, level: Level):
        self._descriptor, self._level = descriptor, level

    def _argument(self, name: str) -> str:
        return argument(self._descriptor.operator, name)

    def _message(self, name: str, text: str, *others: str) -> str:
        return message(self._descriptor.operator, name, text, *others)

    def introduction(self, level: FeatureLevel) -> Constraint:
        first = min(self._descriptor.levels)
        text = f"is {level_name(level)}; the operator is available from {level_name(first)} on"
        limits = int(first), int(max(FeatureLevel))
        return Constraint("assert_scalar_in", (int(level), *limits), lambda: self._message("feature_level", text))

    def row(self, row: Tensor, tensors: Tensors) -> Iterator[Constraint]:
        tensor = tensors[row.name]
        if row.kind != "Optional input":
            yield Constraint("assert_tree_no_nones", ((_struct(tensor),),), lambda: self._missing(row))
        if tensor is not None:
            yield from self.rank(row.name, tensor.shape, lambda: self._reshaping(row, tensor.shape, tensors))
            yield self.data_type(row, tensor.dtype, lambda: self._unlike_its_model(row, tensor.dtype, tensors))

    def _missing(self, row: Tensor) -> str:
        hint = self._from_level(row.name, lambda row, _: row.kind == "Optional input", "it may be None")
        return self._message(row.name, f"is None, but {level_name(self._level)} requires it{hint}")

    def rank(self, name: str, shape: Shape, remedy: Callable[[], str] = lambda: "") -> Iterator[Constraint]:
        row, rank = self._descriptor.row(self._level, name), len(shape)
        if row.ranks is None:
            return

        def told() -> str:
            hint = self._from_level(name, lambda row, _: row.allows_rank(rank), f"{rank} is allowed")
            allowed = f"{level_name(self._level)} allows {row.allowed_ranks()}{hint}"
            return self._message(name, f"has rank {rank} (shape {shape}); {allowed}{remedy()}")

        low, high = row.ranks
        ranks = {*range(low, high + 1), *([0] if self._may_be_scalar(row) else [])}
        yield Constraint("assert_rank", (_shaped(shape), ranks), told)

    def data_type(self, row: Tensor, dtype: np.dtype, model: Callable[[], str | None] = lambda: None) -> Constraint:
        """`model` makes the error for a tensor that must have another one's type, if that is what is wrong."""
        name, level = data_type_name(dtype), self._level
        allowed = row.allowed_data_types(level)

        def told() -> str:
            hint = self._from_level(row.name, lambda row, level: row.allows_data_type(name, level), f"{name} is allowed")
            return model() or self._typed(row.name, name, f"{level_name(level)} allows {', '.join(allowed)}{hint}")

        struct = jax.ShapeDtypeStruct((), dtype)
        return Constraint("assert_type", typed_as(struct, allowed), told, DescriptorTypeError)

    def _typed(self, name: str, data_type: str, wanted: str, *others: str) -> str:
        """An error about a tensor's type; that of the output is an argument of its own."""
        if name == self._descriptor.output:
            return self._message("output_dtype", f"is {data_type}; {wanted}", name, *others)
        return self._message(name, f"has data type {data_type}; {wanted}", *others)

    def _unlike(self, model: str, wanted: np.dtype, name: str, dtype: np.dtype) -> str:
        like = f"it must match the data type of {self._argument(model)}, {data_type_name(wanted)}"
        return self._typed(name, data_type_name(dtype), like, model)

    def _unlike_its_model(self, row: Tensor, dtype: np.dtype, tensors: Tensors) -> str | None:
        """The error for a tensor that does not have the type, an allowed one, of the tensor that it must match."""
        rows = {other.name: other for other in self._descriptor.rows(self._level)}
        for one, other in self._descriptor.same_data_type:
            model = tensors[one]
            if other == row.name and model is not None:
                is_allowed = rows[one].allows_data_type(data_type_name(model.dtype), self._level)
                return self._unlike(one, model.dtype, row.name, dtype) if is_allowed else None
        return None

    def same_data_types(self, tensors: Tensors) -> Iterator[Constraint]:
        for one, other in self._descriptor.same_data_type:
            a, b = tensors[one], tensors[other]
            if a is not None and b is not None:
                yield self._same_data_type(one, a, other, b)

    def _same_data_type(self, model: str, wanted: Signature, name: str, tensor: Signature) -> Constraint:
        return Constraint(
            "assert_type",
            (_struct(tensor), wanted.dtype),
            lambda: self._unlike(model, wanted.dtype, name, tensor.dtype),
            DescriptorTypeError,
        )

    def same_ranks(self, shapes: Mapping[str, Shape]) -> Iterator[Constraint]:
        for group in self._descriptor.same_rank if self._level != FeatureLevel.EXTENDED else ():
            for one, other in itertools.pairwise(name for name in group if shapes.get(name, ()) != ()):
                yield self._same_rank(one, shapes[one], other, shapes[other], self._descriptor.output in group)

    def _same_rank(self, one: str, a: Shape, other: str, b: Shape, align: bool) -> Constraint:
        def told() -> str:
            few, shape = (one, a) if len(a) < len(b) else (other, b)
            reshaped = f"{self._argument(few)} to {aligned(shape, max(len(a), len(b)))}"
            remedy = f"; reshape {reshaped}, or use {_ALIGNS}" if align else ""
            text = f"has shape {a}, {self._argument(other)} has {b}: the dimension counts must be the same{remedy}"
            return self._message(one, text, other)

        return Constraint("assert_equal_rank", ([_shaped(a), _shaped(b)],), told)

    def sizes(self, shapes: Mapping[str, Shape]) -> Iterator[Constraint]:
        descriptor, output = self._descriptor, self._descriptor.output
        named: dict[str, tuple[int, str]] = {}
        for row in descriptor.rows(self._level):
            shape = shapes.get(row.name, ())
            if shape == ():
                continue
            if row.name in descriptor.one_element:
                told = functools.partial(self._message, row.name, f"has shape {shape}, but must have 1 element")
                yield Constraint("assert_size", (_shaped(shape), 1), told)
            elif row.name in descriptor.per_channel:
                yield from self._per_channel(row.name, shape, shapes[output])
            elif row.sizes is not None:
                yield from self._named_sizes(row.name, row.sizes.split(), shape, named)
            else:
                yield from self._broadcasts(row, self._to_fit(row, shapes), shape, shapes[output])

    def _per_channel(self, name: str, shape: Shape, output: Shape) -> Iterator[Constraint]:
        channels = tuple(size if axis == 1 else 1 for axis, size in enumerate(output))
        if all(size == 1 for size in shape):
            return
        text = f"has shape {shape}, but must have 1 element, or 1 per channel in shape {channels}"
        yield Constraint("assert_shape", (_shaped(shape), channels), lambda: self._message(name, text))

    def _to_fit(self, row: Tensor, shapes: Mapping[str, Shape]) -> str:
        """What `row` has to fit: the input that gives the output its shape, or else the output."""
        output, rows = self._descriptor.output, self._descriptor.rows(self._level)
        inputs = (other.name for other in rows if other != row and other.kind == "Input" and other.sizes is None)
        return next((name for name in inputs if shapes.get(name) == shapes[output]), output)

    def _broadcasts(self, row: Tensor, fitted: str, shape: Shape, output: Shape) -> Iterator[Constraint]:
        """The tensor broadcasts to the output: in its rank, or aligned as in NumPy where that is allowed."""

        def told() -> str:
            aligns = row.name in self._descriptor.broadcast and broadcasts(aligned(shape, len(output)), output)
            wanted = "the dimension counts must be the same, and each size must be 1 or that of the output"
            remedy = f"; reshape it to {aligned(shape, len(output))}, or use {_ALIGNS}" if aligns else ""
            has = f"has shape {shape}, {self._argument(fitted)} has {output}"
            return self._message(row.name, f"{has}: {wanted} (a rank of 0 stands for one element){remedy}", fitted)

        if row.name not in self._descriptor.broadcast or self._level not in (None, FeatureLevel.EXTENDED):
            yield Constraint("assert_equal_rank", ([_shaped(shape), _shaped(output)],), told)
        yield Constraint("assert_is_broadcastable", (shape, output), told)

    def _named_sizes(
        self, tensor: str, sizes: list[str], shape: Shape, named: dict[str, tuple[int, str]]
    ) -> Iterator[Constraint]:
        """The dimensions have the sizes in the table; `named` holds each named size, and the tensor that it is from."""
        names = self._present(sizes, len(shape))
        for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
            if name == "1":
                allowed, reason = {1}, f"its shape must be ({', '.join(names)})"
            elif name in self._descriptor.counts:
                full, source = named[self._descriptor.counts[name]]
                count = f"{self._descriptor.counts[name]}, which is {full} in {self._argument(source)}"
                allowed, reason = {1, full}, f"{name} is 1 or {count}"
            else:
                known, source = named.setdefault(name, (size, tensor))
                allowed, reason = {known}, f"{name} is {known} in {self._argument(source)}"
                if name in self._descriptor.batch and known == 1:
                    named[name] = size, tensor
                if name in self._descriptor.batch and 1 in (known, size):
                    continue
            yield self._size(tensor, shape, axis, allowed, reason)

    def _size(self, tensor: str, shape: Shape, axis: int, allowed: set[int], reason: str) -> Constraint:
        def told() -> str:
            options = " or ".join(map(str, sorted(allowed)))
            return self._message(tensor, f"has shape {shape}; dimension {axis} must be {options}: {reason}")

        others_any = tuple(allowed if dimension == axis else None for dimension in range(len(shape)))
        return Constraint("assert_shape", (_shaped(shape), others_any), told)

    def _reshaping(self, row: Tensor, shape: Shape, tensors: Tensors) -> str:
        """The end of a message on a tensor of lower rank than the output's: the shape that would be right."""
        output = tensors[self._descriptor.output]
        assert output is not None
        rank = len(output.shape)
        if len(shape) < rank and row.name in self._descriptor.broadcast:
            return f"; reshape it to {aligned(shape, rank)}"
        sizes = [] if row.sizes is None else row.sizes.split()
        if len(shape) == 1 and sum(size.strip("[]") != "1" for size in sizes) == 1:
            return f"; reshape it to ({', '.join('1' if name == '1' else '-1' for name in self._present(sizes, rank))})"
        return ""

    def _present(self, sizes: list[str], rank: int) -> list[str]:
        """The names of `rank` of the sizes, without the optional ones that are missing."""
        optional = [axis for axis, size in enumerate(sizes) if size.startswith("[")]
        missing = len(sizes) - rank
        left_out = optional[:missing] if self._descriptor.lacks == "leading" else optional[len(optional) - missing :]
        return [size.strip("[]") for axis, size in enumerate(sizes) if axis not in left_out]

    def _may_be_scalar(self, row: Tensor) -> bool:
        """Whether a tensor of rank 0 can stand for this one: not if the table demands named sizes of it."""
        sizes = () if row.sizes is None else row.sizes.replace("[", "").replace("]", "").split()
        return all(size == "1" or size in self._descriptor.counts for size in sizes)

    def _from_level(self, name: str, allows: Callable[[Tensor, FeatureLevel], bool], what: str) -> str:
        """The end of a message: the level from which on the call would be right, if there is one."""
        if self._level is None:
            return ""
        for later in (*self._descriptor.levels, FeatureLevel.EXTENDED):
            if later > self._level and allows(self._descriptor.row(later, name), later):
                return f"; {what} from {level_name(later)} on"
        return ""


_ALIGNS = "FeatureLevel.EXTENDED, which aligns ranks as NumPy does"


def level_name(level: Level) -> str:
    if level is None:
        return "the operator"
    return f"DML_FEATURE_LEVEL_{level}" if level <= FeatureLevel.LATEST else f"FeatureLevel.{level}"


def _struct(tensor: Signature | None) -> jax.ShapeDtypeStruct | None:
    return None if tensor is None else jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)


def _shaped(shape: Shape) -> jax.ShapeDtypeStruct:
    """A tensor of which only the shape matters."""
    return jax.ShapeDtypeStruct(shape, bool)
