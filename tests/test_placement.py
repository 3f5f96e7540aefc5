"""Errors about deleted arrays, and arrays on different devices, name the arguments of the public function."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from misuse import Call, calls
from misuse.kinds import FirstBatch
from support.sampling import one_in

import jquant
from jquant import DescriptorError, calibration, transform
from jquant.transform import TransformError

CALLS = list(calls())


def is_array(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def array_arguments(call: Call) -> list[str]:
    """The names of the arguments that hold arrays."""
    return [
        name
        for name, argument in call.arguments.items()
        if argument.names != "sharding" and any(map(is_array, jax.tree.leaves(argument.value)))
    ]


def map_arrays(function: Callable[[jax.Array], jax.Array], value: Any) -> Any:
    """A copy of a tree, with a function applied to a copy of every array."""
    return jax.tree.map(lambda leaf: function(jnp.array(leaf, copy=True)) if is_array(leaf) else leaf, value)


def deleted(value: Any) -> Any:
    def delete(array: jax.Array) -> jax.Array:
        array.delete()
        return array

    return map_arrays(delete, value)


def on_device(device: int, value: Any) -> Any:
    return map_arrays(lambda array: jax.device_put(array, jax.devices()[device]), value)


def argument_patterns(call: Call, *arguments: str) -> list[str]:
    """Patterns of arguments' names in an error; any name, if the call replaces a part of an argument."""
    return [rf"{name}\S*" if call.function is None else r"\S+" for name in arguments]


def function_pattern(call: Call) -> str:
    """The pattern of the function's name in an error."""
    return re.escape(call.name.removeprefix("calibration.").removeprefix("exact."))


def is_read(call: Call, name: str) -> bool:
    """Whether a function reads the values of an argument, and not only its shape."""
    unpacks = call.name.endswith(".unpack") and name != "data"
    return not (unpacks or isinstance(call.arguments[name].kind, FirstBatch))


DELETED = [(call, name) for call in CALLS for name in array_arguments(call) if is_read(call, name)]


def case_id(value: object) -> str:
    return value.name if isinstance(value, Call) else str(value)


@one_in(12, ("call", "name"), DELETED, ids=case_id)
def test_deleted(call, name):
    (argument,) = argument_patterns(call, name)
    arrays = rf"{argument}( and \S+|, .*)? ha(s|ve) been deleted, for instance because"
    with pytest.raises(DescriptorError, match=f"^{function_pattern(call)}: {arrays}"):
        call(**{name: deleted(call.arguments[name].value)})


@one_in(8, "call", [call for call in CALLS if sum(is_read(call, name) for name in array_arguments(call)) > 1], ids=case_id)
def test_different_devices(call):
    first, *others = array_arguments(call)
    devices = {first: 0, **dict.fromkeys(others, 1)}
    values = {name: on_device(device, call.arguments[name].value) for name, device in devices.items()}
    first_pattern, *other_patterns = argument_patterns(call, first, *others)
    places = rf"{first_pattern} on \S+[:_]0, ({'|'.join(other_patterns)}) on \S+[:_]1; jax.device_put moves"
    with pytest.raises(DescriptorError, match=f"^{function_pattern(call)}: the arrays are on different devices: {places}"):
        call(**values)


X, INTEGERS = jnp.ones((4, 4)), jnp.ones((4, 4), jnp.int8)
PACKED = jquant.pack_matrix(INTEGERS, jnp.ones(4, jnp.int8))


class Holder:
    """An object that JAX converts to an array."""

    def __init__(self, array: jax.Array):
        self.array = array

    def __jax_array__(self) -> jax.Array:
        return self.array


def quantized_function() -> tuple[Callable[..., Any], Any]:
    return transform.quantize(lambda params, x: x @ params["w"], {"w": jnp.ones((16, 16))}, transform.dynamic_int8, X16)


