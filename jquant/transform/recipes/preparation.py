"""What is done to weights before they are rounded to nearest, or in place of that, as data."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jquant.arguments.statics import boolean, is_sequence, number
from jquant.errors import TransformError, TransformTypeError, shown


@dataclasses.dataclass(frozen=True)
class Gptq:
    """Rounding one row of a matrix after the other, where the rows after it make up for the error of each.

    Attributes:
      damping: what is added to the diagonal of X^T X, as a share of its mean.
      activation_order: whether rows are rounded by falling diagonal of X^T X, and not in the order of the matrix.
      correction: how much of what the sites before have put into the inputs is corrected for: 0 nothing, 1 all.
    """

    damping: float = 0.01
    activation_order: bool = True
    correction: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", number("Scheme", "the damping of weight_rounding", self.damping, 0, 1))
        order = boolean("Scheme", "the activation order of weight_rounding", self.activation_order)
        object.__setattr__(self, "activation_order", order)
        share = number("Scheme", "the correction of weight_rounding", self.correction, 0, 1)
        object.__setattr__(self, "correction", share)


@dataclasses.dataclass(frozen=True)
class SmoothQuant:
    """Dividing each input channel by ``max|x|**strength / max|w|**(1 - strength)``."""

    strength: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("Scheme", "the strength of smoothing", self.strength, 0, 1))


@dataclasses.dataclass(frozen=True)
class Awq:
    """Dividing each input channel by ``mean|x|**exponent``, with the exponent that leaves the smallest error."""


class Preparation(NamedTuple):
    """What is done to the weights of a site, in this order.

    Attributes:
      smoothing: how the input channels are scaled; None: not at all.
      is_rotated: whether the input channels are rotated by `hadamard_transform`.
      searches_range: whether the range of each block is the one with the smallest squared error, and not all of it.
      rounding: how the weights are rounded; None: to nearest.
    """

    smoothing: SmoothQuant | Awq | None = None
    is_rotated: bool = False
    searches_range: bool = False
    rounding: Gptq | None = None

    @property
    def changes_input(self) -> bool:
        """Whether the input of the site is smoothed or rotated."""
        return self.is_rotated or self.smoothing is not None

    @property
    def needs_products(self) -> bool:
        """Whether X^T X of the inputs must be known."""
        return self.rounding is not None or isinstance(self.smoothing, Awq)

    @property
    def needs_errors(self) -> bool:
        """Whether the errors of the inputs, beside those of the float network, must be known."""
        return self.rounding is not None and self.rounding.correction > 0

    @property
    def needs_statistics(self) -> bool:
        return self.needs_products or self.smoothing is not None

    @property
    def smoothed(self) -> str:
        """How the input channels are scaled, for messages; "" without smoothing."""
        if self.smoothing is None:
            return ""
        return "smoothed by AWQ" if isinstance(self.smoothing, Awq) else "smoothed by SMOOTHQUANT"

    @property
    def observing(self) -> str:
        """The steps that need statistics, for messages."""
        return " and ".join(filter(None, [self.smoothed, "rounded by GPTQ" if self.rounding is not None else ""]))

    def of_table(self) -> "Preparation":
        """The steps that apply to a table that is looked up, which has no input to measure or to change."""
        return Preparation(searches_range=self.searches_range)


_ROUNDINGS = {"NEAREST": None, "GPTQ": Gptq}
_SMOOTHINGS = {"SMOOTHQUANT": SmoothQuant, "AWQ": Awq}
_RANGES = {"min_max": False, "mean_squared_error": True}


SPELLINGS = {
    "weight_rounding": tuple(_ROUNDINGS),
    "smoothing": tuple(_SMOOTHINGS),
    "weight_range": tuple(_RANGES),
    "rotation": ("HADAMARD",),
}
"""What the fields of a scheme may name."""


def spelled(value: Any, choices: Sequence[str]) -> Any:
    """A name, alone or before its options, as one of the choices spells it, whatever its case. Others stay."""
    if isinstance(value, str):
        return next((choice for choice in choices if choice.lower() == value.lower()), value)
    if is_sequence(value) and len(value) and isinstance(value[0], str):
        return (spelled(value[0], choices), *value[1:])
    return value


def weight_rounding(value: Any) -> Gptq | None:
    """The rounding that a scheme names, alone or with its options in a list."""
    return _made("weight_rounding", value, _ROUNDINGS)


def smoothing(value: Any) -> SmoothQuant | Awq | None:
    """The smoothing that a scheme names, alone or with its options in a list; None: none."""
    return None if value is None else _made("smoothing", value, _SMOOTHINGS)


def searches_range(value: Any) -> bool:
    """Whether the range that a scheme names is searched for."""
    return _choice("weight_range", value, _RANGES)


def is_rotated(value: Any) -> bool:
    """Whether a scheme rotates."""
    return value is not None and _choice("rotation", value, {"HADAMARD": True})


def plain(value: Any) -> Any:
    """A choice as a scheme keeps it and JSON restores it: a name, or a tuple of a name and options. Others stay."""
    if not is_sequence(value):
        return value
    parts = tuple(part.item() if isinstance(part, np.generic) else part for part in value)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _choice(field: str, value: Any, choices: dict[str, Any]) -> Any:
    if isinstance(value, str) and value in choices:
        return choices[value]
    error = TransformError if isinstance(value, str) else TransformTypeError
    raise error(f"Scheme: {field} is {shown(value)}; it must be {' or '.join(map(repr, choices))}")


def _made(field: str, value: Any, choices: dict[str, Any]) -> Any:
    name, *options = value if is_sequence(value) and len(value) else [value]
    if not isinstance(name, str) or name not in choices:
        error = TransformError if isinstance(name, str) else TransformTypeError
        wanted = f"it must be one of {', '.join(choices)}, or a list of that and its options"
        raise error(f"Scheme: {field} is {shown(value)}; {wanted}")
    make = choices[name]
    limit = 0 if make is None else len(dataclasses.fields(make))
    if len(options) > limit:
        raise TransformError(f"Scheme: {field} is {shown(value)}; {name} has {limit or 'no'} options")
    return None if make is None else make(*options)
