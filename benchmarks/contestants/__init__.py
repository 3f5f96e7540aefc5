"""The contestants, in the order of the table."""

from benchmarks.contestants import aqt, jax, jquant, onnxruntime, qwix, torch

CONTESTANTS = (
    *jax.CONTESTANTS,
    *jquant.CONTESTANTS,
    *onnxruntime.CONTESTANTS,
    *qwix.CONTESTANTS,
    *aqt.CONTESTANTS,
    *torch.CONTESTANTS,
)
BASELINE = jax.CONTESTANTS[0].name  # the ratios are to its time