X16 = jnp.ones((4, 16))
PARTS: dict[str, Callable[[], Any]] = {
    "matmul_integer: b.block_sums has": lambda: jquant.matmul_integer(
        INTEGERS, jquant.PackedMatrix(PACKED.data, deleted(PACKED.block_sums), PACKED.zero_point, PACKED.dtype), 1
    ),
    "matmul_integer: b.data, b.block_sums and b.zero_point have": lambda: jquant.matmul_integer(INTEGERS, deleted(PACKED)),
    "matmul_integer: b.zero_point has": lambda: jquant.matmul_integer(  # a check reads it before any program runs
        INTEGERS,
        jquant.PackedMatrix(PACKED.data, PACKED.block_sums, deleted(PACKED.zero_point), PACKED.dtype),
        None,
        np.ones(4, np.int8),
    ),
    "matmul_integer: a, b, a_zero_point and 1 more have": lambda: jquant.matmul_integer(
        *deleted((INTEGERS, INTEGERS, np.int8(1), np.int8(1)))
    ),
    "quantized_linear_concat: inputs[1][1] has": lambda: jquant.quantized_linear_concat(
        [(INTEGERS, 0.5, 1), (INTEGERS, deleted(np.float32(0.5)), 1)], 0.5, 1, axis=1
    ),
    "quantize_linear: input has": lambda: jquant.quantize_linear(Holder(deleted(X)), 0.5),
    "quantize_linear: scale has": lambda: jquant.quantize_linear(X, deleted(np.ones((1, 1), np.float32))),
    "percentile: state.counts[0] has": lambda: _compute_range_of_deleted_counts(calibration.percentile(99)),
    "quantized_<lambda>: params['sites']['w']['scale'] has": lambda: _call_with_a_deleted_scale(*quantized_function()),
    "quantized_<lambda>: inputs[0] has": lambda: (lambda function, params: function(params, deleted(X16)))(
        *quantized_function()
    ),
    "transform.quantize: params['w'] has": lambda: transform.quantize(
        lambda params, x: x @ params["w"], {"w": deleted(np.ones((16, 16), np.float32))}, transform.dynamic_int8, X16
    ),
    "transform.calibrate: batches[0] has": lambda: transform.calibrate(
        lambda params, x: x @ params["w"], {"w": jnp.ones((16, 16))}, [deleted(X16)], transform.static_int8
    ),
    "calibrate: batches[1]['x'] has": lambda: calibration.calibrate(
        calibration.min_max(), [{"x": X}, {"x": deleted(X)}], lambda batch: batch["x"]
    ),
}


def _compute_range_of_deleted_counts(observer: calibration.Observer) -> Any:
    state = observer.update(observer.init(), X)
    return observer.compute_range(state._replace(counts=(deleted(state.counts[0]), state.counts[1])))


def _call_with_a_deleted_scale(function: Callable[..., Any], params: Any) -> Any:
    site = params["sites"]["w"]
    return function({**params, "sites": {"w": {**site, "scale": deleted(site["scale"])}}}, X16)


@one_in(3, "text", PARTS)
def test_parts_of_arguments(text):
    is_transform = text.startswith(("transform.", "quantized_<lambda>"))
    with pytest.raises(TransformError if is_transform else DescriptorError) as raised:
        PARTS[text]()
    assert str(raised.value).startswith(f"{text} been deleted, for instance because ")
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_donation():
    x = jnp.ones((4, 4))
    jax.jit(jquant.clip, donate_argnums=0)(x, 0, 6)
    with pytest.raises(DescriptorError, match=r"^clip: input has been deleted, for instance because it was donated to an "):
        jquant.clip(x, 0, 6)


def test_a_mesh_and_a_device():
    sharding = jax.sharding.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P())
    with pytest.raises(DescriptorError, match=r"devices: a on 8 devices from \S+[:_]0 on, b.data on \S+[:_]1; jax"):
        jquant.matmul_integer(jax.device_put(INTEGERS, sharding), on_device(1, PACKED))


def test_other_errors_are_unchanged():
    with pytest.raises(TypeError, match=r"^quantize_linear\(\) missing 1 required positional argument: 'scale'$"):
        jquant.quantize_linear(X)
    with pytest.raises(DescriptorError, match=r"^quantize_linear: scale has shape"):
        jquant.quantize_linear(X, deleted(np.ones((2, 2), np.float32)))  # the shape is checked first
    with pytest.raises(ValueError, match=r"^of the caller's own\ntransform.quantize called apply"):  # in a note
        transform.quantize(_raising, {"w": X16}, transform.dynamic_int8, X)


def _raising(params: Any, x: jax.Array) -> jax.Array:
    raise ValueError("of the caller's own")
