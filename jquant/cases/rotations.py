"""Cases of rotations."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import Case
from jquant.reference import rotations as reference


def hadamard_transform(*shape: int, dtype: Any = np.float32, **options: int) -> Case:
    """Rows of this shape."""

    def draw(rng, rows):
        return (samples.floats(rng, (rows, *shape), 0.25, dtype=dtype),)

    return Case(
        functools.partial(jquant.hadamard_transform, **options),
        functools.partial(reference.hadamard_transform, **options),
        draw,
        elementwise=False,  # the sums of every three stages are stored
    )


CASES: dict[str, Case] = {"hadamard_transform": hadamard_transform(48)}

VARIANTS: dict[str, Case] = {
    "hadamard_transform, axis": hadamard_transform(8, 3, axis=1),
    "hadamard_transform, block_size": hadamard_transform(64, block_size=2),
    "hadamard_transform, float16": hadamard_transform(96, dtype=np.float16),
    "hadamard_transform, bfloat16": hadamard_transform(128, dtype=jnp.bfloat16),
}
