"""Networks written once, against operations `ops`; and what computes them: JAX in float, and two compositions by hand.

`Float` makes the function that `jquant.transform` takes. `Operators` composes jquant's public operators, eagerly, with
Python's own loops and branches; `NumPy` does the same with the formulas of `jquant.reference`, which imports nothing of
jquant. What lies between the products is exact however XLA fuses it, so that all bits are compared.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from jquant import ScaleGranularity, reference, transform
from jquant.calibration import Range
from jquant.transform import Activations

EXTENDED = "EXTENDED"
LAYOUTS = {1: ("NCW", "OIW", "NCW"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}
SCHEMES = {
    "static uint8": transform.Scheme(),
    "static int8": transform.Scheme(activation_type="INT8"),
    "static uint8, tensor": transform.Scheme(weights="PER_TENSOR"),
    "dynamic uint8": transform.Scheme(activations="DYNAMIC"),
    "dynamic int8, tensor": transform.Scheme(weights="PER_TENSOR", activations="DYNAMIC", activation_type="INT8"),
    "dynamic row": transform.Scheme(activations="DYNAMIC_ROW"),
    "dynamic uint8, 4 bits": transform.Scheme(weight_type="INT4", activations="DYNAMIC"),
    "weights alone": transform.Scheme(activations="FLOAT"),
    "weights alone, tensor": transform.Scheme(weights="PER_TENSOR", activations="FLOAT"),
}


def recipe(scheme: transform.Scheme) -> transform.Recipe:
    """For all sites, small ones as well."""
    return transform.Recipe([("*", scheme)], smallest=1)


class Convolution(NamedTuple):
    """What of a convolution is not its operands."""

    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilations: Sequence[int]
    groups: int
    layout: tuple[str, str, str]


def convolution(
    space: int, *, strides=None, padding=None, dilations=None, groups: int = 1, layout: tuple[str, str, str] | None = None
) -> Convolution:
    ones = (1,) * space
    return Convolution(strides or ones, padding or ((0, 0),) * space, dilations or ones, groups, layout or LAYOUTS[space])


def letters_of(x: Any, w: Any, contracted: tuple, batch: tuple = ((), ()), *, left: bool = False) -> str:
    """The letters of an einsum for the dimension numbers of a `dot_general`, those of `x` first; `left`: `w` is the left."""
    lettered = [[""] * np.ndim(operand) for operand in (x, w)]
    fresh = iter("abcdefghijklmnopqrstuvwxyz")
    for of_x, of_w in ((contracted[0], contracted[1]), (batch[0], batch[1])):
        for i, j in zip(of_x, of_w, strict=True):
            lettered[0][i] = lettered[1][j] = next(fresh)
    free = []
    for operand in lettered:
        free.append([])
        for dimension, letter in enumerate(operand):
            if not letter:
                operand[dimension] = next(fresh)
                free[-1].append(operand[dimension])
    output = [lettered[0][i] for i in batch[0]] + [letter for part in (free[::-1] if left else free) for letter in part]
    return f"{''.join(lettered[0])},{''.join(lettered[1])}->{''.join(output)}"


class Float:
    """Operations of JAX: networks as they are before they are transformed."""

    def __init__(self, *, exact: bool = False):
        self.exact = exact

    def product(self, letters, x, w, *, at, left=False, depth=None, dtype=None):
        given, weights, output = letters.replace("->", ",").split(",")
        if left:
            return jnp.einsum(f"{weights},{given}->{output}", w, x, preferred_element_type=dtype)
        return jnp.einsum(letters, x, w, preferred_element_type=dtype)

    def dot(self, x, w, contracted, batch=((), ()), *, at, left=False):
        if left:
            return lax.dot_general(w, x, (contracted[::-1], batch[::-1]))
        return lax.dot_general(x, w, (contracted, batch))

    def rows(self, x, w, *, at):
        return jax.vmap(lambda row: row @ w)(x)

    def convolution(self, x, w, static, *, at, depth=None):
        return lax.conv_general_dilated(
            x,
            w,
            static.strides,
            static.padding,
            rhs_dilation=static.dilations,
            feature_group_count=static.groups,
            dimension_numbers=static.layout,
        )

    def look_up(self, table, indices, *, at):
        return table[indices]

    def known_product(self, a, b):
        return a @ b

    def cast(self, x, dtype):
        return x.astype(dtype)

    weights_as = cast

    def relu(self, x):
        return jax.nn.relu(x)

    def tame(self, x):
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

    def branch(self, yes, if_true, if_false, *arguments):
        return lax.cond(yes, if_true, if_false, *arguments)

    def repeat(self, count, body, x, *, kind="fori"):
        if kind == "fori":
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


class _Quantizer(NamedTuple):
    scale: Any
    zero_point: Any
    dtype: str


class ByHand:
    """Compositions: loops, branches and calls are Python's own. `NumPy` and `Operators` say what is computed at a site.

    Attributes:
      integers: the inputs of products in integers, in the order in which they were computed.
      extremes: the least and the largest value of each static input, by the name of the site, and its layer.
    """

    def __init__(self, recipe: transform.Recipe, ranges: dict[str, Range] | None = None, *, exact: bool = False):
        self.exact = exact
        self.integers: list[Any] = []
        self.extremes: dict[str, dict[tuple[int, ...], tuple[Any, Any]]] = {}
        self._recipe, self._ranges = recipe, ranges
        self._layer: tuple[int, ...] = ()
        self._shared: collections.ChainMap = collections.ChainMap()

    def observed(self) -> dict[str, Range]:
        """The ranges of what has been seen, those of layers stacked."""

        def stacked(of_layers, bound, layer):
            if layer in of_layers:
                return of_layers[layer][bound]
            count = 1 + max(each[len(layer)] for each in of_layers if each[: len(layer)] == layer)
            return np.stack([stacked(of_layers, bound, (*layer, number)) for number in range(count)])

        return {
            name: Range(*(np.asarray(stacked(of_layers, bound, ()), np.float32) for bound in (0, 1)))
            for name, of_layers in self.extremes.items()
        }

    def _scheme(self, at, kind):
        rule = self._recipe.rule_for(at, kind)
        return None if rule is None else self._recipe.rules[rule][1]

    def _observe(self, x, at, layer):
        low, high = np.asarray(x, np.float32).min(), np.asarray(x, np.float32).max()
        seen = self.extremes.setdefault(at, {})
        before = seen.get(layer, (low, high))
        seen[layer] = min(low, before[0]), max(high, before[1])

    def _quantized(self, x, at, scheme, over, depth):
        """Integers, scale and zero point of an input; `over`, the dimensions of one row, if rows have their own."""
        layer = self._layer[:depth]
        self._observe(x, at, layer)
        key = id(x), layer, scheme.activations, scheme.activation_type, scheme.observer, over
        if key not in self._shared:
            self._shared[key] = x, self._compute_quantized(x, at, scheme, over, layer)  # x, lest another take its id
            self.integers.append(np.asarray(self._shared[key][1][0]))
        return self._shared[key][1]

    def _compute_quantized(self, x, at, scheme, over, layer):
        dtype = "INT8" if scheme.is_symmetric else "UINT8"
        if scheme.activations == Activations.STATIC:
            low, high = (np.asarray(bound)[layer] for bound in self._ranges[at])
            scale, zero_point = self._scale(low, high, dtype)
            return self._integers(x, scale, None if scheme.is_symmetric else zero_point, dtype)
        if over is None and not scheme.is_symmetric:
            return self._dynamic(x)
        return self._integers(x, self._symmetric_scale(x, over), None, "INT8")

    def _symmetric_scale(self, x, over, dtype="INT8"):
        largest = self.array.max(abs(x), over, keepdims=over is not None).astype(np.float32)
        return self._scale(-largest, largest, dtype)[0]

    def product(self, letters, x, w, *, at, left=False, depth=None, dtype=None):
        scheme = self._scheme(at, "matmul")
        given, weights, output = letters.replace("->", ",").split(",")
        dtype = x.dtype if dtype is None else np.dtype(dtype)
        contracted = tuple(sorted(given.index(letter) for letter in given if letter in weights and letter not in output))
        if scheme is None:
            return self._float_product(letters, x, w, dtype)
        of_weights = tuple(weights.index(given[dimension]) for dimension in contracted)
        values, scale = self._weights(w, scheme, of_weights)
        if scheme.activations == Activations.FLOAT:
            return self._float_product(letters, x, self._real(values, scale, x.dtype), dtype)
        by_row = scheme.activations == Activations.DYNAMIC_ROW
        quantized = self._quantized(x, at, scheme, contracted if by_row else None, depth)
        return self._integer_product(letters, quantized, values, scale, dtype)

    def _weights(self, w, scheme, over):
        """Integers and scales; the latter with 1 for each dimension of `over`."""
        dtype = scheme.weight_type
        scale = self._symmetric_scale(w, over if scheme.weights == ScaleGranularity.PER_CHANNEL else None, dtype)
        return self._integers(w, scale, None, dtype)[0].astype(np.int8), scale

    def dot(self, x, w, contracted, batch=((), ()), *, at, left=False):
        return self.product(letters_of(x, w, contracted, batch, left=left), x, w, at=at)

    def rows(self, x, w, *, at):
        return self.product("ij,jk->ik", x, w, at=at)

    def convolution(self, x, w, static, *, at, depth=None):
        scheme = self._scheme(at, "convolution")
        if scheme is None:
            return self._float_convolution(x, w, static)
        channel = static.layout[1].index("O")
        values, scale = self._weights(w, scheme, tuple(d for d in range(w.ndim) if d != channel))
        if scheme.activations == Activations.FLOAT:
            return self._float_convolution(x, self._real(values, scale, x.dtype), static)
        return self._integer_convolution(self._quantized(x, at, scheme, None, depth), values, scale, static, x.dtype)

    def look_up(self, table, indices, *, at):
        scheme = self._scheme(at, "embedding")
        if scheme is None:
            return table[indices]
        values, scale = self._weights(table, scheme, (1,))
        return self._real(values, scale, table.dtype)[indices]

    def known_product(self, a, b):
        return a @ b

    def cast(self, x, dtype):
        return x.astype(dtype)

    def weights_as(self, w, dtype):
        return w  # they are quantized as the parameters hold them

    def relu(self, x):
        return self.array.maximum(x, x.dtype.type(0))

    def tame(self, x):
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
        """What is quantized inside, nobody outside sees."""
        around = self._shared
        self._shared = around.new_child()
        try:
            return function(*arguments)
        finally:
            self._shared = around

    def layers(self, body, carry, layers, *, reverse=False, stacked=True):
        count = len(jax.tree.leaves(layers)[0])
        outputs: dict[int, Any] = {}
        around = self._layer
        for number in reversed(range(count)) if reverse else range(count):
            self._layer = (*around, number) if stacked else around
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], layers)
            carry, outputs[number] = self._within(body, carry, layer)
        self._layer = around
        return carry, jax.tree.map(lambda *each: self.array.stack(each), *(outputs[number] for number in range(count)))

    def branch(self, yes, if_true, if_false, *arguments):
        return self._within(if_true if yes else if_false, *arguments)

    def repeat(self, count, body, x, *, kind="fori"):
        for _ in range(int(count)):
            x = self._within(body, x)
        return x

    def is_positive(self, x):
        return bool(x.max() > 0)


class Operators(ByHand):
    """Of jquant's public operators, each called eagerly."""

    array = jnp

    def _scale(self, low, high, dtype):
        symmetric = dtype != "UINT8"
        return jquant.scale_and_zero_point(low, high, dtype, symmetric=symmetric, narrow_range=symmetric)

    def _integers(self, x, scale, zero_point, dtype):
        values = jquant.quantize_linear(x, scale, zero_point, output_dtype=dtype, feature_level=EXTENDED)
        return values, scale, zero_point

    def _dynamic(self, x):
        return jquant.dynamic_quantize_linear(x, feature_level=EXTENDED)

    def _real(self, values, scale, dtype):
        return jquant.dequantize_linear(values, scale, output_dtype=dtype, feature_level=EXTENDED)

    def _float_product(self, letters, x, w, dtype):
        return jnp.einsum(letters, x, w, preferred_element_type=dtype)

    def _float_convolution(self, x, w, static):
        return Float().convolution(x, w, static, at="")

    def _integer_product(self, letters, quantized, w, w_scale, dtype):
        x, x_scale, zero_point = quantized
        given, weights, output = letters.replace("->", ",").split(",")
        batch = [letter for letter in given if letter in weights and letter in output]
        contracted = [letter for letter in given if letter in weights and letter not in output]
        free = [letter for letter in given if letter not in weights]
        kept = [letter for letter in weights if letter not in given]
        sizes = dict(zip(given + weights, x.shape + w.shape, strict=True))
        count = {
            name: math.prod(sizes[letter] for letter in part)
            for name, part in zip("bcfk", (batch, contracted, free, kept), strict=True)
        }

        def ordered(operand, letters, order, shape):
            return operand.transpose([letters.index(letter) for letter in order]).reshape(shape)

        x = ordered(x, given, batch + free + contracted, (count["b"], count["f"], count["c"]))
        w = ordered(w, weights, batch + contracted + kept, (count["b"], count["c"], count["k"]))
        x_scales, w_scales = jnp.asarray(x_scale), jnp.asarray(w_scale)
        if x_scales.ndim:
            x_scales = ordered(x_scales, given, batch + free + contracted, (count["b"], count["f"]))
        if w_scales.ndim:
            w_scales = ordered(w_scales, weights, batch + contracted + kept, (count["b"], count["k"]))

        def multiply(x, x_scale, w, w_scale):
            packed = jquant.pack_matrix(w)
            return jquant.matmul_integer_to_float(
                x, x_scale, zero_point, packed, w_scale, output_dtype=dtype, feature_level=EXTENDED
            )

        if batch:
            axes = 0, 0 if x_scales.ndim else None, 0, 0 if w_scales.ndim else None
            result = jax.vmap(multiply, axes)(x, x_scales, w, w_scales)
        else:
            result = multiply(
                x[0], x_scales[0] if x_scales.ndim else x_scales, w[0], w_scales[0] if w_scales.ndim else w_scales
            )
        order = batch + free + kept
        return ordered(
            result.reshape([sizes[letter] for letter in order]), order, output, [sizes[letter] for letter in output]
        )

    def _integer_convolution(self, quantized, w, w_scale, static, dtype):
        return jquant.convolution_integer_to_float(
            *quantized,
            w,
            w_scale.reshape(-1) if jnp.ndim(w_scale) else w_scale,
            strides=static.strides,
            padding=static.padding,
            dilations=static.dilations,
            groups=static.groups,
            dimension_numbers=static.layout,
            output_dtype=dtype,
            feature_level=EXTENDED,
        )


