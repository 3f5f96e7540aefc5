"""The networks that are measured: in float32, transformed with several recipes, handwritten, and by Qwix."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jquant
from benchmarks.transform.networks import MLP
from benchmarks.transform.quantized_by_qwix import quantized_by_qwix
from jquant import transform

SYMMETRIC = {"activation_type": "INT8"}
RECIPES = {
    "static": transform.static_int8,
    "static, symmetric": transform.Recipe([("*", transform.Scheme(activations="STATIC", **SYMMETRIC))]),
    "static, percentile": transform.Recipe([("*", transform.Scheme(activations="STATIC", observer=("percentile", 99.99)))]),
    "dynamic": transform.dynamic_int8,
    "dynamic, symmetric": transform.Recipe([("*", transform.Scheme(activations="DYNAMIC", **SYMMETRIC))]),
    "dynamic by row": transform.Recipe([("*", transform.Scheme(activations="DYNAMIC_ROW"))]),
    "weight only": transform.weight_only_int8,
}


class Contestant(NamedTuple):
    """A function of its parameters and of images, and its parameters."""

    function: Callable[..., Any]
    params: Any


def handwritten(model: nn.Module, params: Any, calibration: dict[str, Any]) -> Contestant:
    """The static int8 network, written with the operators: what `transform.quantize` should give, and cost."""
    layers = params["params"]

    def quantized(name: str) -> dict[str, Any]:
        kernel, bias = layers[name]["kernel"], layers[name]["bias"]
        largest = jnp.abs(kernel).max(tuple(range(kernel.ndim - 1)), keepdims=True)
        scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
        values = jquant.quantize_linear(kernel, scale, output_dtype="INT8")
        low, high = calibration[f"params/{name}/kernel"]
        x_scale, x_zero_point = jquant.scale_and_zero_point(low, high, "UINT8")
        if kernel.ndim == 2:
            values = jquant.pack_matrix(values)
        return {"values": values, "scale": scale.reshape(-1), "bias": bias, "x": x_scale, "zero_point": x_zero_point}

    def apply(layer: dict[str, Any], x: jax.Array, **geometry: Any) -> jax.Array:
        x = jquant.quantize_linear(x, layer["x"], layer["zero_point"])
        operands = x, layer["x"], layer["zero_point"], layer["values"], layer["scale"]
        if not geometry:
            return jquant.matmul_integer_to_float(*operands) + layer["bias"]
        layout = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jquant.convolution_integer_to_float(*operands, **layout, **geometry) + layer["bias"]

    def mlp(params: dict[str, Any], images: jax.Array) -> jax.Array:
        x = images.reshape(images.shape[0], 64)
        for name in ("Dense_0", "Dense_1"):
            x = nn.relu(apply(params[name], x))
        return apply(params["Dense_2"], x)

    def cnn(params: dict[str, Any], images: jax.Array) -> jax.Array:
        x = images
        for name, stride in (("Conv_0", 1), ("Conv_1", 2), ("Conv_2", 1)):
            x = nn.relu(apply(params[name], x, strides=(stride, stride)))
        return apply(params["Dense_0"], x.mean((1, 2)))

    return Contestant(mlp if isinstance(model, MLP) else cnn, {name: quantized(name) for name in layers})


def make_contestants(model: nn.Module, params: Any, batches: list[np.ndarray]) -> dict[str, Contestant]:
    """All contestants, each with a copy of its parameters."""
    contestants = {"float32": Contestant(model.apply, params)}
    static_calibrations = {}
    for name, recipe in RECIPES.items():
        calibration = transform.calibrate(model.apply, params, batches, recipe) if name.startswith("static") else None
        static_calibrations[name] = calibration
        function, quantized_params = transform.quantize(model.apply, params, recipe, batches[0], calibration=calibration)
        contestants[f"transform, {name}"] = Contestant(function, quantized_params)
    contestants["by hand, static"] = handwritten(model, params, static_calibrations["static"])
    try:
        for static in (True, False):
            name = f"qwix, {'static' if static else 'dynamic'}, symmetric"
            contestants[name] = Contestant(*quantized_by_qwix(model, params, batches, static=static))
    except ImportError:
        print("qwix is not installed, so it is left out")
    return {
        name: contestant._replace(params=jax.tree.map(jnp.array, contestant.params))
        for name, contestant in contestants.items()
    }
