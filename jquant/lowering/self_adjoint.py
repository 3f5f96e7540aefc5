"""Linear functions that are their own transposes, such as a product with a symmetric matrix.

The derivative of such a function is the function itself. JAX would differentiate its steps instead, and transpose them one
by one, into a program of another form, whose sums have another order.
"""

import functools
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.lowering import recording

_self_adjoint_p = Primitive("self_adjoint")


def self_adjoint(function: Callable[..., jax.Array], x: jax.Array, *parameters: Hashable) -> jax.Array:
    """``function(x, *parameters)``, whose tangents and cotangents are the same function of those of the result.

    The function returns an array of the type of `x`. It also takes arrays with more leading dimensions, as `jax.vmap` adds
    them.
    """
    if recording.is_active():
        return function(x, *parameters)
    return _self_adjoint_p.bind(x, function=function, parameters=parameters)


_self_adjoint_p.def_impl(functools.partial(apply_primitive, _self_adjoint_p))


@_self_adjoint_p.def_abstract_eval
def _abstract_value(x, *, function, parameters):
    del function, parameters
    return x


def _computed(x, *, function, parameters):
    return function(x, *parameters)


def _transposed(cotangent, x, **static):
    del x
    return [_self_adjoint_p.bind(cotangent, **static)]


def _batch(operands, dimensions, **static):
    (x,), (dimension,) = operands, dimensions
    return _self_adjoint_p.bind(jnp.moveaxis(x, dimension, 0), **static), 0


mlir.register_lowering(_self_adjoint_p, mlir.lower_fun(_computed, multiple_results=False))
ad.deflinear2(_self_adjoint_p, _transposed)
batching.primitive_batchers[_self_adjoint_p] = _batch
