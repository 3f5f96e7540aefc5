"""A quantized `jax.lax.dot_general`"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.dot_dimensions import DimensionNumbers, dot_dimensions
from jquant.arguments.operands import FLOAT32, Operand, any_float_operand
from jquant.arguments.statics import float_data_type
from jquant.arithmetic import exact
from jquant.arithmetic.broadcasting import to_rank
from jquant.arithmetic.straight_through import straight_through
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.formulas import affine
from jquant.formulas.dot_dimensions import DotDimensions, free, matrices, reshaped
from jquant.kernels import dynamic_quantization
from jquant.kernels.epilogue import Dequantize
from jquant.kernels.integer_dot import integer_dot
from jquant.lowering.formula import formula
from jquant.modes import ScaleGranularity, scale_granularity
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = "dot_general"
_INT8 = np.dtype(np.int8)


class _Product(NamedTuple):
    """The static arguments of a call."""

    dimensions: DotDimensions
    lhs_scales: ScaleGranularity
    rhs_scales: ScaleGranularity
    output_dtype: np.dtype
    precision: Any

    def in_floats(self, lhs: jax.Array, rhs: jax.Array, out_sharding: NamedSharding | None) -> jax.Array:
        return lax.dot_general(
            lhs,
            rhs,
            dimension_numbers=self.dimensions.numbers,
            precision=self.precision,
            preferred_element_type=self.output_dtype,
            out_sharding=out_sharding,
        )


def _quantized(x: jax.Array, contracting: Sequence[int], scales: ScaleGranularity) -> Quantized:
    """`x` in symmetric int8, with a scale of the rank of `x`."""
    axes = contracting if scales is ScaleGranularity.PER_CHANNEL else range(x.ndim)
    integers, scale, _ = dynamic_quantization.quantize(lax.stop_gradient(x), None, (*axes,), True, _INT8)
    return Quantized(integers, scale, None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _multiply(lhs: jax.Array, rhs: jax.Array, product: _Product) -> jax.Array:
    lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = product.dimensions.in_order_of_lhs()
    lhs_free, rhs_free = free(lhs.ndim, lhs_contracting, lhs_batch), free(rhs.ndim, rhs_contracting, rhs_batch)
    # Several row dimensions are kept as they are, so that what a mesh splits of each stays in place.
    rows = matrices(lhs, lhs_batch, lhs_free, lhs_contracting, merged=bool(lhs_batch))
    transpose_b = rhs.ndim - 1 in rhs_contracting
    columns = matrices(rhs, rhs_batch, *((rhs_free, rhs_contracting) if transpose_b else (rhs_contracting, rhs_free)))
    a = _quantized(rows, (rows.ndim - 1,), product.lhs_scales)
    b = _quantized(columns, (columns.ndim - (1 if transpose_b else 2),), product.rhs_scales).to_rank(rows.ndim)
    b_scale = lax.expand_dims(lax.squeeze(b.scale, (-1,)), (-2,)) if transpose_b else b.scale
    epilogue = (Dequantize(a.scale, to_rank(b_scale, rows.ndim), None, product.output_dtype),)
    output = integer_dot(a.values, b.values, epilogue, transpose_b=transpose_b)
    shape = *(lhs.shape[one] for one in (*lhs_batch, *lhs_free)), *(rhs.shape[one] for one in rhs_free)
    return reshaped(output, shape)


@functools.partial(_multiply.defjvp, symbolic_zeros=True)
def _multiply_jvp(product: _Product, primals, tangents):
    """The derivative of the float product of the rounded operands, which have the derivatives of the unrounded ones."""
    (lhs, rhs), (lhs_dot, rhs_dot) = primals, tangents
    output = _multiply(lhs, rhs, product)
    sharding = jax.typeof(output).sharding  # required by lax where explicit axes split the sum
    is_explicit = not sharding.mesh.empty and sharding.mesh.are_all_axes_explicit
    multiply = functools.partial(product.in_floats, out_sharding=sharding if is_explicit else None)
    lhs_contracting, rhs_contracting, *_ = product.dimensions
    terms = []
    if not isinstance(lhs_dot, SymbolicZero):
        terms.append(multiply(lhs_dot, _rounded(rhs, rhs_contracting, product.rhs_scales)))
    if not isinstance(rhs_dot, SymbolicZero):
        terms.append(multiply(_rounded(lhs, lhs_contracting, product.lhs_scales), rhs_dot))
    return output, functools.reduce(lax.add, terms)


def _rounded(x: jax.Array, contracting: Sequence[int], scales: ScaleGranularity) -> jax.Array:
    """`x`, quantized and dequantized, in its dtype and with its derivative."""
    return straight_through(exact.narrow(affine.dequantize(_quantized(x, contracting, scales)), x.dtype), x)


@formula("dot_general", static=("product",))
def _dot_general(lhs: jax.Array, rhs: jax.Array, product: _Product) -> jax.Array:
    return _multiply(lhs, rhs, product)


@explain_array_errors
def dot_general(
    lhs: ArrayLike,
    /,
    rhs: ArrayLike,
    dimension_numbers: DimensionNumbers,
    precision: lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | str | None = None,
    *,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    lhs_scales: ScaleGranularity | str = "PER_CHANNEL",
    rhs_scales: ScaleGranularity | str = "PER_CHANNEL",
) -> jax.Array:
    """Multiplies float arrays in int8, in place of `jax.lax.dot_general`, and has a derivative for training.

    ``scale = max(abs(x)) / 127`` for elements that share a scale, ``q(x) = round(x / scale)`` for each operand, and
    ``output = float32(sum of q(lhs) * q(rhs)) * (lhs_scale * rhs_scale)``

    It can be passed wherever such a product is accepted: as the argument `dot_general` of Flax's layers, or `_dot_general`
    of `jnp.einsum`. Both operands are quantized in each call, the weights too. For inference alone, `quantize_linear` and
    `pack_matrix` do that once.

    The integers run from -127 to 127. With ``PER_CHANNEL``, elements that differ only in their indices of contracted
    dimensions share a scale: each token of the activations has its own, as does each output channel of the weights, in each
    matrix of a batch. With ``PER_TENSOR``, all elements share one. The result equals that of these operators, bit for bit,
    as does each step:

    - ``scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)``, where `largest` is
      ``max(abs(x))`` in float32, and NaN if any element is (on a CPU, `jnp.max` ignores NaN); a row of zeros has scale 1;
    - ``quantize_linear(x, scale, output_dtype="INT8", feature_level="EXTENDED")``;
    - ``matmul_integer_to_float(a, a_scale, None, b, b_scale, output_dtype=..., feature_level="EXTENDED")`` of the integers
      as matrices, mapped over batch dimensions by `jax.vmap`. The sum, the product of the scales and the product of the two
      are each rounded to float32; a 16-bit output once more.

    A NaN or an infinity makes every result that uses its scale NaN: those of its row or column, or all. The sum is exact
    for up to 133,144 terms, and modulo 2**32 beyond. Nothing is promised where the product of two scales is not a normal
    float32 (where both operands are about 1e-17 or less).

    The derivative is the straight-through estimate, in both operands: that of ``lax.dot_general(q(lhs) * lhs_scale,
    q(rhs) * rhs_scale)``, where rounding has the derivative 1 and the scales count as constants. It is computed by products
    of floats, whose operands are the dequantized integers (those of `dequantize_linear`) in the operands' own dtypes.

    Args:
      lhs, rhs: float32, float16 or bfloat16, of any rank. Their dtypes may differ.
      dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, as for `jax.lax.dot_general`, each
        a list of dimensions, counted from 0.
      precision: that of the products in the derivative, as for `jax.lax.dot_general`. The product of integers is exact.
      preferred_element_type: the dtype of the result: float32, float16 or bfloat16. None: that of the wider operand, as in
        `jax.lax.dot_general`; for float16 with bfloat16, it is bfloat16.
      out_sharding: how the result is split over explicit axes of a mesh, as for `jax.lax.dot_general`.
      lhs_scales, rhs_scales: a `ScaleGranularity`, or its name: ``"PER_CHANNEL"``, ``"PER_TENSOR"``.

    Returns:
      An array of the shape that `jax.lax.dot_general` returns: the batch dimensions, the free dimensions of `lhs`, and those
      of `rhs`.

    Raises:
      DescriptorError: dimension numbers that do not fit the operands, an unknown granularity or precision, or a sharding
        that JAX rejects.
      DescriptorTypeError: a data type other than those above: integers have operators of their own.

    Example:
      >>> import functools, jax, jax.numpy as jnp, jquant
      >>> tokens, weights = jnp.array([[1.27, -0.5], [0.0, 2.54]]), jnp.array([[1.27, 0.1], [0.5, -0.127]])
      >>> matmul = (((1,), (0,)), ((), ()))
      >>> jquant.dot_general(tokens, weights, matmul)
      Array([[ 1.3629 ,  0.1905 ],
             [ 1.27   , -0.32258]], dtype=float32)
      >>> print(jax.grad(lambda weights: jquant.dot_general(tokens, weights, matmul).sum())(weights))
      [[1.27 1.27]
       [2.04 2.04]]
      >>> einsum = functools.partial(jnp.einsum, _dot_general=functools.partial(jquant.dot_general, lhs_scales="PER_TENSOR"))
      >>> einsum("tk,kn->tn", tokens.astype(jnp.bfloat16), weights.astype(jnp.bfloat16)).dtype
      dtype(bfloat16)

    References:
      JAX, `jax.lax.dot_general`. Its dimension numbers are those of XLA's DotGeneral.
    """
    lhs, rhs = any_float_operand(_OPERATOR, "lhs", lhs), any_float_operand(_OPERATOR, "rhs", rhs)
    product = _Product(
        dot_dimensions(_OPERATOR, dimension_numbers, lhs.shape, rhs.shape),
        scale_granularity("lhs_scales", lhs_scales),
        scale_granularity("rhs_scales", rhs_scales),
        _output_data_type(lhs, rhs, preferred_element_type),
        _precision(precision),
    )
    output = _dot_general(lhs, rhs, product)
    return output if out_sharding is None else _split(output, out_sharding)


def _output_data_type(lhs: Operand, rhs: Operand, preferred: DTypeLike | str | None) -> np.dtype:
    """The preferred one, else that of the operand with the larger range or, if these are equal, the finer one, as in lax."""
    if preferred is not None:
        return float_data_type(_OPERATOR, "preferred_element_type", preferred)
    return max(lhs.dtype, rhs.dtype, key=lambda dtype: (jnp.finfo(dtype).maxexp, jnp.finfo(dtype).nmant))


def _precision(precision: lax.PrecisionLike) -> Any:
    """Returns `precision`, asserting that lax accepts it."""
    if precision is None:
        return None
    hashable: Any = tuple(precision) if isinstance(precision, list) else precision
    try:
        _try_precision(hashable)
    except Exception as error:  # of a value that is not hashable, or whatever lax raises
        error_class = DescriptorError if isinstance(precision, str) else DescriptorTypeError
        message = f"{_OPERATOR}: precision is {shown(precision)}; it must be one that jax.lax.dot_general accepts"
        raise error_class(message) from error
    return hashable


@functools.lru_cache(typed=True)
def _try_precision(precision: Any) -> None:
    scalar = jax.ShapeDtypeStruct((), FLOAT32)
    jax.eval_shape(lambda a, b: lax.dot_general(a, b, (((), ()), ((), ())), precision), scalar, scalar)


def _split(output: jax.Array, out_sharding: NamedSharding | PartitionSpec) -> jax.Array:
    subject = f"{_OPERATOR}: out_sharding is {shown(out_sharding)}"
    if not isinstance(out_sharding, NamedSharding | PartitionSpec):
        raise DescriptorTypeError(f"{subject}; it must be a NamedSharding, a PartitionSpec or None")
    try:
        return jax.reshard(output, out_sharding)
    except (TypeError, ValueError) as error:
        raise DescriptorError(f"{subject}, which JAX rejects: {error}") from error
