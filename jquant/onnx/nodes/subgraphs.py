"""What If, Loop and Scan share: the values that go into and come out of subgraphs."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jquant.onnx.graphs.values import is_static, to_jax

MAX_UNROLLED = 256  # iterations of an unrolled loop


def as_arrays(values: Sequence[Any]) -> list[Any]:
    """Values of a subgraph as JAX arrays, which JAX's control flow carries."""
    return [to_jax(value, "a value of a subgraph") for value in values]


def stack(values: Sequence[Any]) -> Any:
    """The scan outputs of all iterations as one array; a NumPy array if all of them are static."""
    return np.stack(values) if is_static(list(values)) else jnp.stack(as_arrays(values))