class NumPy(ByHand):
    """Of the formulas of the documents, in NumPy."""

    array = np

    def _scale(self, low, high, dtype):
        symmetric = dtype != "UINT8"
        return reference.scale_and_zero_point(
            low, high, np.dtype(dtype.lower()), symmetric=symmetric, narrow_range=symmetric
        )

    def _integers(self, x, scale, zero_point, dtype):
        zero_point = np.zeros((), dtype.lower()) if zero_point is None else zero_point
        return reference.quantize_linear(x, scale, zero_point, np.dtype(dtype.lower())), scale, zero_point

    def _dynamic(self, x):
        return reference.dynamic_quantize_linear(x)

    def _real(self, values, scale, dtype):
        return reference.dequantize_linear(values, scale, dtype=dtype)

    def _float_product(self, letters, x, w, dtype):
        return np.einsum(letters, x.astype(np.float64), np.asarray(w).astype(np.float64)).astype(np.float32).astype(dtype)

    def _integer_product(self, letters, quantized, w, w_scale, dtype):
        x, x_scale, zero_point = quantized
        given, weights, output = letters.replace("->", ",").split(",")
        total = np.einsum(letters, x.astype(np.int64) - np.int64(zero_point), w.astype(np.int64)).astype(np.int32)

        def spread(scale, letters):
            if np.ndim(scale) == 0:
                return np.float32(scale)
            left = "".join(letter for letter, size in zip(letters, scale.shape, strict=True) if letter in output)
            scale = np.einsum(f"{letters}->{left}", scale)
            order = [left.index(letter) for letter in output if letter in left]
            sizes = [scale.shape[left.index(letter)] if letter in left else 1 for letter in output]
            return scale.transpose(order).reshape(sizes).astype(np.float32)

        return (total.astype(np.float32) * (spread(x_scale, given) * spread(w_scale, weights))).astype(dtype)

    def _channels_first(self, x, w, static):
        given, weights, _ = static.layout
        space = [letter for letter in given if letter not in "NC"]
        x = x.transpose([given.index(letter) for letter in ["N", "C", *space]])
        return x, w.transpose([weights.index(letter) for letter in ["O", "I", *space]])

    def _in_layout(self, output, static):
        given, _, wanted = static.layout
        order = ["N", "C", *(letter for letter in given if letter not in "NC")]
        return output.transpose([order.index(letter) for letter in wanted])

    def _options(self, static):
        strides, padding, dilations, groups, _ = static
        return {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups}

    def _float_convolution(self, x, w, static):
        """Of integers, as floats."""
        x, w = self._channels_first(x, np.asarray(w), static)
        assert all((operand == np.rint(operand)).all() for operand in (x, w))
        output = reference.convolution_integer(x, w, **self._options(static)).astype(np.float32)
        return self._in_layout(output, static).astype(x.dtype)

    def _integer_convolution(self, quantized, w, w_scale, static, dtype):
        x, x_scale, zero_point = quantized
        x, w = self._channels_first(x, w, static)
        output = reference.convolution_integer_to_float(
            x, x_scale, zero_point, w, np.reshape(w_scale, -1), 0, dtype=dtype, **self._options(static)
        )
        return self._in_layout(output, static)


