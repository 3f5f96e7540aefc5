"""The function of rounded operands, written by hand: float products of dequantized weights and inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from support import formats
from support.compositions import EXTENDED, ByHand, Order, einsum_letters, range_of
from support.networks import Float

import jquant
from jquant.arithmetic import exact
from jquant.reference import linear as reference
from jquant.transform import Activations


@jax.custom_jvp
def rounded(x, integers, scale, zero_point, inside):
    """Integers as real numbers, with the derivative 1 where `inside` is true, and 0 elsewhere."""
    return jquant.dequantize_linear(integers, scale, zero_point, output_dtype=x.dtype, feature_level=EXTENDED)


@rounded.defjvp
def _(operands, tangents):
    return rounded(*operands), jnp.where(operands[4], tangents[0], 0).astype(tangents[0].dtype)


@jax.custom_jvp
def replaced(x, value):
    """`value`, with the derivative 1 in `x`."""
    return value


replaced.defjvp(lambda operands, tangents: (operands[1], tangents[0]))


@jax.custom_jvp
def rotated(rows):
    """The transform, with the derivative of a product with its matrix."""
    return jquant.hadamard_transform(rows)


@rotated.defjvp
def _(operands, tangents):
    (rows,), (tangent,) = operands, tangents
    size = rows.shape[-1] & -rows.shape[-1]
    matrix = np.kron(np.eye(rows.shape[-1] // size), scipy.linalg.hadamard(size)) * 2.0 ** -(size.bit_length() // 2)
    return rotated(rows), jnp.matmul(tangent, matrix.astype(tangent.dtype), precision="highest")


class Preparing(ByHand):
    """The composition by hand of what is done to inputs and weights before they are rounded, inside any program."""

    array = jnp

    def _multiplied(self, rows, factors):
        return replaced(rows * factors, jax.lax.stop_gradient(exact.product(rows, factors)))

    def _divided(self, columns, factors):
        return replaced(columns / factors, jax.lax.stop_gradient(exact.quotient(columns, factors)))

    def _rotate(self, rows):
        return rotated(rows)


class Rounded(Float):
    """The operations in float, with rounded operands at each site. Loops over layers are Python's."""

    array = jnp

    def __init__(self, recipe, calibration, *, stored=None, exact):
        super().__init__(exact=exact)
        self._by_hand = Preparing(recipe, calibration, stored=stored, exact=exact)
        self.layers = self._by_hand.layers
        self._calibration = calibration

    def _scheme(self, site, kind):
        return self._by_hand._scheme(site, kind)

    def _quantize_symmetric(self, x, over, dtype="INT8"):
        x = jax.lax.stop_gradient(x)
        largest = jnp.max(jnp.abs(x), over, keepdims=over is not None).astype(np.float32)
        scale = jquant.scale_and_zero_point(-largest, largest, dtype, symmetric=True, narrow_range=True).scale
        return jquant.quantize_linear(x, scale, output_dtype=dtype, feature_level=EXTENDED), scale

    def _rounded_weights(self, order, w, site, kind="matmul", over=None):
        """Weights, prepared, rounded along the dimensions that a product sums over, or `over`, and as they are in `w`."""
        scheme = self._scheme(site, kind)
        matrix = None if kind == "convolution" else self._by_hand.stored_matrix(site, scheme)
        changed = w if order is None else self._by_hand.prepared_weights(order.letters, w, site, scheme).astype(w.dtype)
        if matrix is not None:
            dequantized = formats.dequantize(jnp, matrix, scheme, w.dtype)
            return replaced(changed, dequantized[0].T if order is None else order.from_matrices(dequantized))
        constant = jax.lax.stop_gradient(changed)
        return replaced(changed, jax.lax.stop_gradient(formats.rounded(jnp, constant, over, scheme, w.dtype)))

    def _rounded_input(self, x, site, scheme, rows, depth):
        constant = jax.lax.stop_gradient(x)
        if scheme.activations == Activations.FLOAT:
            return x
        if scheme.activations == Activations.STATIC:
            low, high = (bound[self._by_hand._layer[:depth]] for bound in range_of(self._calibration[site]))
            symmetric, dtype = scheme.activation_type == "INT8", scheme.activation_type
            scale, zero_point = reference.scale_and_zero_point(
                low, high, np.dtype(dtype.lower()), symmetric=symmetric, narrow_range=symmetric
            )
            zero_point = None if symmetric else zero_point
            values = jquant.quantize_linear(constant, scale, zero_point, output_dtype=dtype, feature_level=EXTENDED)
            steps = (-127, 127) if symmetric else (-int(zero_point), 255 - int(zero_point))
            low, high = ((scale * np.float32(bound)).astype(x.dtype) for bound in steps)
            return rounded(x, values, scale, zero_point, (low <= constant) & (constant <= high))
        if scheme.activations == Activations.DYNAMIC and scheme.activation_type == "UINT8":
            return rounded(x, *jquant.dynamic_quantize_linear(constant, feature_level=EXTENDED), np.bool(True))
        return rounded(x, *self._quantize_symmetric(constant, rows), None, np.bool(True))

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        scheme = self._scheme(site, "matmul")
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        contracted = [letter for letter in x_letters if letter in w_letters and letter not in output_letters]
        rows = tuple(map(x_letters.index, contracted)) if scheme.activations == Activations.DYNAMIC_ROW else None
        over = tuple(map(w_letters.index, contracted))
        w = self._rounded_weights(Order(letters, x, w), w, site, over=over).astype(x.dtype)
        x = self._by_hand.prepared_input(letters, x, site, scheme)
        x = self._rounded_input(x, site, scheme, rows, depth)
        return super().product(letters, x, w, site=site, weights_first=weights_first, dtype=dtype)

    def dot(self, x, w, contracted, batch=((), ()), *, site, weights_first=False):
        letters = einsum_letters(x, w, contracted, batch, weights_first=weights_first)
        return self.product(letters, x, w, site=site, weights_first=weights_first)

    def rows(self, x, w, *, site):
        return self.product("ij,jk->ik", x, w, site=site)

    def convolution(self, x, w, options, *, site, depth=None):
        scheme = self._scheme(site, "convolution")
        if not formats.is_for_filters(scheme):
            return super().convolution(x, w, options, site=site)
        channel = options.layout[1].index("O")
        over = tuple(dimension for dimension in range(w.ndim) if dimension != channel)
        w = self._rounded_weights(None, w, site, "convolution", over)
        x = self._rounded_input(x, site, scheme, None, depth)
        return super().convolution(x, w.astype(x.dtype), options, site=site)

    def look_up(self, table, indices, *, site, form="array"):
        table = self._rounded_weights(None, table, site, "embedding", (1,))
        return super().look_up(table, indices, site=site, form=form)

    def cast_weights(self, w, dtype):
        return w

    def call(self, kind, function, *arguments):
        return function(*arguments)  # the rules of a custom derivative are lost

    def repeat(self, count, body, x, *, loop="fori"):
        for _ in range(count):
            x = body(x)
        return x


def assert_close(actual, expected, tolerance, message):
    """Equal but for the order in which floats are summed; `tolerance` is relative to the largest element."""
    for actual_leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert actual_leaf.dtype == expected_leaf.dtype
        actual_leaf, expected_leaf = (np.asarray(leaf, np.float32) for leaf in (actual_leaf, expected_leaf))
        np.testing.assert_allclose(
            actual_leaf, expected_leaf, tolerance, tolerance * abs(expected_leaf).max(), err_msg=message
        )
