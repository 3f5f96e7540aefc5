"""Networks are written once, against operations `ops`; here are the schemes that they are quantized with, and `ops` in JAX.

`Float` makes the function that `jquant.transform` takes. The compositions by hand that it is compared with are the other
implementations of `ops`, in `compositions`. What lies between the sites is exact however XLA fuses it, so that all bits are
compared.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant import transform

LAYOUTS = {1: ("NCW", "OIW", "NCW"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}
SCHEMES = {
    "static uint8": transform.Scheme(activations="STATIC"),
    "static int8": transform.Scheme(activations="STATIC", activation_type="INT8"),
    "static uint8, tensor": transform.Scheme(weights="PER_TENSOR", activations="STATIC"),
    "dynamic uint8": transform.Scheme(),
    "dynamic int8, tensor": transform.Scheme(weights="PER_TENSOR", activation_type="INT8"),
    "dynamic row": transform.Scheme(activations="DYNAMIC_ROW"),
    "dynamic uint8, int4": transform.Scheme(weight_type="INT4"),
    "dynamic row, uint4 in blocks": transform.Scheme(
        weight_type="UINT4", activations="DYNAMIC_ROW", block_size=8, scale_type="FLOAT16"
    ),
    "static int8, int8 in blocks": transform.Scheme(activations="STATIC", activation_type="INT8", block_size=4),
    "dynamic uint8, smoothed": transform.Scheme(smoothing="SMOOTHQUANT"),
    "dynamic row, rotated": transform.Scheme(activations="DYNAMIC_ROW", rotation="HADAMARD"),
    "static uint8, rotated": transform.Scheme(activations="STATIC", rotation="HADAMARD"),
    "dynamic row, gptq": transform.Scheme(
        activations="DYNAMIC_ROW", weight_rounding="GPTQ", weight_range="mean_squared_error", rotation="HADAMARD"
    ),
    "dynamic row, int4 in blocks, smoothed and rotated": transform.Scheme(
        weight_type="INT4", activations="DYNAMIC_ROW", block_size=8, smoothing=("SMOOTHQUANT", 0.75), rotation="HADAMARD"
    ),
    "dynamic uint8, uint4 in blocks, awq and gptq": transform.Scheme(
        weight_type="UINT4", block_size=8, scale_type="FLOAT16", smoothing="AWQ", weight_rounding=("GPTQ", 0.02, False)
    ),
    "dynamic row, mxfp4": transform.Scheme(weight_type="MXFP4", activations="DYNAMIC_ROW", block_size=8),
    "dynamic uint8, nvfp4, gptq": transform.Scheme(
        weight_type="NVFP4", weight_rounding="GPTQ", weight_range="mean_squared_error"
    ),
    "weights alone": transform.Scheme(activations="FLOAT"),
    "weights alone, gptq": transform.Scheme(activations="FLOAT", weight_rounding="GPTQ", weight_range="mean_squared_error"),
    "weights alone, mxfp4, rotated": transform.Scheme(
        weight_type="MXFP4", activations="FLOAT", block_size=8, rotation="HADAMARD"
    ),
    "weights alone, mxfp4": transform.Scheme(weight_type="MXFP4", activations="FLOAT", block_size=8),
    "weights alone, tensor": transform.Scheme(weights="PER_TENSOR", activations="FLOAT"),
}


def recipe(scheme: transform.Scheme) -> transform.Recipe:
    """A recipe with one scheme for all sites, small ones as well."""
    return transform.Recipe([("*", scheme)], smallest=1)


LOOK_UPS = {  # how rows of a table are looked up: at once, or one by one
    "array": lambda table, indices: table[indices],
    "vmap": lambda table, indices: jax.vmap(lambda index: table[index])(indices),
    "loop": lambda table, indices: lax.map(lambda index: jnp.take(table, index, axis=0), indices),
    "slice": lambda table, indices: lax.map(lambda index: lax.dynamic_index_in_dim(table, index, keepdims=False), indices),
}


class Convolution(NamedTuple):
    """The static arguments of a convolution."""

    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilations: Sequence[int]
    groups: int
    layout: tuple[str, str, str]
    input_dilations: Sequence[int]


def convolution(
    space: int,
    *,
    strides=None,
    padding=None,
    dilations=None,
    groups: int = 1,
    layout: tuple[str, str, str] | None = None,
    input_dilations=None,
) -> Convolution:
    """A `Convolution` with defaults for so many spatial dimensions."""
    ones = (1,) * space
    return Convolution(
        strides=strides or ones,
        padding=padding or ((0, 0),) * space,
        dilations=dilations or ones,
        groups=groups,
        layout=layout or LAYOUTS[space],
        input_dilations=input_dilations or ones,
    )


class Float:
    """The operations in JAX: a network as it is before it is transformed.

    Arguments that only the compositions by hand need: `site`, the name of the site; and `depth`, how many of the loops
    around the site the range of its input is stacked over (None: all of them).
    """

    def __init__(self, *, exact: bool = False):
        self.exact = exact

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        if weights_first:
            return jnp.einsum(f"{w_letters},{x_letters}->{output_letters}", w, x, preferred_element_type=dtype)
        return jnp.einsum(letters, x, w, preferred_element_type=dtype)

    def activation_product(self, letters, x, y):
        return jnp.einsum(letters, x, y)

    def dot(self, x, w, contracted, batch=((), ()), *, site, weights_first=False):
        if weights_first:
            return lax.dot_general(w, x, (contracted[::-1], batch[::-1]))
        return lax.dot_general(x, w, (contracted, batch))

    def rows(self, x, w, *, site):
        return jax.vmap(lambda row: row @ w)(x)

    def convolution(self, x, w, options, *, site, depth=None):
        return lax.conv_general_dilated(
            x,
            w,
            options.strides,
            options.padding,
            lhs_dilation=options.input_dilations,
            rhs_dilation=options.dilations,
            feature_group_count=options.groups,
            dimension_numbers=options.layout,
        )

    def look_up(self, table, indices, *, site, form="array"):
        return LOOK_UPS[form](table, indices)

    def weight_product(self, a, b):
        """A product of parameters, which is no site."""
        return a @ b

    def cast(self, x, dtype):
        return x.astype(dtype)

    cast_weights = cast

    def relu(self, x):
        return jax.nn.relu(x)

    def shrink(self, x):
        """Small integers, if sums of floats must be exact."""
        return jnp.clip(jnp.round(x * x.dtype.type(2**-8)), -7, 7) if self.exact else x

    def add(self, x, y):
        return x + y

    def largest(self, x, axis):
        return jnp.max(x, axis)

    def reshape(self, x, shape):
        return jnp.reshape(x, shape)

    def transpose(self, x, axes):
        return jnp.transpose(x, axes)

    def concatenate(self, values, axis):
        return jnp.concatenate(values, axis)

    def call(self, kind, function, *arguments):
        return _CALLS[kind](function)(*arguments)

    def layers(self, body, carry, layers, *, reverse=False, stacked=True):
        return lax.scan(body, carry, layers, reverse=reverse)

    def branch(self, condition, if_true, if_false, *arguments):
        return lax.cond(condition, if_true, if_false, *arguments)

    def repeat(self, count, body, x, *, loop="fori"):
        if loop == "fori":
            return lax.fori_loop(0, count, lambda _, x: body(x), x)
        return lax.while_loop(lambda carry: carry[0] < count, lambda carry: (carry[0] + 1, body(carry[1])), (0, x))[1]

    def is_positive(self, x):
        return jnp.max(x) > 0


def _custom_jvp(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), tangents[-1]))
    return wrapped


def _custom_vjp(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda *arguments: (function(*arguments), arguments), lambda arguments, g: arguments)
    return wrapped


_CALLS: dict[str, Callable] = {
    "jit": jax.jit,
    "jit in jit": lambda function: jax.jit(lambda *arguments: jax.jit(function)(*arguments)),
    "checkpoint": jax.checkpoint,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
}
