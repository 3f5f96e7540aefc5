"""Products with block scales, step by step."""

import numpy as np


def block_scaled_matmul(
    a,
    a_scale,
    a_zero_point,
    b,
    b_scale,
    b_zero_point=None,
    bias=None,
    *,
    minimum=None,
    block_size=None,
    k_parts=1,
    dtype=None,
):
    """``sum over blocks of fl(acc) * b_scale``, times `a_scale`, plus the bias, with each operation rounded once to float32.

    The blocks of each of `k_parts` parts are added in order, and the parts pairwise. `a_scale` and `a_zero_point` broadcast
    against A, `b_zero_point` against `b_scale`, and the bias against the output. `minimum`, in the shape of `b_scale`, adds
    ``fl(sum of A) * minimum`` to each block.
    """
    k, blocks = b.shape[-2], b_scale.shape[-2]
    block_size = k // max(blocks, 1) if block_size is None else block_size
    a = a.astype(np.int64) - (0 if a_zero_point is None else np.asarray(a_zero_point).astype(np.int64))
    b_zero_points = np.broadcast_to(0 if b_zero_point is None else np.asarray(b_zero_point).astype(np.int64), b_scale.shape)
    terms = []
    for block in range(blocks):
        rows = slice(block * block_size, (block + 1) * block_size)
        products = a[..., rows] @ (b[..., rows, :].astype(np.int64) - b_zero_points[..., block : block + 1, :])
        term = products.astype(np.float32) * b_scale[..., block : block + 1, :].astype(np.float32)
        if minimum is not None:
            row_sums = a[..., rows].sum(-1, keepdims=True)
            term = term + row_sums.astype(np.float32) * minimum[..., block : block + 1, :].astype(np.float32)
        terms.append(term)
    size = blocks // k_parts
    partial_sums = (
        [_sum_in_order(terms[part * size : (part + 1) * size]) for part in range(k_parts)]
        if blocks
        else [(a @ b.astype(np.int64)).astype(np.float32)]
    )
    while len(partial_sums) > 1:
        partial_sums = [first + second for first, second in zip(partial_sums[::2], partial_sums[1::2], strict=True)]
    scaled = partial_sums[0] * np.asarray(a_scale).astype(np.float32)
    output = scaled if bias is None else scaled + np.asarray(bias).astype(np.float32)
    return output.astype(np.asarray(a_scale).dtype if dtype is None else dtype)


def _sum_in_order(terms):
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
