"""Networks quantized by hand: compositions that the functions of `jquant.transform` are compared with.

`Operators` composes jquant's public operators, eagerly, with Python's own loops and branches. `NumPy` does the same with the
formulas of `jquant.reference`, which share no code with the operators. Both implement the operations `ops` of `networks`.
"""

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import formats
from support.networks import SCHEMES, Float, recipe

import jquant
from jquant import ScaleGranularity, transform
from jquant.calibration import Range
from jquant.reference import convolutions as convolutions_reference
from jquant.reference import linear as linear_reference
from jquant.transform import Activations
from jquant.transform.formats import weight_formats

EXTENDED = "EXTENDED"


def einsum_letters(x: Any, w: Any, contracted: tuple, batch: tuple = ((), ()), *, weights_first: bool = False) -> str:
    """The einsum, with the letters of `x` first, for the dimension numbers of a `dot_general`.

    With `weights_first`, `w` is the left operand of the `dot_general`.
    """
    x_letters, w_letters = ([""] * np.ndim(operand) for operand in (x, w))
    unused = iter("abcdefghijklmnopqrstuvwxyz")
    for x_dimensions, w_dimensions in (contracted, batch):
        for i, j in zip(x_dimensions, w_dimensions, strict=True):
            x_letters[i] = w_letters[j] = next(unused)
    free = []
    for letters in (x_letters, w_letters):
        free.append([])
        for dimension, letter in enumerate(letters):
            if not letter:
                letters[dimension] = next(unused)
                free[-1].append(letters[dimension])
    output_letters = [x_letters[i] for i in batch[0]]
    output_letters += [letter for part in (free[::-1] if weights_first else free) for letter in part]
    return f"{''.join(x_letters)},{''.join(w_letters)}->{''.join(output_letters)}"


def assert_equal_leaves(actual: Any, expected: Any) -> None:
    """Equal leaves, whatever the trees."""
    actual, expected = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (actual, expected))
    assert len(actual) == len(expected)
    for actual_leaf, expected_leaf in zip(actual, expected, strict=True):
        assert actual_leaf.dtype == expected_leaf.dtype
        if expected_leaf.dtype == jnp.bfloat16:
            actual_leaf, expected_leaf = actual_leaf.astype(np.float32), expected_leaf.astype(np.float32)
        np.testing.assert_array_equal(actual_leaf, expected_leaf, strict=True)


def range_of(observed: Any) -> Range:
    """The range of an input that was calibrated."""
    return observed.range if isinstance(observed, transform.InputStatistics) else observed


