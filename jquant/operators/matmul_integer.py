"""DML_MATRIX_MULTIPLY_INTEGER"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.products import BATCH, product_shape, weights, with_more_dimensions
from jquant.kernels.matmul import matmul
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel, Implementation, optional_implementation
from jquant.packed.matrix import PackedMatrix
from jquant.placement import explain_array_errors

_OPERATOR = Operator("matmul_integer", "DML_MATRIX_MULTIPLY_INTEGER")
_LATEST = (
    Tensor("ATensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M K"),
    Tensor("AZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] AZeroPointCount [1]"),
    Tensor("BTensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
    Tensor("BZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] BZeroPointCount"),
    Tensor("OutputTensor", "Output", (2, 4), "INT32", "[BatchCount] [ChannelCount] M N"),
)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_more_dimensions(_LATEST),
        "5_2": _LATEST,
        "4_0": (
            Tensor("ATensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] M K"),
            Tensor("AZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] AZeroPointCount [1]"),
            Tensor("BTensor", "Input", (2, 4), "INT8 UINT8", "[BatchCount] [ChannelCount] K N"),
            Tensor("BZeroPointTensor", "Optional input", (2, 4), "INT8 UINT8", "[1] [1] 1 BZeroPointCount"),
            Tensor("OutputTensor", "Output", (2, 4), "INT32", "[BatchCount] [ChannelCount] M N"),
        ),
        "2_1": (
            Tensor("ATensor", "Input", (4, 4), "INT8 UINT8", "BatchCount ChannelCount M K"),
            Tensor("AZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 AZeroPointCount 1"),
            Tensor("BTensor", "Input", (4, 4), "INT8 UINT8", "BatchCount ChannelCount K N"),
            Tensor("BZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 1 BZeroPointCount"),
            Tensor("OutputTensor", "Output", (4, 4), "INT32", "BatchCount ChannelCount M N"),
        ),
    },
    same_data_type=(("BTensor", "BZeroPointTensor"), ("ATensor", "AZeroPointTensor")),
    same_rank=(("ATensor", "BTensor", "OutputTensor"),),
    counts={"AZeroPointCount": "M", "BZeroPointCount": "N"},
    batch=BATCH,
)


@formula("matmul_integer", static=("implementation",))
def _matmul_integer(
    a: jax.Array,
    b: jax.Array | PackedMatrix,
    a_zero_point: jax.Array | None,
    b_zero_point: jax.Array | None,
    implementation: Implementation | None,
) -> jax.Array:
    return matmul(a, b, a_zero_point, b_zero_point, implementation=implementation)


@explain_array_errors
def matmul_integer(
    a: ArrayLike,
    /,
    b: ArrayLike | PackedMatrix,
    a_zero_point: ArrayLike | None = None,
    b_zero_point: ArrayLike | None = None,
    *,
    implementation: Implementation | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Multiplies integer matrices, with zero points, into int32.

    ``output[m, n] = sum over k of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[n])``

    The sum is taken modulo 2**32: it is exact up to K = 33,025 and wraps where the true value leaves int32.
    Every combination of signed and unsigned operands runs on the platform's int8 unit. K = 0 gives zeros.

    The sums are in units of ``a_scale * b_scale``. `quantized_linear_matmul` requantizes them to 8 bits in one pass. To do
    so afterwards, call `quantize_linear` with ``output_scale / (a_scale * b_scale)`` as the scale, the output's zero point,
    and `axis` where there is a scale for each column. This divides where `quantized_linear_matmul` multiplies, so an integer
    can differ by one.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      a: int8 or uint8, of shape (..., M, K), with up to two batch dimensions; six at ``FeatureLevel.EXTENDED``.
      b: int8 or uint8, of shape (..., K, N) and the rank of `a`, or packed by `pack_matrix`. Batch dimensions of size 1
        broadcast. At ``FeatureLevel.EXTENDED`` the ranks may differ, as in NumPy: (batch, M, K) times (K, N).
      a_zero_point: of the dtype of `a`: a scalar, or one per row in shape (M,), (M, 1), (1, M, 1) or
        (1, 1, M, 1). None means 0. For zero points per batch, use `jax.vmap`.
      b_zero_point: of the dtype of `b`: a scalar, or one per column in shape (N,), (1, N), (1, 1, N) or
        (1, 1, 1, N). None means 0, or the zero point of packed weights; with these, any
        other is an error, and any at all while tracing.
      implementation: what computes the product, always with the same bits: "xla", "mosaic_tpu" (v5e, v5p, v6e, 7x) or
        "mosaic_gpu" (Hopper). None lets the library choose: a kernel where it has been run on the platform and was faster;
        so far "xla" on every platform. On a mesh, a kernel runs on each shard inside `jax.shard_map` or where all axes are
        explicit; elsewhere a warning says that "xla" takes its place.
      feature_level: the DirectML feature level whose table applies; the operator exists from 2_1 on.

    Returns:
      An int32 array of shape (..., M, N).

    Raises:
      DescriptorError: a rank, size or level outside of the table, a scalar that its type cannot hold, a zero point
        other than that of packed weights, or an unknown implementation.
      DescriptorTypeError: a data type outside of the table.
      NotImplementedError: from the compilation, where the named `implementation` does not support the platform, the chip or
        the shape.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> a = jnp.array([[11, 7, 3], [10, 6, 2]], jnp.uint8)
      >>> b = jnp.array([[1, 4], [2, 5], [3, 6]], jnp.int8)
      >>> jquant.matmul_integer(a, b, 12)
      Array([[-38, -83],
             [-44, -98]], dtype=int32)

    References:
      DirectML, `DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC`. ONNX, `MatMulInteger`, whose 1-D A zero point is
      per row as well.
    """
    call = Call(_DESCRIPTOR, feature_level)
    a = call.tensor("ATensor", a)
    a_zero_point = call.zero_point("A", a_zero_point, a.dtype)
    matrix, its_zero_point = weights(call, "B", b, b_zero_point)
    call.check(product_shape(a, matrix), jnp.dtype(jnp.int32))
    return _matmul_integer(a, matrix, a_zero_point, its_zero_point, optional_implementation(implementation))
