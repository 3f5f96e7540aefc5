"""The sweep over wrong arguments: valid calls of every public function, and what is substituted for each argument.

A `Call` holds valid arguments of a function. Each `Argument` has a kind, which maps any value to the canonical spelling of
the same argument, or to `WRONG`. The kinds follow the docstrings, and share no code with the checks of the package. A new
function needs an entry in `calls` of one of the modules; a new module goes into `_GROUPS`. `substitutes` are the values
that take the place of arguments.
"""

import functools
import itertools

from . import (
    blocks,
    calibration,
    clips,
    elementwise,
    exact,
    levels,
    linear,
    matmuls,
    packed,
    rotations,
    tensorflow,
    weight_only,
    windows,
)
from .call import Argument, Call, public_functions
from .kinds import UNSPECIFIED, WRONG, Tensor
from .values import Like, substitutes

__all__ = ["UNSPECIFIED", "WRONG", "Argument", "Call", "Like", "Tensor", "calls", "public_functions", "substitutes"]

_GROUPS = (
    clips,
    linear,
    elementwise,
    matmuls,
    weight_only,
    packed,
    blocks,
    windows,
    tensorflow,
    exact,
    levels,
    calibration,
    rotations,
)


@functools.cache
def calls() -> tuple[Call, ...]:
    """Valid calls of every public function."""
    return tuple(itertools.chain.from_iterable(group.calls() for group in _GROUPS))
