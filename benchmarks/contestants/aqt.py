"""AQT, whose integer products have no zero points."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contestant import Call, Contestant, dimension_numbers, jitted, require
from benchmarks.problem import Problem


def _dot_general(problem: Problem) -> Call:
    config, aqt_tensor = require("aqt.jax.v2.config"), require("aqt.jax.v2.aqt_tensor")
    ones = (1,) * problem.a.ndim

    def tensor(values: np.ndarray, scale: np.float32) -> object:
        scales = [np.full(ones, scale)]
        return aqt_tensor.QTensor(qvalue=values, scale=scales, scale_t=None, bias=[], dequant_dtype=np.dtype(np.float32))

    aqt = config.config_v4(fwd_bits=8, dlhs_bits=None, drhs_bits=None)
    dimensions = dimension_numbers(problem)

    def dot(a: Any, b: Any) -> jax.Array:
        # AQT takes the float operands as well, but does not use them: the compiler removes them.
        floats = (jnp.zeros(x.qvalue.shape) for x in (a, b))
        return aqt.dg_core(*floats, a, b, dimensions)[0]

    run = jitted(
        dot, tensor(problem.a_int8, problem.a_scale), tensor(problem.b, problem.b_scale), layers=problem.shape.layers
    )
    return Call(run, problem.int8_product.astype(np.float32) * (problem.a_scale * problem.b_scale))


_TIMED = "dg_core of AQT v2's config_v4 with two QTensors that are quantized ahead, int8 x int8 to float32, a scale each"
CONTESTANTS = (Contestant("aqt", f"{_TIMED}, no zero points", _dot_general, "aqtp"),)
