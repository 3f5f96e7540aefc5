"""The formulas of the clips, under their operators."""

import jax
import jax.numpy as jnp

from jquant.formulas import clip as limits


def test_one_rule(monkeypatch):
    """The derivative of the clips and the operators for the gradient follow from one function."""
    x, gradient, bounds = jnp.array([-1.0, 0.5, 7.0]), jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 6.0])

    def results():
        (derivative,) = jax.vjp(lambda x: limits.clip(x, *bounds, None), x)[1](gradient)
        return derivative.tolist(), limits.gradient(x, gradient, *bounds).tolist()

    assert results() == ([0, 2, 0], [0, 2, 0])
    monkeypatch.setattr(limits, "_is_inside", lambda x, min, max: x > max)
    assert results() == ([0, 0, 3], [0, 0, 3])
