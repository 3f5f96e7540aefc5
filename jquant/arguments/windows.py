"""The arguments for windows that slide over the spatial dimensions of a tensor."""

from collections.abc import Sequence

from jax import lax

from jquant.arguments.descriptor import require
from jquant.arguments.statics import are_integers, is_sequence, positive_integers, require_words
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
      source: the argument or the tensor that has the sizes, for errors.
    """
    rank = len(spatial)
    strides = positive_integers(operator, "strides", (1,) * rank if strides is None else strides, rank)
    dilations = positive_integers(operator, "dilations", (1,) * rank if dilations is None else dilations, rank)
    if not all(size > 0 for size in sizes):
        require(False, f"{operator}: the window shape, from {source}, is {tuple(sizes)}; its sizes must be positive")
    dilated_sizes = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    pairs = _padding(operator, padding, spatial, dilated_sizes, strides)
    found = Windows(tuple(sizes), strides, dilations, pairs)
    # A symbolic size of `jax.export` is taken to be large enough.
    if not all(count > 0 for count in found.counts(spatial) if isinstance(count, int)):
        steps = f"with dilations {dilations} does not fit into {tuple(spatial)} elements with padding {pairs}"
        given = f"these follow from {source}, dilations, InputTensor and padding"
        require(False, f"{operator}: a window of shape {tuple(sizes)} {steps}; {given}")
    return found


_NAMES = {"VALID": "VALID", "SAME": "SAME", "SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER"}  # those of `jax.lax`


def _padding(
    operator: str, padding: Padding, spatial: Sequence[int], dilated_sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    rank = len(spatial)
    if isinstance(padding, str):
        if padding not in _NAMES:
            require(False, f"{operator}: padding is {shown(padding)}; the names are {', '.join(_NAMES)}")
        pairs = lax.padtype_to_pads(spatial, dilated_sizes, strides, _NAMES[padding])
        return tuple((low, high) for low, high in pairs)
    if are_integers(padding) and len(padding) == 2 * rank:
        pairs = tuple(zip(padding[:rank], padding[rank:], strict=True))
    else:
        pairs = tuple(padding) if is_sequence(padding) and all(map(are_integers, padding)) else ()
    if len(pairs) != rank or not all(len(pair) == 2 and min(pair) >= 0 for pair in pairs):
        wanted = (
            f"{rank} pairs of nonnegative integers, or {2 * rank} nonnegative integers as in ONNX: first those before each"
        )
        names = f"{operator}: padding is {shown(padding)}; it must be one of {', '.join(_NAMES)}"
        require(False, f"{names}, {wanted} spatial dimension, then those after")
    for pair in pairs:
        require_words(operator, "padding", pair)
    return tuple((int(low), int(high)) for low, high in pairs)