def stacked_over_layers(by_layer: dict[tuple[int, ...], tuple], layer: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Tuples of numbers or arrays, by the indices of layers, as float32 arrays that begin with dimensions of layers."""
    if layer in by_layer:
        return [np.asarray(each, np.float32) for each in by_layer[layer]]
    count = 1 + max(each[len(layer)] for each in by_layer if each[: len(layer)] == layer)
    layers = (stacked_over_layers(by_layer, (*layer, number)) for number in range(count))
    return [np.stack(each) for each in zip(*layers, strict=True)]


class Order:
    """The dimensions of an einsum of inputs and weights, in the order of matrices (batch, rows, K) and (batch, K, N)."""

    def __init__(self, letters: str, x: Any, w: Any):
        self.letters = letters
        self._x, self._w, self._output = letters.replace("->", ",").split(",")
        self._batch = [letter for letter in self._x if letter in self._w and letter in self._output]
        self._contracted = [letter for letter in self._x if letter in self._w and letter not in self._output]
        self._free = [letter for letter in self._x if letter not in self._w]
        self._kept = [letter for letter in self._w if letter not in self._x]
        self._sizes = dict(zip(self._x + self._w, x.shape + w.shape, strict=True))
        self.has_batch = bool(self._batch)

    def rows(self, x: Any) -> Any:
        return self._matrices(x, self._x, self._free, self._contracted)

    def weights(self, w: Any) -> Any:
        return self._matrices(w, self._w, self._contracted, self._kept)

    def from_matrices(self, matrices: Any) -> Any:
        """The weights, from matrices as `weights` returns them."""
        order = self._batch + self._contracted + self._kept
        sizes = [self._sizes[letter] for letter in order]
        return matrices.reshape(sizes).transpose([order.index(letter) for letter in self._w])

    def row_scales(self, scale: Any) -> Any:
        """The scales of rows, (batch, rows), which have 1 for each contracted dimension."""
        ordered = scale.transpose([self._x.index(letter) for letter in self._batch + self._free + self._contracted])
        return ordered.reshape(self._total(self._batch), self._total(self._free))

    def output(self, matrices: Any) -> Any:
        """The output from matrices (batch, rows, N)."""
        order = self._batch + self._free + self._kept
        output = matrices.reshape([self._sizes[letter] for letter in order])
        return output.transpose([order.index(letter) for letter in self._output])

    def _matrices(self, operand: Any, letters: str, first: list[str], second: list[str]) -> Any:
        ordered = operand.transpose([letters.index(letter) for letter in self._batch + first + second])
        return ordered.reshape(*map(self._total, (self._batch, first, second)))

    def _total(self, letters: list[str]) -> int:
        return math.prod(self._sizes[letter] for letter in letters)


def last(vector: Any, array: Any) -> Any:
    """A vector along the last dimension of an array."""
    return vector.reshape((1,) * (array.ndim - 1) + (-1,))


class ByHand:
    """The operations with loops, branches and calls of Python. Subclasses compute the sites.

    Attributes:
      integers: the inputs of products in integers, in the order in which they were computed.
      extremes: the smallest and the largest value of each static input, by the name of the site, and its layer.

    `stored` are the weights of a quantized function, by the name of the site. From these come the factors of smoothing, and
    weights that are not rounded to nearest in all of their range.
    """

    array: Any  # the module of arrays

    def __init__(
        self,
        recipe: transform.Recipe,
        calibration: Mapping[str, Any] | None = None,
        *,
        stored: Mapping[str, Any] | None = None,
        exact: bool = False,
    ):
        self.exact = exact
        self.integers: list[Any] = []
        self.extremes: dict[str, dict[tuple[int, ...], tuple[Any, Any]]] = {}
        self._recipe, self._calibration, self._stored = recipe, calibration, stored or {}
        self._layer: tuple[int, ...] = ()
        self._shared: collections.ChainMap = collections.ChainMap()

    def calibration(self) -> dict[str, Range]:
        """The ranges of the inputs that were observed, stacked over layers."""
        return {site: Range(*stacked_over_layers(extremes)) for site, extremes in self.extremes.items()}

    def _scheme(self, site, kind):
        rule = self._recipe.rule_for(site, kind)
        return None if rule is None else self._recipe.rules[rule][1]

    def _observe(self, x, site, layer):
        low, high = np.asarray(x, np.float32).min(), np.asarray(x, np.float32).max()
        extremes = self.extremes.setdefault(site, {})
        before = extremes.get(layer, (low, high))
        extremes[layer] = min(low, before[0]), max(high, before[1])

    def _quantized_input(self, x, site, scheme, over, depth):
        """Integers, scale and zero point of an input; `over`: the dimensions of one row, if rows have their own scales."""
        layer = self._layer[:depth]
        self._observe(x, site, layer)
        of_layers = layer if scheme.activations == Activations.STATIC else ()
        key = id(x), of_layers, scheme.activations, scheme.activation_type, scheme.observer, over
        if key not in self._shared:
            self._shared[key] = x, self._quantize_input(x, site, scheme, over, layer)  # with x, or another might get its id
            self.integers.append(np.asarray(self._shared[key][1][0]))
        return self._shared[key][1]

    def _quantize_input(self, x, site, scheme, over, layer):
        dtype = "INT8" if scheme.is_symmetric else "UINT8"
        if scheme.activations == Activations.STATIC:
            low, high = (np.asarray(bound)[layer] for bound in range_of(self._calibration[site]))
            scale, zero_point = self._scale(low, high, dtype)
            return self._quantize(x, scale, None if scheme.is_symmetric else zero_point, dtype)
        if over is None and not scheme.is_symmetric:
            return self._quantize_dynamically(x)
        return self._quantize(x, self._symmetric_scale(x, over), None, "INT8")

    def _symmetric_scale(self, x, over, dtype="INT8"):
        largest = self.array.max(abs(x), over, keepdims=over is not None).astype(np.float32)
        return self._scale(-largest, largest, dtype)[0]

    def _quantized_weights(self, w, scheme, over):
        """8-bit integers, scales, and zero points or None; the latter two with 1 for each dimension of `over`."""
        over = over if scheme.weights == ScaleGranularity.PER_CHANNEL else None
        if scheme.weight_type == "INT8":
            scale, zero_point = self._symmetric_scale(w, over), None
        else:
            low, high = (extreme(w, over, keepdims=over is not None) for extreme in (self.array.min, self.array.max))
            scale, zero_point = self._scale(low.astype(np.float32), high.astype(np.float32), scheme.weight_type)
        scale = scale.astype(jnp.dtype(scheme.scale_type.lower()))
        return self._quantize(w, scale, zero_point, scheme.weight_type)[0], scale.astype(np.float32), zero_point

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        scheme = self._scheme(site, "matmul")
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        dtype = x.dtype if dtype is None else np.dtype(dtype)
        contracted = [letter for letter in x_letters if letter in w_letters and letter not in output_letters]
        if scheme is None:
            return self._float_product(letters, x, w, dtype)
        rows = tuple(map(x_letters.index, contracted)) if scheme.activations == Activations.DYNAMIC_ROW else None
        x = self.prepared_input(letters, x, site, scheme)
        w = self.prepared_weights(letters, w, site, scheme)
        matrix = self.stored_matrix(site, scheme)
        if scheme.activations == Activations.FLOAT:
            over = tuple(map(w_letters.index, contracted))
            if matrix is not None:
                return self._float_product_of_stored(Order(letters, x, w), x, matrix, scheme, dtype)
            return self._weight_only_product(letters, x, w, over, scheme, dtype)
        return self.multiply(letters, self._quantized_input(x, site, scheme, rows, depth), w, scheme, dtype, matrix)

    def prepared_input(self, letters, x, site, scheme):
        """An input, smoothed and rotated as the scheme says; each input and each rotation once."""
        if scheme.smoothing is None and scheme.rotation is None:
            return x
        factors = self._factors(site, scheme)

        def changed(rows):
            if factors is not None:
                rows = self._multiplied(rows.astype(np.float32), last(factors, rows)).astype(rows.dtype)
            return rows if scheme.rotation is None else self._rotate(rows)

        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        contracted = (letter for letter in x_letters if letter in w_letters and letter not in output_letters)
        channels = tuple(map(x_letters.index, contracted))
        key = "prepared", id(x), channels, scheme.rotation, None if factors is None else site
        if key not in self._shared:
            self._shared[key] = x, self._with_channels_last(changed, x, channels)  # with x, or another might get its id
        return self._shared[key][1]

    def prepared_weights(self, letters, w, site, scheme):
        """Float weights, divided by the factors of their input, and rotated with it."""
        if scheme.smoothing is None and scheme.rotation is None:
            return w
        factors = self._factors(site, scheme)

        def changed(columns):
            columns = columns.astype(np.float32)
            columns = columns if factors is None else self._divided(columns, last(factors, columns))
            if scheme.rotation is None:
                return columns
            size = columns.shape[-1] & -columns.shape[-1]
            return self._rotate(columns) * np.float32(1 if size.bit_length() % 2 else 2)  # the inverse of a rotated input

        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        contracted = (letter for letter in x_letters if letter in w_letters and letter not in output_letters)
        return self._with_channels_last(changed, w, tuple(map(w_letters.index, contracted)))

    def _factors(self, site, scheme):
        """The factors of smoothing; None without smoothing."""
        return None if scheme.smoothing is None else self.array.asarray(self.stored_site(site)["smoothing"])

    def _multiplied(self, rows, factors):
        return rows * factors

    def _divided(self, columns, factors):
        return columns / factors

    def _with_channels_last(self, function, array, channels):
        """An array whose dimensions `channels`, as one dimension, the last, have gone through a function."""
        order = [*(dimension for dimension in range(array.ndim) if dimension not in channels), *channels]
        moved = array.transpose(order)
        rows = moved.reshape(*moved.shape[: array.ndim - len(channels)], math.prod(array.shape[d] for d in channels))
        return function(rows).reshape(moved.shape).transpose(np.argsort(order))

    def stored_site(self, site):
        """The arrays that the quantized function stores for a site, in this layer."""
        names = site, site.split("#")[0], f"{site}#2"  # of weights that are stored for another site, before or after it
        name = next(name for name in names if name in self._stored)
        return jax.tree.map(lambda array: array[self._layer], self._stored[name])

    def stored_matrix(self, site, scheme):
        """The weights (batch, K, N) as stored, if they are not those of the range of each block, rounded to nearest."""
        if scheme.weight_range == "min_max" and scheme.weight_rounding == "NEAREST":
            return None
        return formats.unpacked(self.array, self.stored_site(site))

    def _float_product_of_stored(self, order, x, matrix, scheme, dtype):
        if self.array is jnp:
            return order.output(formats.multiply_floats(order.rows(x), matrix, scheme)).astype(dtype)
        weights = formats.dequantize(np, matrix, scheme, x.dtype)
        return order.output(self._float_product("abk,akn->abn", order.rows(x), weights, dtype))

    def multiply(self, letters, quantized, w, scheme, dtype, matrix=None):
        """The product of a quantized input and float weights, quantized as the scheme says, or to `matrix`."""
        if not formats.is_in_columns(scheme):
            return self._product_in_blocks(letters, quantized, w, scheme, dtype, matrix)
        if matrix is not None:
            x, x_scale, zero_point = quantized
            order = Order(letters, x, w)
            x_scale = order.row_scales(x_scale)[..., None] if np.ndim(x_scale) else x_scale
            operands = (order.rows(x), x_scale, zero_point), matrix.values, matrix.scale, matrix.zero_point
            return order.output(self._integer_product("abk,akn->abn", *operands, dtype))
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        over = tuple(d for d, letter in enumerate(w_letters) if letter in x_letters and letter not in output_letters)
        return self._integer_product(letters, quantized, *self._quantized_weights(w, scheme, over), dtype)

    def activation_product(self, letters, x, y):
        rule = self._recipe.rule_for("activation_matmul", "activation_matmul", only_by_kind=True)
        scheme = None if rule is None else self._recipe.rules[rule][1]
        if scheme is None:
            return self._float_product(letters, x, y, x.dtype)
        *operands, output_letters = letters.replace("->", ",").split(",")
        quantized = []
        for own, other, operand in zip(operands, reversed(operands), (x, y), strict=True):
            contracted = tuple(d for d, letter in enumerate(own) if letter in other and letter not in output_letters)
            rows = contracted if scheme.activations == Activations.DYNAMIC_ROW else None
            quantized.append(self._quantized_input(operand, "activation_matmul", scheme, rows, None))
        return self._integer_product(letters, quantized[0], *quantized[1], x.dtype)

    def _product_in_blocks(self, letters, quantized, w, scheme, dtype, matrix):
        x, x_scale, zero_point = quantized
        order = Order(letters, x, w)
        matrix = formats.quantize(self.array, order.weights(w), scheme) if matrix is None else matrix
        x_scale = order.row_scales(x_scale) if np.ndim(x_scale) else x_scale
        if scheme.weight_type in weight_formats.FLOATS_IN_INTEGER_PRODUCTS:
            matrix, x_scale = formats.as_integers(self.array, matrix, x_scale, scheme)
        return order.output(formats.multiply_integers(self.array, order.rows(x), x_scale, zero_point, matrix, dtype))

    def dot(self, x, w, contracted, batch=((), ()), *, site, weights_first=False):
        return self.product(einsum_letters(x, w, contracted, batch, weights_first=weights_first), x, w, site=site)

    def rows(self, x, w, *, site):
        return self.product("ij,jk->ik", x, w, site=site)

    def convolution(self, x, w, options, *, site, depth=None):
        scheme = self._scheme(site, "convolution")
        if scheme is None or not formats.is_for_filters(scheme):
            return self._float_convolution(x, w, options)
        channel = options.layout[1].index("O")
        over = tuple(d for d in range(w.ndim) if d != channel)
        if scheme.activations == Activations.FLOAT:
            return self._float_convolution(x, formats.rounded(self.array, w, over, scheme, x.dtype), options)
        values, scale, _ = self._quantized_weights(w, scheme, over)
        quantized = self._quantized_input(x, site, scheme, None, depth)
        return self._integer_convolution(quantized, values, scale, options, x.dtype)

    def look_up(self, table, indices, *, site, form="array"):
        scheme = self._scheme(site, "embedding")
        if scheme is None:
            return table[indices]
        if scheme.weight_range == "min_max":
            return formats.rounded(self.array, table, (1,), scheme, table.dtype)[indices]
        matrix = formats.unpacked(self.array, self.stored_site(site))
        return formats.dequantize(self.array, matrix, scheme, table.dtype)[0].T[indices]

    def weight_product(self, a, b):
        return a @ b

    def cast(self, x, dtype):
        return x.astype(dtype)

    def cast_weights(self, w, dtype):
        return w  # weights are quantized as the parameters hold them

    def relu(self, x):
        return self.array.maximum(x, x.dtype.type(0))

    def shrink(self, x):
        array = self.array
        return array.clip(array.round(x * x.dtype.type(2**-8)), x.dtype.type(-7), x.dtype.type(7)) if self.exact else x

    def add(self, x, y):
        return x + y

    def largest(self, x, axis):
        return self.array.max(x, axis)

    def reshape(self, x, shape):
        return self.array.reshape(x, shape)

    def transpose(self, x, axes):
        return self.array.transpose(x, axes)

    def concatenate(self, values, axis):
        return self.array.concatenate(values, axis)

    def call(self, kind, function, *arguments):
        return self._within(function, *arguments) if kind == "checkpoint" else function(*arguments)

    def _within(self, function, *arguments):
        """Calls a function; what is quantized inside is not shared with the code around it."""
        outer = self._shared
        self._shared = outer.new_child()
        try:
            return function(*arguments)
        finally:
            self._shared = outer

    def layers(self, body, carry, layers, *, reverse=False, stacked=True):
        count = len(jax.tree.leaves(layers)[0])
        outputs: dict[int, Any] = {}
        outer = self._layer
        for number in reversed(range(count)) if reverse else range(count):
            self._layer = (*outer, number) if stacked else outer
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], layers)
            carry, outputs[number] = self._within(body, carry, layer)
        self._layer = outer
        return carry, jax.tree.map(lambda *each: self.array.stack(each), *(outputs[number] for number in range(count)))

    def branch(self, condition, if_true, if_false, *arguments):
        return self._within(if_true if condition else if_false, *arguments)

    def repeat(self, count, body, x, *, loop="fori"):
        for _ in range(int(count)):
            x = self._within(body, x)
        return x

    def is_positive(self, x):
        return bool(x.max() > 0)


class Operators(ByHand):
    """A composition of jquant's public operators, each called eagerly."""

    array = jnp

    def _scale(self, low, high, dtype):
        symmetric = dtype != "UINT8"
        return jquant.scale_and_zero_point(low, high, dtype, symmetric=symmetric, narrow_range=symmetric)

    def _quantize(self, x, scale, zero_point, dtype):
        values = jquant.quantize_linear(x, scale, zero_point, output_dtype=dtype, feature_level=EXTENDED)
        return values, scale, zero_point

    def _quantize_dynamically(self, x):
        return jquant.dynamic_quantize_linear(x, feature_level=EXTENDED)

    def _rotate(self, rows):
        return jquant.hadamard_transform(rows)

    def _divided(self, columns, factors):
        return jnp.asarray(np.asarray(columns) / np.asarray(factors))  # XLA would multiply by reciprocals

    def _dequantize(self, values, scale, dtype):
        return jquant.dequantize_linear(values, scale, output_dtype=dtype, feature_level=EXTENDED)

    def _float_product(self, letters, x, w, dtype):
        return jnp.einsum(letters, x, w, preferred_element_type=dtype)

    def _weight_only_product(self, letters, x, w, over, scheme, dtype):
        if scheme.weight_type not in formats.INTEGERS:
            return self._float_product(letters, x, formats.rounded(jnp, w, over, scheme, x.dtype), dtype)
        order, wider = Order(letters, x, w), jnp.promote_types(x.dtype, dtype)
        matrix = formats.quantize(jnp, order.weights(w), scheme)
        return order.output(formats.multiply_floats(order.rows(x.astype(wider)), matrix, scheme)).astype(dtype)

    def _float_convolution(self, x, w, options):
        return Float().convolution(x, w, options, site="")

    def _integer_product(self, letters, quantized, w, w_scale, w_zero_point, dtype):
        x, x_scale, zero_point = quantized
        order = Order(letters, x, w)
        x_scales, w_scales = jnp.asarray(x_scale), jnp.asarray(w_scale)
        x_scales = order.row_scales(x_scales) if x_scales.ndim else x_scales

        def by_column(parameter):
            return order.weights(jnp.broadcast_to(parameter, w.shape))[:, 0] if jnp.ndim(parameter) else parameter

        w_scales, w_zero_points = by_column(w_scales), None if w_zero_point is None else by_column(w_zero_point)

        def multiply(x, x_scale, w, w_scale, w_zero_point):
            packed = jquant.pack_matrix(w, w_zero_point)
            return jquant.matmul_integer_to_float(
                x, x_scale, zero_point, packed, w_scale, output_dtype=dtype, feature_level=EXTENDED
            )

        operands = order.rows(x), x_scales, order.weights(w), w_scales, w_zero_points
        return order.output(formats.for_each_matrix(multiply, operands))

    def _integer_convolution(self, quantized, w, w_scale, options, dtype):
        x, x_scale, zero_point = quantized
        edges = [(0, 0, 0)] * x.ndim
        space = (options.layout[0].index(letter) for letter in options.layout[0] if letter not in "NC")
        for dimension, sizes, dilation in zip(space, options.padding, options.input_dilations, strict=True):
            edges[dimension] = *sizes, dilation - 1
        return jquant.convolution_integer_to_float(
            jax.lax.pad(x, jnp.asarray(zero_point or 0, x.dtype), edges),
            x_scale,
            zero_point,
            w,
            w_scale.reshape(-1) if jnp.ndim(w_scale) else w_scale,
            strides=options.strides,
            dilations=options.dilations,
            groups=options.groups,
            dimension_numbers=options.layout,
            output_dtype=dtype,
            feature_level=EXTENDED,
        )


def rotated(rows: np.ndarray) -> np.ndarray:
    """`jquant.hadamard_transform` in NumPy: sums and differences of pairs, from the shortest distance to the longest."""
    size = rows.shape[-1] & -rows.shape[-1]
    sums = rows.astype(np.float32).reshape(-1, size)
    distance = 1
    while distance < size:
        pairs = sums.reshape(-1, 2, distance)
        sums = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1)
        distance *= 2
    return (sums.reshape(rows.shape) * np.float32(2.0 ** -(size.bit_length() // 2))).astype(rows.dtype)


class NumPy(ByHand):
    """The formulas of the specifications, in NumPy."""

    array = np

    def _scale(self, low, high, dtype):
        symmetric = dtype != "UINT8"
        return linear_reference.scale_and_zero_point(
            low, high, np.dtype(dtype.lower()), symmetric=symmetric, narrow_range=symmetric
        )

    def _quantize(self, x, scale, zero_point, dtype):
        zero_point = np.zeros((), dtype.lower()) if zero_point is None else zero_point
        return linear_reference.quantize_linear(x, scale, zero_point, np.dtype(dtype.lower())), scale, zero_point

    def _quantize_dynamically(self, x):
        return linear_reference.dynamic_quantize_linear(x)

    def _rotate(self, rows):
        return rotated(rows)

    def _dequantize(self, values, scale, dtype):
        return linear_reference.dequantize_linear(values, scale, dtype=dtype)

    def _float_product(self, letters, x, w, dtype):
        return np.einsum(letters, x.astype(np.float64), np.asarray(w).astype(np.float64)).astype(np.float32).astype(dtype)

    def _weight_only_product(self, letters, x, w, over, scheme, dtype):
        return self._float_product(letters, x, formats.rounded(np, w, over, scheme, x.dtype), dtype)

    def _integer_product(self, letters, quantized, w, w_scale, w_zero_point, dtype):
        x, x_scale, zero_point = quantized
        x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
        offset = 0 if w_zero_point is None else w_zero_point.astype(np.int64)
        total = np.einsum(letters, x.astype(np.int64) - np.int64(zero_point), w.astype(np.int64) - offset).astype(np.int32)

        def broadcastable(scale, letters):
            """A scale with the dimensions of the output, those that it does not have of size 1."""
            if np.ndim(scale) == 0:
                return np.float32(scale)
            kept = "".join(letter for letter in letters if letter in output_letters)
            scale = np.einsum(f"{letters}->{kept}", scale)
            order = [kept.index(letter) for letter in output_letters if letter in kept]
            sizes = [scale.shape[kept.index(letter)] if letter in kept else 1 for letter in output_letters]
            return scale.transpose(order).reshape(sizes).astype(np.float32)

        scale = broadcastable(x_scale, x_letters) * broadcastable(w_scale, w_letters)
        return (total.astype(np.float32) * scale).astype(dtype)

    def _channels_first(self, x, w, options):
        x_letters, w_letters, _ = options.layout
        space = [letter for letter in x_letters if letter not in "NC"]
        x = x.transpose([x_letters.index(letter) for letter in ["N", "C", *space]])
        return x, w.transpose([w_letters.index(letter) for letter in ["O", "I", *space]])

    def _in_layout(self, output, options):
        x_letters, _, output_letters = options.layout
        order = ["N", "C", *(letter for letter in x_letters if letter not in "NC")]
        return output.transpose([order.index(letter) for letter in output_letters])

    def _keywords(self, options):
        return {name: getattr(options, name) for name in ("strides", "dilations", "groups")}

    def _dilated(self, x, zero_point, options):
        """An input with its channels first, and zero points between its elements and beside them."""
        space = [(size - 1) * dilation + 1 for size, dilation in zip(x.shape[2:], options.input_dilations, strict=True)]
        dilated = np.full((*x.shape[:2], *space), zero_point, x.dtype)
        dilated[:, :, *(slice(None, None, dilation) for dilation in options.input_dilations)] = x
        more = [(max(0, low), max(0, high)) for low, high in options.padding]
        dilated = np.pad(dilated, [(0, 0), (0, 0), *more], constant_values=zero_point)
        sizes = zip(dilated.shape[2:], options.padding, strict=True)
        return dilated[:, :, *(slice(max(0, -low), size - max(0, -high)) for size, (low, high) in sizes)]

    def _float_convolution(self, x, w, options):
        """The convolution of floats that are integers."""
        x, w = self._channels_first(x, np.asarray(w), options)
        assert all((operand == np.rint(operand)).all() for operand in (x, w))
        x = self._dilated(x, 0, options)
        output = convolutions_reference.convolution_integer(x, w, **self._keywords(options)).astype(np.float32)
        return self._in_layout(output, options).astype(x.dtype)

    def _integer_convolution(self, quantized, w, w_scale, options, dtype):
        x, x_scale, zero_point = quantized
        x, w = self._channels_first(x, w, options)
        x = self._dilated(x, zero_point, options)
        output = convolutions_reference.convolution_integer_to_float(
            x, x_scale, zero_point, w, np.reshape(w_scale, -1), 0, dtype=dtype, **self._keywords(options)
        )
        return self._in_layout(output, options)


class RangeObserver(NumPy):
    """Observes the inputs of all sites, also in branches that are not taken.

    Attributes:
      sums: X^T X, max|x|, the sum of |x| and the number of rows of the inputs of products, as those in `extremes`.
    """

    def __init__(self, *, exact: bool = False):
        super().__init__(recipe(SCHEMES["dynamic uint8"]), exact=exact)
        self.sums: dict[str, dict[tuple[int, ...], tuple[Any, ...]]] = {}

    def branch(self, condition, if_true, if_false, *arguments):
        self._within(if_false if condition else if_true, *arguments)
        return super().branch(condition, if_true, if_false, *arguments)

    def product(self, letters, x, w, *, site, weights_first=False, depth=None, dtype=None):
        order = Order(letters, x, w)
        rows = order.rows(x).astype(np.float32)
        products, magnitudes = rows.swapaxes(-1, -2) @ rows, abs(rows)
        if not order.has_batch:
            (products,) = products
        own = products, magnitudes.max((0, 1)), magnitudes.sum((0, 1)), rows.shape[0] * rows.shape[1]
        sums = self.sums.setdefault(site, {})
        before = sums.get(self._layer, tuple(map(np.zeros_like, own)))
        largest = np.maximum(own[1], before[1])
        sums[self._layer] = own[0] + before[0], largest, own[2] + before[2], own[3] + before[3]
        options = {"weights_first": weights_first, "depth": depth, "dtype": dtype}
        return super().product(letters, x, w, site=site, **options)

    def statistics(self, site: str) -> dict[str, np.ndarray]:
        products, largest, magnitudes, rows = stacked_over_layers(self.sums[site])
        # With few rows, or zeros, X^T X would not be definite.
        products = products + np.eye(products.shape[-1], dtype=np.float32) * np.float32(0.125)
        return {"products": products, "largest": largest, "mean": magnitudes / rows[..., None]}


def numpy_calibration(
    function: Callable, parameters: Any, x: np.ndarray, *, exact: bool = False, fraction: float = 1
) -> dict[str, Any]:
    """The ranges of all inputs, times `fraction`: less than 1 clips some values; with statistics of those of products."""
    observer = RangeObserver(exact=exact)
    function(observer, parameters, x)
    ranges = jax.tree.map(lambda bound: bound * np.float32(fraction), observer.calibration())
    statistics = {site: transform.InputStatistics(range=ranges[site], **observer.statistics(site)) for site in observer.sums}
    return ranges | statistics
