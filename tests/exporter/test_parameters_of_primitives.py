"""Every parameter of JAX's primitives with values other than the usual, exported: a rule that does not read one is seen."""

import collections
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant import jaxprs
from jquant.errors import ModelError
from jquant.onnx.exporter import export
from jquant.onnx.writing.table import PRIMITIVES

from .running import assert_exported

# Parameters that change no result, or none that a model has.
_WITHOUT_MEANING = {
    "accuracy": "how exactly a function is computed; models leave that to the engine",
    "sharding": "where elements are",
    "out_sharding": "where elements are",
    "weak_type": "how Python promotes the result",
    "precision": "how exactly a product is computed",
    "linear": "which operands of a loop are linear",
    "_split_transpose": "how a loop is differentiated",
    "unroll": "how XLA compiles a loop",
    "update_consts": "constants of an update, which is one of four functions",
    "update_jaxpr": "the function that the primitive is named after",
    "consts": "constants of a reduction, which is one of four functions",
}
# Primitives that no function of arrays on one device has.
_NOT_CALLED = {
    "pcast": "inside shard_map alone, which is refused",
    "sharding_constraint": "for several devices",
    "layout_constraint": "its parameter is where elements are, as in test_all_primitives.py",
    "xla_metadata_value": "its parameter is a note for XLA",
    "xla_metadata_call": "its parameters are notes for XLA",
    "call": "of older versions of JAX",
    "composite": "the name of a function and the function, as in test_all_primitives.py",
    "custom_vmap_call": "a function and how it is mapped, as in test_all_primitives.py",
    "linear_call": "a function and its transpose, as in test_all_primitives.py",
    "eq_to": "of newer versions of JAX",
    "dim_as_value": "has a symbolic size for its parameter, as in test_open_sizes.py",
    "log2": "of newer versions of JAX",
    "copy_p": "the name of `copy` in other versions of JAX",
    "integer_dot": "jquant's own, as in test_integer_products.py",
    "integer_convolution": "jquant's own, as in test_convolutions.py",
    "block_dot": "jquant's own, as in test_operators.py",
    "polynomial": "jquant's own",
    "one_minus_square": "jquant's own",
}


def _gather(x, i, **options):
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lax.gather(x, i[0, 0, :, None] % 3, numbers, (1, 3, 4), **options)


def _gather_columns(x, i):
    numbers = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(2,), start_index_map=(2,))
    return lax.gather(x, i[0, 0, :, None], numbers, (2, 2, 1), mode="fill", fill_value=7)


def _scatter(function, x, i, **options):
    """Into the rows 1 and 0, which a promise that places are in order would not hold for."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (0,), (0,))
    return function(x, jnp.asarray([[1], [0]]), x * 2, numbers, **options)


def _scatter_columns(function, x, i):
    numbers = lax.ScatterDimensionNumbers((0, 1), (2,), (2,))
    return function(x, jnp.asarray([[1], [9]]), x[..., :2], numbers, mode="drop")


def _convolution(x, **options):
    options = {"window_strides": (1, 1), "padding": "VALID", **options}
    filters = (x % 3).reshape(2, -1, 2, 2)[:, : options.pop("depth", 2)]
    return lax.conv_general_dilated(x.reshape(2, 2, 3, 2), filters, **options)


def _windows(function, x):
    """The windows of a reduction, and those with every parameter of its own."""
    return [
        function(x, (1, 2, 2), (1, 1, 1), ((0, 0),) * 3, (1, 1, 1), (1, 1, 1)),
        function(x, (2, 2, 2), (1, 2, 1), ((1, 0), (0, 2), (1, 1)), (1, 2, 1), (1, 1, 2)),
    ]


def _reduce_window(identity, function):
    return lambda x, i: _windows(lambda x, *windows: lax.reduce_window(x, np.float32(identity), function, *windows), x)


def _loop(x, **options):
    return lax.scan(lambda carry, row: (carry * 2 + row.sum(), row * carry), np.float32(1), x, **options)


def _branch(x, *functions):
    return lax.switch(x[0, 0, 1].astype(np.int32), functions, x)


def _while(last, step, x):
    """A condition and a step with constants of the function in them, one and two."""
    return lax.while_loop(lambda carry: carry[1] < last, lambda carry: (carry[0] + step, carry[1] + 1), (x, np.int32(0)))


def _if_taken(function, **options):
    """The options that this version of JAX has."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in taken}


