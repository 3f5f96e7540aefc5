"""The Walsh-Hadamard transform of blocks"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import any_float_operand
from jquant.arguments.statics import dimension, integer
from jquant.formulas import hadamard
from jquant.lowering.formula import formula
from jquant.lowering.self_adjoint import self_adjoint
from jquant.placement import explain_array_errors

_OPERATOR = "hadamard_transform"


@formula("hadamard_transform", static=("axis", "block_size"))
def _hadamard_transform(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    return self_adjoint(hadamard.transform, x, axis - x.ndim, block_size)


@explain_array_errors
def hadamard_transform(x: ArrayLike, /, *, axis: int = -1, block_size: int | None = None) -> jax.Array:
    """The Walsh-Hadamard transform of blocks along an axis: it spreads outliers over their block before quantization.

    ``output[j] = 2 ** -ceil(m / 2) * sum((-1) ** popcount(i & j) * x[i])`` over the ``2 ** m`` elements i of a block

    This is the product of each block with the symmetric matrix ``scipy.linalg.hadamard(2 ** m)``, in its natural order, and
    with a power of two. For an even m, the transform is orthonormal and its own inverse. For an odd m, it shortens each
    block by the square root of 2: applied twice, it gives ``x / 2``, so that the inverse is twice the transform. (With the
    factor ``2 ** (-m / 2)``, each result would be rounded once more.)

    The sums are float32, whatever the type of `x`, and are taken in m stages: for the distances d = 1, 2, 4, ..., 2 ** (m - 1)
    in this order, each pair of elements a and b that are d apart becomes ``a + b`` and ``a - b``, each rounded once. The
    result is then scaled, and rounded to the type of `x`. Its bits are the same on every platform, inside any program.

    A NaN makes its block NaN; an infinity makes it infinite or NaN. The sums come before the scaling, so float32 elements
    near the largest float32 overflow. The derivative is the transform itself, in the same arithmetic.

    Args:
      x: float32, float16 or bfloat16, with at least one dimension.
      axis: the dimension along which blocks lie; a negative one counts from the end.
      block_size: a power of two that divides ``x.shape[axis]``; None for the largest that does. If that size is symbolic, as
        in `jax.export`, it must be given.

    Returns:
      An array of the shape and dtype of `x`.

    Raises:
      DescriptorError: a scalar; an axis that `x` does not have; a block size that is no power of two, or does not divide the
        axis.
      DescriptorTypeError: a data type other than those above, or a block size that is no integer.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([0.0, 0.0, 8.0, 0.0, 1.0, 1.0, 1.0, 1.0])
      >>> print(jquant.hadamard_transform(x, block_size=4))
      [ 4.  4. -4. -4.  2.  0.  0.  0.]

    References:
      Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs"; Liu et al., "SpinQuant: LLM Quantization with
      Learned Rotations".
    """
    x = any_float_operand(_OPERATOR, "x", x)
    axis = dimension(_OPERATOR, axis, x.ndim)
    return _hadamard_transform(x, axis, _block_size_of(x.shape[axis], block_size))


def _block_size_of(size: int, block_size: int | None) -> int:
    """The block size that is given, or the largest for a dimension of this `size`; 1 if there is nothing to transform."""
    if block_size is None:
        _require_known(size)
        return max(1, size & -size)
    what = f"a power of two that divides the size of the axis, {size}"
    block_size = integer(_OPERATOR, "block_size", block_size, range(1, 2**31), what)
    _require_whole_blocks(size, block_size, what)
    return 1 if isinstance(size, int) and size == 0 else block_size


@once_for_each_signature
def _require_known(size: int) -> None:
    message = f"{_OPERATOR}: block_size is None, but the size of the axis, {size}, is symbolic: pass a power of two"
    require(isinstance(size, int), message)


@once_for_each_signature
def _require_whole_blocks(size: int, block_size: int, what: str) -> None:
    fits = block_size & (block_size - 1) == 0 and size % block_size == 0
    require(fits, f"{_OPERATOR}: block_size is {block_size}; it must be {what}")