class Ranges(NumPy):
    """Observes the inputs of all sites, those of branches that are not taken as well."""

    def __init__(self, *, exact: bool = False):
        super().__init__(recipe(SCHEMES["dynamic uint8"]), exact=exact)

    def branch(self, yes, if_true, if_false, *arguments):
        self._within(if_false if yes else if_true, *arguments)
        return super().branch(yes, if_true, if_false, *arguments)


def ranges_of(
    function: Callable, parameters: Any, x: np.ndarray, *, exact: bool = False, part: float = 1
) -> dict[str, Range]:
    """Of the inputs of all sites; a `part` below 1 clips some values."""
    ranges = Ranges(exact=exact)
    function(ranges, parameters, x)
    return jax.tree.map(lambda bound: bound * np.float32(part), ranges.observed())


class Draw:
    """Parameters and inputs of networks.

    With `exact`, they are small integers, and each slice of weights has its largest at 127: sums of floats are exact in any
    order, and so are weights that go to int8 and back.
    """

    def __init__(self, seed: int, *, exact: bool = False):
        self._random = np.random.default_rng(seed)
        self.exact = exact

    def weights(self, *shape: int, dtype: Any = np.float32, layers: int = 0) -> np.ndarray:
        """Of the first dimensions, `layers` are those of layers."""
        if not self.exact:
            spread = 2.0 ** self._random.integers(-2, 3, shape[-1])  # channels differ
            return (self._random.normal(size=shape) * spread).astype(dtype)
        values = self._random.integers(-100, 101, shape)
        for axis in range(layers, len(shape)):
            first = (slice(None),) * axis + (0,)
            values[first] = 127 * self._random.choice([-1, 1], values[first].shape)
        return values.astype(dtype)

    def small(self, *shape: int) -> np.ndarray:
        """Zero in the first row and column, and few ones elsewhere."""
        values = self._random.integers(-1, 2, shape).astype(np.float32)
        values[0] = values[:, 0] = 0
        return values

    def input(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        if self.exact:
            return self._random.integers(-7, 8, shape).astype(dtype)
        return self._random.normal(size=shape).astype(dtype)

    def indices(self, *shape: int, below: int) -> np.ndarray:
        return self._random.integers(0, below, shape).astype(np.int32)
