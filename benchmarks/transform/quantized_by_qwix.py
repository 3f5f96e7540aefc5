"""Flax networks as Qwix quantizes them: int8, symmetric."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def quantized_by_qwix(
    model: nn.Module, params: Any, batches: Sequence[Any], *, static: bool
) -> tuple[Callable[..., Any], Any]:
    """The int8 function and its parameters; scales of activations are calibrated (static), or computed in each call."""
    import qwix

    rules = [qwix.QuantizationRule(weight_qtype=jnp.int8, act_qtype=jnp.int8, act_static_scale=static)]
    statistics: Any = {}
    if static:
        aware = qwix.quantize_model(model, qwix.QtProvider(rules))
        statistics = aware.init(jax.random.key(0), batches[0])["quant_stats"]
        for batch in batches:
            _, changed = aware.apply({**params, "quant_stats": statistics}, batch, mutable="quant_stats")
            statistics = changed["quant_stats"]
    int8 = qwix.quantize_model(model, qwix.PtqProvider(rules))
    like = jax.eval_shape(int8.init, jax.random.key(0), batches[0])["params"]
    quantized_params = qwix.quantize_params(params["params"], like, statistics)
    return lambda params, x: int8.apply({"params": params}, x), quantized_params
