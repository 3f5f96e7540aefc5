"""Cases of clipping and its gradient."""

import functools
import itertools

import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.reference import clipping as reference

STEP = 0.1
# Two of the values that are drawn, so that a rounding in a caller's product decides whether they are clipped.
BOUNDS = np.float32(-60.5 * STEP), np.float32(62.5 * STEP)
UNBOUNDED = np.float32(-np.inf), np.float32(np.inf)


def clip(dtype, bounds: tuple[np.float32, np.float32], *, scaled: bool) -> Case:
    """`clip` with FLOAT bounds, with or without DML_SCALE_BIAS."""

    def draw(rng, rows):
        scale_bias = (jquant.ScaleBias(np.float32(rng.uniform(0.3, 2)), np.float32(rng.uniform(-1, 1))),)
        return samples.floats(rng, (rows, CHANNELS), STEP, dtype=dtype), *bounds, *(scale_bias if scaled else ())

    def function(x, low, high, scale_bias=None):
        return jquant.clip(x, low, high, scale_bias=scale_bias, feature_level="EXTENDED")

    return Case(function, reference.clip, draw)


def clip1(dtype) -> Case:
    """`clip1`, with bounds of the dtype of the tensor."""

    def draw(rng, rows):
        bounds = (np.asarray(bound).astype(dtype) for bound in BOUNDS)
        scale_bias = jquant.ScaleBias(np.float32(rng.uniform(0.3, 2)), np.float32(rng.uniform(-1, 1)))
        return samples.floats(rng, (rows, CHANNELS), STEP, dtype=dtype), *bounds, scale_bias

    def function(x, low, high, scale_bias):
        return jquant.clip1(x, low, high, scale_bias=scale_bias, feature_level="EXTENDED")

    return Case(function, reference.clip1, draw)


def gradient(name: str, dtype) -> Case:
    """`clip_gradient` or `clip_gradient1`."""

    def draw(rng, rows):
        x, cotangent = (samples.floats(rng, (rows, CHANNELS), step, dtype=dtype) for step in (STEP, 1))
        bounds = BOUNDS if name == "clip_gradient" else (np.asarray(bound).astype(dtype) for bound in BOUNDS)
        return x, cotangent, *bounds

    function = functools.partial(getattr(jquant, name), feature_level="EXTENDED")
    return Case(function, getattr(reference, name), draw, rows=(0, 1))


CASES: dict[str, Case] = {
    "clip": clip(np.float32, BOUNDS, scaled=False),
    "clip, scale_bias": clip(np.float32, BOUNDS, scaled=True),
    "clip1": clip1(np.float32),
    "clip_gradient": gradient("clip_gradient", np.float32),
    "clip_gradient1": gradient("clip_gradient1", np.float32),
}

VARIANTS: dict[str, Case] = {
    **{
        f"clip, {dtype}{', scale_bias' if scaled else ''}": clip(dtype, BOUNDS, scaled=scaled)
        for dtype, scaled in itertools.product(FLOATS[1:], (False, True))
    },
    **{
        f"clip, {dtype}, unbounded{', scale_bias' if scaled else ''}": clip(dtype, UNBOUNDED, scaled=scaled)
        for dtype, scaled in itertools.product(FLOATS, (False, True))
    },
    **{f"clip1, {dtype}": clip1(dtype) for dtype in FLOATS[1:]},
    **{
        f"{name}, {dtype}": gradient(name, dtype)
        for name, dtype in itertools.product(("clip_gradient", "clip_gradient1"), FLOATS[1:])
    },
}
