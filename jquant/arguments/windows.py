"""The arguments for windows that slide over the spatial dimensions of a tensor."""

import math
from collections.abc import Iterable, Sequence

from jax import lax

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import argument, message
from jquant.arguments.statics import are_integers, is_sequence, positive_integers, require_countable, require_words
from jquant.errors import shown
from jquant.formulas.windows import Windows

Padding = str | Sequence[tuple[int, int]] | Sequence[int]


def windows(
    operator: str,
    spatial: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    padding: Padding = "VALID",
    *,
    others: Sequence[int] = (),
    source: str = "window_sizes",
) -> Windows:
    """The windows that a caller describes in the form of `jax.lax` or ONNX, or an error.

    Args:
      operator: whom errors name.
      spatial: the sizes of the tensor's spatial dimensions.
      sizes: the sizes of a window.
      strides: None means 1 everywhere.
      dilations: None means 1 everywhere.
      padding: a name; a pair (before, after) for each dimension; or, as ONNX has it, all numbers before, then all after.
      others: the sizes of the tensor's other dimensions.
      source: the argument or the tensor that has the sizes, for errors.
    """
    rank = len(spatial)
    strides = positive_integers(operator, "strides", (1,) * rank if strides is None else strides, rank)
    dilations = positive_integers(operator, "dilations", (1,) * rank if dilations is None else dilations, rank)
    _require_sizes(operator, tuple(sizes), source)
    dilated_sizes = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    pairs = _padding(operator, padding, spatial, dilated_sizes, strides)
    described = Windows(tuple(sizes), strides, dilations, pairs)
    _require_fit(operator, described, tuple(spatial), source)
    _require_possible(operator, described, tuple(spatial), tuple(others))
    return described


@once_for_each_signature
def _require_sizes(operator: str, sizes: tuple[int, ...], source: str) -> None:
    is_positive = all(size > 0 for size in sizes)
    text = f"gives windows of shape {sizes}; its sizes must be positive"
    require(is_positive, message(operator, source, text))


@once_for_each_signature
def _require_fit(operator: str, windows: Windows, spatial: tuple[int, ...], source: str) -> None:
    """Asserts that a window fits into the tensor; a symbolic size of `jax.export` is taken to be large enough."""
    fits = all(count > 0 for count in windows.counts(spatial) if isinstance(count, int))
    window = f"a window of shape {windows.sizes} with dilations {windows.dilations}"
    text = f"of {spatial} elements with padding {windows.padding} is too small for {window}"
    reason = f"these follow from input, padding, {argument(operator, source)} and dilations"
    require(fits, message(operator, "InputTensor", f"{text}; {reason}"))


@once_for_each_signature
def _require_possible(operator: str, windows: Windows, spatial: tuple[int, ...], others: tuple[int, ...]) -> None:
    """Asserts that the padded tensor, and the elements of all windows, may be arrays of 32-bit numbers."""
    padded = (size + low + high for size, (low, high) in zip(spatial, windows.padding, strict=True))
    most = max(_known_product(padded), _known_product(windows.counts(spatial)) * math.prod(windows.sizes))
    what = f"of {spatial} elements with padding {windows.padding}, in windows of shape {windows.sizes},"
    require_countable(operator, "InputTensor", what, 4 * most * _known_product(others))


def _known_product(sizes: Iterable[int]) -> int:
    """Without the symbolic sizes of `jax.export`."""
    return math.prod(size for size in sizes if isinstance(size, int))


_NAMES = {"VALID": "VALID", "SAME": "SAME", "SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER"}  # those of `jax.lax`


def _padding(
    operator: str, padding: Padding, spatial: Sequence[int], dilated_sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    rank = len(spatial)
    if isinstance(padding, str):
        _require_name(operator, padding)
        pairs = lax.padtype_to_pads(spatial, dilated_sizes, strides, _NAMES[padding])
        return tuple((low, high) for low, high in pairs)
    if are_integers(padding) and len(padding) == 2 * rank:
        pairs = tuple(zip(padding[:rank], padding[rank:], strict=True))
    else:
        pairs = tuple(padding) if is_sequence(padding) and all(map(are_integers, padding)) else ()
    _require_pairs(operator, tuple(map(tuple, pairs)), rank, shown(padding))
    return tuple((int(low), int(high)) for low, high in pairs)


@once_for_each_signature
def _require_name(operator: str, padding: str) -> None:
    require(padding in _NAMES, message(operator, "padding", f"is {shown(padding)}; the names are {', '.join(_NAMES)}"))


@once_for_each_signature
def _require_pairs(operator: str, pairs: tuple[tuple[int, ...], ...], rank: int, padding: str) -> None:
    fits = len(pairs) == rank and all(len(pair) == 2 and min(pair) >= 0 for pair in pairs)
    as_onnx = f"{2 * rank} nonnegative integers as in ONNX: first those before each spatial dimension, then those after"
    wanted = f"one of {', '.join(_NAMES)}, {rank} pairs of nonnegative integers, or {as_onnx}"
    require(fits, message(operator, "padding", f"is {padding}; it must be {wanted}"))
    for pair in pairs:
        require_words(operator, "padding", pair)