def _named(*functions):
    """Functions by the names of their primitives."""
    return [(function.__name__.replace("scatter_", "scatter-"), function) for function in functions]


CALLS: dict[str, Callable] = {  # of floats, and integers, of shape (2, 3, 4)
    "reshape": lambda x, i: [lax.reshape(x, (4, 6)), lax.reshape(x, (2, 12), (2, 0, 1))],
    "transpose": lambda x, i: [x.transpose(0, 2, 1), x.transpose(2, 0, 1)],
    "squeeze": lambda x, i: [lax.squeeze(x[:1], (0,)), lax.squeeze(x[:1, :, :1], (0, 2))],
    "broadcast_in_dim": lambda x, i: [
        lax.broadcast_in_dim(x[0], (5, 3, 4), (1, 2)),
        lax.broadcast_in_dim(x[0], (3, 5, 4), (0, 2)),
    ],
    "iota": lambda x, i: [
        x + lax.broadcasted_iota(np.float32, (2, 3, 4), 0),
        i + lax.broadcasted_iota(np.int32, (2, 3, 4), 2),
        x[0] + lax.broadcasted_iota(np.float32, (3, 4), 1),
    ],
    "concatenate": lambda x, i: [lax.concatenate([x, x], 0), lax.concatenate([x, x[..., :1]], 2)],
    "stack": lambda x, i: [jnp.stack([x, -x], 0), jnp.stack([x, -x], 3)],
    "unstack": lambda x, i: [jnp.unstack(x, axis=0), jnp.unstack(x, axis=2)],
    "split": lambda x, i: [lax.split(x, (1, 1), 0), lax.split(x, (1, 3), 2)],
    "tile": lambda x, i: [lax.tile(x, (2, 1, 1)), lax.tile(x, (1, 2, 3))],
    "slice": lambda x, i: [lax.slice(x, (0, 0, 0), (2, 2, 4)), lax.slice(x, (0, 1, 1), (2, 3, 4), (1, 2, 2))],
    "rev": lambda x, i: [lax.rev(x, (0,)), lax.rev(x, (1, 2))],
    "pad": lambda x, i: [
        lax.pad(x, np.float32(1), ((1, 0, 0), (0, 0, 0), (0, 2, 0))),
        lax.pad(x, np.float32(2), ((-1, 0, 0), (0, 1, 2), (1, 1, 1))),
    ],
    "dynamic_slice": lambda x, i: [
        lax.dynamic_slice(x, (i[0, 0, 1], 0, i[0, 0, 2]), (1, 3, 2)),
        lax.dynamic_slice(x, (i[0, 0, 1], 0, i[0, 0, 2]), (2, 2, 1)),
    ],
    "convert_element_type": lambda x, i: [x.astype(np.int8), i.astype(np.float32)],
    "bitcast_convert_type": lambda x, i: [lax.bitcast_convert_type(x, np.int32), lax.bitcast_convert_type(i, np.float32)],
    "reduce_precision": lambda x, i: [lax.reduce_precision(x / 3, 8, 7), lax.reduce_precision(x / 3, 5, 10)],
    "integer_pow": lambda x, i: [lax.integer_pow(x, 3), lax.integer_pow(x + 1, -1), lax.integer_pow(i, 2)],
    "round": lambda x, i: [lax.round(x / 2, method) for method in lax.RoundingMethod],
    "mul": lambda x, i: [
        lax.mul(x, x),
        lax.mul(*[x.astype(jnp.bfloat16)] * 2, **_if_taken(lax.mul, out_dtype=np.float32)).astype(np.float32),
    ],
    "name": lambda x, i: [checkpoint_name(x, "first"), checkpoint_name(x, "second")],
    "device_put": lambda x, i: [jax.device_put(x), jax.device_put([x, i], jax.devices()[0], donate=False, may_alias=False)],
    "dot_general": lambda x, i: [
        lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,)))),
        lax.dot_general(x, x, (((0, 2), (0, 2)), ((), ()))),
        lax.dot_general(i.astype(np.int8), i.astype(np.int8), (((1,), (1,)), ((2,), (2,))), preferred_element_type=np.int32),
    ],
    "conv_general_dilated": lambda x, i: [
        _convolution(x),
        _convolution(x, window_strides=(2, 1), padding=((1, 1), (0, 2)), preferred_element_type=np.float32),
        _convolution(x, padding=((2, 1), (1, 2)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        _convolution(x, feature_group_count=2, depth=1),
        lax.conv_general_dilated(
            x.reshape(2, 3, 2, 2),
            (x % 3).reshape(2, 2, 2, 3)[..., :2],
            window_strides=(1, 1),
            padding="VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
    ],
    **{
        name: lambda x, i, function=function: [function(x, (1,)), function(x, (0, 2))]
        for name, function in _named(lax.reduce_sum, lax.reduce_prod, lax.reduce_max, lax.reduce_min)
    },
    **{
        name: lambda x, i, function=function: [function(i, (1,)), function(i > 3, (0, 2))]
        for name, function in _named(lax.reduce_and, lax.reduce_or, lax.reduce_xor)
    },
    "reduce": lambda x, i: [
        lax.reduce(x, x[0, 0, 1], lambda a, b: lax.max(a, b), (1,)),
        lax.reduce(x, x[0, 0, 1], lambda a, b: lax.add(a, b), (0, 2)),
    ],
    **{
        name: lambda x, i, function=function: [function(-x % 5, 1, np.int32), function(-x % 5, 2, np.int8)]
        for name, function in _named(lax.argmax, lax.argmin)
    },
    **{
        name: lambda x, i, function=function: [function(x % 5, 1), function(x % 5, 2, reverse=True)]
        for name, function in _named(lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
    },
    "cumlogsumexp": lambda x, i: [lax.cumlogsumexp(x * 0 - np.inf, 1), lax.cumlogsumexp(x * 0 - np.inf, 2, reverse=True)],
    "sort": lambda x, i: [
        lax.sort(-x % 5, 1),
        lax.sort((x % 2, -x), dimension=2, num_keys=2),
        lax.sort((x % 2, -x), dimension=2, num_keys=1, is_stable=False)[0],
    ],
    "top_k": lambda x, i: [lax.top_k(-x % 5, 2), lax.top_k(-x % 7, 1, axis=1, **_if_taken(lax.top_k, is_stable=False))],
    "reduce_window_sum": _reduce_window(0, lax.add),
    "reduce_window_max": _reduce_window(-np.inf, lax.max),
    "reduce_window_min": _reduce_window(np.inf, lax.min),
    "reduce_window": lambda x, i: [
        *_reduce_window(1, lambda a, b: lax.mul(a, b))(x % 3, i),
        lax.reduce_window(i, np.int32(0), lambda a, b: lax.bitwise_or(a, b), (1, 2, 2), (1, 1, 1), "VALID"),
    ],
    "gather": lambda x, i: [
        _gather(x, i, mode="clip"),
        _gather(x, i, mode="fill", fill_value=5),
        _gather(x[:, :, ::-1], i, mode="fill", indices_are_sorted=True),
        _gather(x, i // 2, mode="promise_in_bounds", unique_indices=True),
        _gather_columns(x, i),
    ],
    **{
        name: lambda x, i, function=function: [
            _scatter(function, x, i),
            _scatter(function, x, i, mode="promise_in_bounds", unique_indices=True),
            _scatter(function, x, i, mode="clip"),
            _scatter(function, x[::-1], i, indices_are_sorted=True, unique_indices=True)[:0],
            _scatter_columns(function, x, i),
        ]
        for name, function in _named(
            *(lax.scatter, lax.scatter_add, lax.scatter_sub, lax.scatter_mul, lax.scatter_min, lax.scatter_max)
        )
    },
    "scan": lambda x, i: [_loop(x), _loop(x.transpose(1, 0, 2), reverse=True)],
    "cond": lambda x, i: [_branch(x, lambda x: x + 1, lambda x: x * 2), _branch(x, jnp.sin, lambda x: -x, lambda x: x - 1)],
    "while": lambda x, i: [_while(3, x, x), _while(i[0, 0, 2], np.float32(2), x)],
}


REFUSED = {  # parameters that no node has
    "groups of the batch": lambda x, i: _convolution(x, batch_group_count=2),
    "a function of one's own": lambda x, i: x.at[0].apply(lambda row: row * 3 + 1),
}


def _elementwise(x, i):
    """Primitives without parameters that change a result."""
    floats = (
        *(lax.abs, lax.acos, lax.acosh, lax.asin, lax.asinh, lax.atan, lax.atanh, lax.cbrt, lax.ceil, lax.cos, lax.cosh),
        *(lax.erf, lax.erf_inv, lax.erfc, lax.exp, lax.exp2, lax.expm1, lax.floor, lax.is_finite, lax.log, lax.log1p),
        *(lax.logistic, lax.neg, lax.rsqrt, lax.sign, lax.sin, lax.sinh, lax.sqrt, lax.square, lax.tan, lax.tanh, jnp.log2),
        *(lax.optimization_barrier, jnp.copy, lax.stop_gradient),
    )
    comparisons = (lax.eq, lax.ge, lax.gt, lax.le, lax.lt, lax.ne)
    of_two = (lax.add, lax.atan2, lax.div, lax.max, lax.min, lax.pow, lax.rem, *comparisons)
    of_integers = (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.shift_left, lax.shift_right_logical)
    results = [function(x) for function in floats], [function(x, x) for function in of_two]
    others = (
        [function(i, i) for function in (*of_integers, lax.shift_right_arithmetic)],
        (lax.bitwise_not(i), lax.clz(i), lax.population_count(i)),
    )
    return results, others, lax.sub(x, x), lax.clamp(x, x, x), lax.select(i > 3, x, -x), _derivative(x), *_found(x, i)


def _derivative(x):
    return jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)))(x)


def _found(x, i):
    sides = [jnp.searchsorted(x[0, 0], x[1, 0], side=side) for side in ("left", "right")]
    return lax.dynamic_update_slice(x, x[:1], (i[0, 0, 1], 0, 0)), sides


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, as the writer meets them."""
    for equation in jaxpr.eqns:
        yield equation
        called = jaxprs.called(equation)
        for program in [called.jaxpr] if called is not None else jaxprs.programs(equation):
            yield from _equations(program)


FLOATS = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 9
INTEGERS = FLOATS.astype(np.int32)


@pytest.mark.parametrize("part", range(4))
def test_results(part):
    calls = dict(list(CALLS.items())[part::4])
    assert_exported(lambda x, i: {name: function(x, i) for name, function in calls.items()}, FLOATS, INTEGERS)


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason):
    with pytest.raises(ModelError, match=reason):
        export(REFUSED[reason], FLOATS, INTEGERS)


def test_every_parameter_differs():
    """Of every primitive that has a rule."""
    functions = *CALLS.values(), *REFUSED.values(), _elementwise
    jaxpr = jax.make_jaxpr(lambda x, i: [function(x, i) for function in functions])(FLOATS, INTEGERS)
    values, called = collections.defaultdict(set), set()
    for equation in _equations(jaxpr.jaxpr):
        called.add(equation.primitive.name)
        for name, value in equation.params.items():
            values[equation.primitive.name, name].add(str(value))
    assert set(PRIMITIVES) - called <= set(_NOT_CALLED)
    alike = {key for key, each in values.items() if len(each) == 1}
    assert not {(primitive, name) for primitive, name in alike if primitive in PRIMITIVES and name not in _WITHOUT_MEANING}
