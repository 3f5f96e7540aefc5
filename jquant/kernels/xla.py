"""The integer product by XLA's own dot: for every platform, and the reference for the kernels."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jquant.kernels import epilogue as epilogues
from jquant.kernels import epilogue_on_gpu
from jquant.kernels.epilogue import Epilogue
from jquant.lowering import cpu_features, materialize
from jquant.lowering.contraction import out_sharding
from jquant.lowering.partitioned import unless_partitioned
from jquant.lowering.symbolic_sizes import joined

# XLA:CPU transposes K-major weights in each call, unless they are the left operand. Then the product itself is slower: on
# processors without AMX far slower, except for one row up to jax 0.10; with AMX from about 32 rows on.
_ONE_ROW_ON_THE_RIGHT = jax.__version_info__ < (0, 11)
_MOST_ROWS_ON_THE_RIGHT = 16
_LEAST_WEIGHTS_ON_THE_LEFT = 64  # columns; with fewer, transposing the product is not worth it

# XLA:GPU splits K over several kernels for fewer rows, and adds up their sums before the epilogue.
_FUSES_INTO_PRODUCTS_ON_GPU = jax.__version_info__ >= (0, 12)
_LEAST_ROWS_OF_FUSED_PRODUCTS = 129


def integer_dot(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool = False) -> jax.Array:
    """``epilogue(a @ b)``, the product in int32.

    Args:
      a: int8, of shape (..., M, K).
      b: int8, of shape (..., K, N), or (..., N, K) with `transpose_b`. Batch sizes of 1 broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`.
      transpose_b: whether `b` is K-major, as packed weights are.
    """
    return epilogues.apply(epilogue, _product(a, b, transpose_b))


def integer_dot_on_cpu(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool = False) -> jax.Array:
    """`integer_dot` on a CPU, where XLA multiplies matrices fast, but not vectors: those get a second row or column."""
    # A batch of rows that all multiply one B, as `jax.vmap` makes it, is a matrix.
    is_row = a.shape[-2] == 1 and (_is_one_matrix(a) or not _is_one_matrix(b))
    is_column = b.shape[-2 if transpose_b else -1] == 1
    on_the_left = transpose_b and not is_column and _is_faster_on_the_left(a, b, is_row)
    if is_row:
        a = _with_zeros(a, axis=a.ndim - 2)
    if is_column:
        b = _with_zeros(b, axis=b.ndim - (2 if transpose_b else 1))
    if on_the_left and is_row:
        product = _product(b, a, transpose_b)[..., None, :, 0]
    elif on_the_left:  # XLA would swap the operands again to avoid the transposition
        rows = a.reshape(*(1,) * (a.ndim - 2), math.prod(a.shape[:-1]), a.shape[-1])
        product = jnp.swapaxes(materialize.stored(_product(b, rows, transpose_b)), -1, -2)
        product = product.reshape(*a.shape[:-1], b.shape[-2])
    else:
        product = _product_in_one_batch(a, b, transpose_b)
        if epilogue:  # can write its result over the product, unless XLA fuses a reshape between the two into it
            product = materialize.stored(product)
        product = product[..., : 1 if is_row else None, : 1 if is_column else None]
    return epilogues.apply(epilogue, product)


def integer_dot_on_gpu(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool = False) -> jax.Array:
    """`integer_dot` on an NVIDIA GPU, where XLA computes an epilogue of a simple form in the kernel of the product."""
    rows = math.prod(a.shape[:-1] if _is_one_matrix(b) else a.shape[-2:-1])
    is_fused = _FUSES_INTO_PRODUCTS_ON_GPU and isinstance(rows, int) and rows >= _LEAST_ROWS_OF_FUSED_PRODUCTS
    apply = epilogue_on_gpu.apply if is_fused else epilogues.apply
    return apply(epilogue, _product(a, b, transpose_b))


def _is_faster_on_the_left(a: jax.Array, b: jax.Array, is_row: bool) -> bool:
    """Whether the product is faster with the K-major weights `b` as the left operand, and `a` as the right one."""
    if is_row:
        return _ONE_ROW_ON_THE_RIGHT or cpu_features.has_amx_int8()
    *rows, n = *a.shape[:-1], b.shape[-2]
    is_static = all(isinstance(size, int) for size in (*rows, n))
    if not is_static or not _is_one_matrix(b) or any(jax.typeof(a).sharding.spec[:-2]):
        return False  # rows of a batch that explicit axes split cannot be joined
    few = math.prod(rows) <= _MOST_ROWS_ON_THE_RIGHT and n >= _LEAST_WEIGHTS_ON_THE_LEFT
    return few and cpu_features.has_amx_int8()


def _is_one_matrix(x: jax.Array) -> bool:
    return all(size == 1 for size in x.shape[:-2])


def _with_zeros(x: jax.Array, axis: int) -> jax.Array:
    return lax.concatenate([x, lax.full_like(x, 0)], axis)


def _product(a: jax.Array, b: jax.Array, transpose_b: bool) -> jax.Array:
    if _is_one_matrix(b):  # one matrix for all: the batch of A is just more rows
        b = b.reshape(b.shape[-2:])
        batch = ()
    else:
        a, b = _with_joint_batch(a, b)
        batch = tuple(range(a.ndim - 2))
    k_axis, n_axis = (-1, -2) if transpose_b else (-2, -1)
    contraction = ((a.ndim - 1,), (b.ndim + k_axis,))
    split = out_sharding(a, b, k_axis, n_axis)
    return lax.dot_general(a, b, (contraction, (batch, batch)), preferred_element_type=jnp.int32, out_sharding=split)


def _product_in_one_batch(a: jax.Array, b: jax.Array, transpose_b: bool) -> jax.Array:
    """The product, computed with its batch dimensions merged into one, unless XLA partitions the program.

    XLA:CPU folds a transposition of the operands into the product, for which it then has no fast int8 code. It does not look
    for a transposition through a reshape.
    """
    if a.ndim <= 3 or _is_one_matrix(b):
        return _product(a, b, transpose_b)

    def at_once(a: jax.Array, b: jax.Array) -> tuple[jax.Array]:
        a, b = _with_joint_batch(a, b)
        merged_a, merged_b = (x.reshape(joined(x.shape[:-2]), *x.shape[-2:]) for x in (a, b))
        product = _product(merged_a, merged_b, transpose_b)
        return (product.reshape(*a.shape[:-2], *product.shape[-2:]),)

    (product,) = unless_partitioned(at_once, lambda a, b: (_product(a, b, transpose_b),), a, b)
    return product


def _with_joint_batch(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both operands, broadcast to their common batch. A dimension that explicit axes split in one is split in both."""
    sizes = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shardings = [jax.typeof(x).sharding for x in (a, b)]
    specs = (sharding.spec[:-2] for sharding in shardings)
    axes = [a_axes if a_axes is not None else b_axes for a_axes, b_axes in zip(*specs, strict=True)]
    mesh = shardings[shardings[0].mesh.empty].mesh

    def broadcast(x: jax.Array) -> jax.Array:
        if not any(axes):
            return jnp.broadcast_to(x, (*sizes, *x.shape[-2:]))
        if jax.typeof(x).sharding.mesh.empty:  # such as a NumPy array
            x = jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec()))
        split = NamedSharding(mesh, PartitionSpec(*axes, *jax.typeof(x).sharding.spec[-2:]))
        return jnp.broadcast_to(x, (*sizes, *x.shape[-2:]), out_sharding=split)

    return broadcast(a), broadcast(b)
