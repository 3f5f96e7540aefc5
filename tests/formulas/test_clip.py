"""The formulas of the clip operators."""

import jax
import jax.numpy as jnp

from jquant.formulas import clip as formulas


def test_one_rule(monkeypatch):
    """The derivatives of the clip operators and the gradient operators follow from one function."""
    x, gradient, bounds = jnp.array([-1.0, 0.5, 7.0]), jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 6.0])

    def results():
        (derivative,) = jax.vjp(lambda x: formulas.clip(x, *bounds, None), x)[1](gradient)
        return derivative.tolist(), formulas.gradient(x, gradient, *bounds).tolist()

    assert results() == ([0, 2, 0], [0, 2, 0])
    monkeypatch.setattr(formulas, "_is_inside", lambda x, min, max: x > max)
    assert results() == ([0, 0, 3], [0, 0, 3])
