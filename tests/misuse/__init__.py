"""The sweep over wrong arguments: calls of every public function, and what is put in the place of each argument.

A `Call` names the arguments of a call that is right. Each `Argument` has a kind, which says of any value what it means
there: the canonical spelling of the same argument, or `WRONG`. The kinds follow the docstrings, and share no code with the
checks of the package. Another function is another entry in the `calls` of a module, a new one of which goes into `_GROUPS`;
`things` is what is put in the place of arguments.
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
    tensorflow,
    weight_only,
    windows,
)
from .call import Argument, Call, public_functions
from .kinds import UNSPECIFIED, WRONG, Tensor
from .values import Like, things

__all__ = ["UNSPECIFIED", "WRONG", "Argument", "Call", "Like", "Tensor", "calls", "public_functions", "things"]

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
)


@functools.cache
def calls() -> tuple[Call, ...]:
    """Of every public function."""
    return tuple(itertools.chain.from_iterable(group.calls() for group in _GROUPS))
