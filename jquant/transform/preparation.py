"""What is done to weights before they are rounded to nearest, or in place of that, as data."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jquant.arguments.statics import boolean, is_sequence, number
from jquant.errors import TransformError, TransformTypeError, shown


@dataclasses.dataclass(frozen=True)
class Gptq:
    """Rounding one row of a matrix after the other, where the rows after it make up for the error of each.

    Attributes:
      damping: what is added to the diagonal of X^T X, as a share of its mean.
      activation_order: whether rows are rounded by falling diagonal of X^T X, and not in the order of the matrix.
    """

    damping: float = 0.01
    activation_order: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", number("Scheme", "damping", self.damping, 0, 1))
        object.__setattr__(self, "activation_order", boolean("Scheme", "activation_order", self.activation_order))


@dataclasses.dataclass(frozen=True)
class SmoothQuant:
    """Dividing each input channel by ``max|x|**strength / max|w|**(1 - strength)``."""

    strength: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("Scheme", "strength", self.strength, 0, 1))


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
    def needs_statistics(self) -> bool:
        return self.needs_products or self.smoothing is not None

    def of_table(self) -> "Preparation":
        """What of it applies to a table that is looked up, which has no input to measure or to change."""
        return Preparation(searches_range=self.searches_range)


_ROUNDINGS: dict[str, Callable[..., Gptq | None]] = {"NEAREST": lambda: None, "GPTQ": Gptq}
_SMOOTHINGS: dict[str, Callable[..., SmoothQuant | Awq]] = {"SMOOTHQUANT": SmoothQuant, "AWQ": Awq}
_RANGES = {"min_max": False, "mean_squared_error": True}


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
    """A choice as a scheme keeps it: a name, or a tuple of a name and options."""
    return value if value is None or isinstance(value, str) or len(value) > 1 else value[0]


def _choice(field: str, value: Any, choices: dict[str, Any]) -> Any:
    if isinstance(value, str) and value in choices:
        return choices[value]
    error = TransformError if isinstance(value, str) else TransformTypeError
    raise error(f"Scheme: {field} is {shown(value)}; it must be {' or '.join(map(repr, choices))}")


def _made(field: str, value: Any, choices: dict[str, Callable[..., Any]]) -> Any:
    name_and_options: Sequence[Any] = (value,) if isinstance(value, str) else value
    if not is_sequence(name_and_options) or not name_and_options or name_and_options[0] not in choices:
        error = TransformError if isinstance(value, str) or is_sequence(value) else TransformTypeError
        wanted = f"it must be one of {', '.join(choices)}, or a list of that and its options"
        raise error(f"Scheme: {field} is {shown(value)}; {wanted}")
    name, *options = name_and_options
    try:
        return choices[name](*options)
    except TypeError as error:
        raise TransformTypeError(f"Scheme: {field} is {shown(value)}: {shown(error)}") from error
