"""Tables: an embedding of the quantized function equals the same look-up in the rounded table."""

import itertools

import jax.numpy as jnp
import numpy as np
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform

EMBEDDINGS = {
    "indexing": lambda p, i: p["table"][i],
    "take": lambda p, i: jnp.take(p["table"], i, axis=0),  # NaN beyond the table
    "clipped": lambda p, i: jnp.take(p["table"], i, axis=0, mode="clip"),
    "filled": lambda p, i: p["table"].at[i].get(mode="fill", fill_value=7),
    "columns": lambda p, i: p["table"][:, i],
    "rows of the transposed": lambda p, i: p["table"].T[i],
    "in bfloat16": lambda p, i: p["table"].astype(jnp.bfloat16)[i],
}


@one_in(5, ("name", "granularity"), itertools.product(EMBEDDINGS, ["PER_CHANNEL", "PER_TENSOR"]))
def test_rounded_table(name, granularity):
    """Also for indices beyond the table."""
    apply = EMBEDDINGS[name]
    table = Draw(0).weights(24, 16) * np.float32(2) ** np.arange(24, dtype=np.float32)[:, None]
    indices = np.int32([[0, 23, 5, 7], [-1, -24, 30, 15]])
    quantized_apply, quantized_params = transform.quantize(
        apply, {"table": table}, recipe(transform.Scheme(weights=granularity)), indices
    )
    assert not quantized_params["float"]
    axis = 0 if name in ("columns", "rows of the transposed") else 1
    scale = np.max(abs(table), axis if granularity == "PER_CHANNEL" else None, keepdims=True) / np.float32(127)
    rounded = np.rint(table / scale) * scale
    np.testing.assert_array_equal(
        quantized_apply(quantized_params, indices), apply({"table": jnp.asarray(rounded)}, indices), strict=True
    )
