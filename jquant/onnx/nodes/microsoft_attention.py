"""onnxruntime's attention with quantized projections."""

import jax
import jax.numpy as jnp

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import FEATURE_LEVEL, with_parameters
from jquant.onnx.running.registry import converter
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float


@converter("QAttention", domain=MICROSOFT, packs={"weight": "weight_zero_point"})
def attention(
    input,
    weight,
    bias,
    input_scale,
    weight_scale,
    mask_index=None,
    input_zero_point=None,
    weight_zero_point=None,
    past=None,
    *,
    num_heads,
    unidirectional=0,
    scale=None,
    mask_filter_value=-10000.0,
    do_rotary=0,
    past_present_share_buffer=0,
):
    """Queries, keys and values come from one integer product. Everything else is computed in float by JAX.

    The second output holds the keys and the values, preceded by those of `past`.
    """
    if do_rotary or past_present_share_buffer:
        raise ModelError("do_rotary and past_present_share_buffer are not supported")
    projected = matmul_integer_to_float(
        *with_parameters(input, input_scale, input_zero_point),
        *with_parameters(weight, weight_scale, weight_zero_point),
        bias,
        feature_level=FEATURE_LEVEL,
    )
    batch, length, width = projected.shape
    heads = projected.reshape(batch, length, 3, num_heads, width // (3 * num_heads))
    queries, keys, values = jnp.moveaxis(heads, (2, 3), (0, 2))
    present = jnp.stack([keys, values])
    if past is not None:
        present = jnp.concatenate([past, present], 3)
    keys, values = present
    factor = scale if scale else queries.shape[-1] ** -0.5
    scores = jnp.matmul(queries, jnp.swapaxes(keys, -1, -2)) * jnp.asarray(factor, queries.dtype)
    masked = _is_masked(mask_index, scores)
    scores = scores if masked is None else scores + jnp.where(masked, mask_filter_value, 0.0).astype(scores.dtype)
    if unidirectional:
        later = jnp.triu(jnp.ones(scores.shape[-2:], bool), scores.shape[-1] - length + 1)
        scores = jnp.where(later, jnp.finfo(scores.dtype).min, scores)
    output = jnp.matmul(jax.nn.softmax(scores, -1), values)
    return jnp.swapaxes(output, 1, 2).reshape(batch, length, -1), present


def _is_masked(mask: jax.Array | None, scores: jax.Array) -> jax.Array | None:
    """Whether a mask leaves out a position; None if it leaves out none.

    Args:
      mask: for each sequence of the batch, its end, (batch,), optionally followed by all starts, (2 * batch,); or 1 for each
        position that counts and 0 for the others, (batch, keys) or (batch, queries, keys).
    """
    batch, _, _, total = scores.shape
    if mask is None or (mask.ndim == 2 and mask.shape[-1] == 1 != total):
        return None
    if mask.ndim > 3:
        raise ModelError(f"a mask with {mask.ndim} dimensions is not supported")
    if mask.ndim == 1:
        positions = jnp.arange(total)
        masked = positions >= mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            masked |= positions < mask[batch:, None]
        return masked[:, None, None, :]
    masked = mask <= 0
    return masked[:, None, None, :] if mask.ndim == 2 else masked[:, None]
