"""An argument that is left out means the same as its default passed explicitly."""

import functools

import jax
import numpy as np

import jquant

from .operands import ACCUMULATORS, A, X


def test_defaults():
    clip, relu = jquant.clip, functools.partial(jquant.quantized_linear_leaky_relu, A, 0.5, 3, 0.01, 9)
    quantize = functools.partial(jquant.quantize, X, -1, 1, "quint8")
    limit = functools.partial(
        jquant.requantization_range_per_channel, ACCUMULATORS, -np.ones(3, np.float32), np.ones(3, np.float32)
    )
    for implicit, explicit in (
        (clip(X), clip(X, -np.inf, np.inf)),
        (clip(X, max=0), clip(X, -np.inf, 0)),
        (clip(A), A),
        (relu(), relu(alpha=0.01)),
        (quantize(), quantize(ensure_minimum_range=0.01)),
        (limit(), limit(clip_value_max=np.inf)),
    ):
        jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), implicit, explicit)
