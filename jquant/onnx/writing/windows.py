"""The attributes of nodes with windows: convolutions and pooling."""

from collections.abc import Sequence
from typing import Any


def attributes(
    strides: Sequence[int], dilations: Sequence[int], padding: Sequence[tuple[int, int]], groups: int = 1
) -> dict[str, Any]:
    """The attributes, with the padding before and after each dimension; None for those that say nothing."""
    pads = [low for low, _ in padding] + [high for _, high in padding]
    return {
        "group": groups if groups != 1 else None,
        "strides": list(strides) if set(strides) != {1} else None,
        "dilations": list(dilations) if set(dilations) != {1} else None,
        "pads": pads if any(pads) else None,
    }
