"""The steps that follow an integer product: zero points, bias, scales, and conversion to the output's type.

Each step is a pytree, whose arrays broadcast against the product, and a function of the product. So XLA can apply a step to
the whole product and a kernel to one block of it, with the same arithmetic: a kernel flattens the step to its arrays with
`jax.tree.flatten`, and unflattens it with their blocks.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, rounding
from jquant.lowering import materialize
from jquant.quantized_tensor import ScaleZeroPoint

Step = Callable[[jax.Array], jax.Array]
Epilogue = tuple[Step, ...]


def apply(epilogue: Epilogue, product: jax.Array) -> jax.Array:
    """Applies the steps in order to an int32 `product` of shape (..., M, N), outside a kernel."""
    result = apply_in_kernel(epilogue, product)
    return materialize.shared(result) if epilogue and jnp.issubdtype(result.dtype, jnp.integer) else result


def apply_in_kernel(epilogue: Epilogue, product: jax.Array) -> jax.Array:
    """Applies the steps in order to a block of a product, in the body of a kernel."""
    for step in epilogue:
        product = step(product)
    return product


def output_dtype(epilogue: Epilogue) -> np.dtype:
    """The dtype of the result of the steps on an int32 product."""
    converting = (step.dtype for step in reversed(epilogue) if isinstance(step, Dequantize | Scale | Requantize | Rescale))
    return np.dtype(next(converting, np.int32))


def prepared(epilogue: Epilogue) -> Epilogue:
    """The steps with all that they compute once for the whole product: see `Rescale`."""
    return tuple(step.prepared() if isinstance(step, Rescale) else step for step in epilogue)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ZeroPointCorrection:
    """``product - sum of the terms`` in int32: the correction for zero points (see `zero_point.correction`).

    Attributes:
      terms: for each term, its factors: int32, of shape (..., M, 1), (..., 1, N) or (..., 1, 1).
    """

    terms: tuple[tuple[jax.Array, ...], ...]

    def __call__(self, product: jax.Array) -> jax.Array:
        for factors in self.terms:
            product = product - functools.reduce(operator.mul, factors)
        return product


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AddBias:
    """``product + bias`` in int32.

    Attributes:
      bias: int32, of a shape that broadcasts to (..., M, N).
    """

    bias: jax.Array

    def __call__(self, product: jax.Array) -> jax.Array:
        return product + self.bias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dequantize:
    """``fl(float32(product) * fl(a_scale * b_scale))``, and ``fl(... + bias)``, rounded once more to `dtype`.

    Attributes:
      a_scale: float32, of shape (..., M, 1) or (..., 1, 1).
      b_scale: float32, of shape (..., 1, N) or (..., 1, 1).
      bias: float32, of a shape that broadcasts to (..., M, N), or None.
      dtype: float32, float16 or bfloat16.
    """

    a_scale: jax.Array
    b_scale: jax.Array
    bias: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    def __call__(self, product: jax.Array) -> jax.Array:
        value = exact.product(product.astype(jnp.float32), exact.product(self.a_scale, self.b_scale))
        return exact.narrow(value if self.bias is None else exact.sum(value, self.bias), self.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scale:
    """``fl(value * scale)`` of float32, and ``fl(... + bias)``, rounded once more to `dtype`.

    Attributes:
      scale: floats, of shape (..., M, 1) or (..., 1, 1).
      bias: floats, of a shape that broadcasts to (..., M, N), or None.
      dtype: float32, float16 or bfloat16.
    """

    scale: jax.Array
    bias: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    def __call__(self, value: jax.Array) -> jax.Array:
        scaled = exact.product(value, exact.widen(self.scale))
        return exact.narrow(scaled if self.bias is None else exact.sum(scaled, exact.widen(self.bias)), self.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Requantize:
    """``sat(rne(fl(float32(product) * multiplier)) + zero_point)``; NaN becomes 0.

    Attributes:
      multiplier: float32, of a shape that broadcasts to (..., M, N).
      zero_point: int32, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      dtype: int8 or uint8.
    """

    multiplier: jax.Array
    zero_point: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    def __call__(self, product: jax.Array) -> jax.Array:
        return rounding.nearest_integer_in_kernel(product.astype(jnp.float32) * self.multiplier, self.zero_point, self.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rescale:
    """`Dequantize`, or with an output scale `Requantize`, from the arrays that an operator was given.

    `prepared` computes what these need first. Compiled code that takes the arrays as they are does so in its own call, so
    that the program of an operator is that call and nothing else.

    Attributes:
      a_scale: floats, of shape (..., M, 1) or (..., 1, 1).
      b_scale: floats, of shape (..., 1, N) or (..., 1, 1).
      output_scale: floats, of shape (..., M, 1) or (..., 1, 1), or None for a result of floats.
      zero_point: of the output: of `dtype`, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      bias: floats, of a shape that broadcasts to (..., M, N), or None; for a result of floats.
      dtype: int8 or uint8 with an output scale; otherwise float32, float16 or bfloat16.
    """

    a_scale: jax.Array
    b_scale: jax.Array
    output_scale: jax.Array | None
    zero_point: jax.Array | None
    bias: jax.Array | None
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    def prepared(self) -> Dequantize | Requantize:
        """`Requantize` has the multiplier ``fl(fl(a_scale * b_scale) / output_scale)``."""
        a_scale, b_scale = exact.widen(self.a_scale), exact.widen(self.b_scale)
        if self.output_scale is None:
            return Dequantize(a_scale, b_scale, None if self.bias is None else exact.widen(self.bias), self.dtype)
        multiplier = exact.quotient(exact.product(a_scale, b_scale), exact.widen(self.output_scale))
        return Requantize(multiplier, None if self.zero_point is None else self.zero_point.astype(jnp.int32), self.dtype)

    def __call__(self, product: jax.Array) -> jax.Array:
        return self.prepared()(product)


def dequantize(a_scale: jax.Array, b_scale: jax.Array, bias: jax.Array | None, dtype: np.dtype) -> Rescale:
    """To floats, all in shapes that broadcast."""
    return Rescale(a_scale, b_scale, None, None, bias, dtype)


def requantize(a_scale: jax.Array, b_scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype) -> Rescale:
    """To 8 bits, all in shapes that broadcast."""
    return Rescale(a_scale, b_scale, output.scale, output.zero_point, None, dtype)


def as_column(x: jax.Array, rank: int) -> jax.Array:
    """One value per tensor or per row of a matrix, in shape (..., 1 or M, 1)."""
    return jnp.reshape(x, (*(1,) * (rank - 2), -1, 1))


def as_row(x: jax.Array, rank: int) -> jax.Array:
    """One value per tensor or per column of a matrix, in shape (..., 1, 1 or N)."""
    return jnp.reshape(x, (*(1,) * (rank - 2), 1, -1))
