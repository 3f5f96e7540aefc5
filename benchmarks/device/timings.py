"""Twelve timings of the named kernel and of XLA's fused product beside a plain int8 product of XLA."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from benchmarks.contestant import jitted
from benchmarks.device import bits
from benchmarks.measure import measure, quartiles
from jquant.modes import Implementation

_ROWS, _SIZE, _SMALL = (1, 128, 1024, 4096), 4096, 64
_ROUNDS, _FEW_ROUNDS = 30, 2
_CONTRACTION = (((1,), (1,)), ((), ()))  # of weights as they are packed


class Case(NamedTuple):
    rows: int
    size: int
    form: str


def cases(is_small: bool) -> list[Case]:
    size = _SMALL if is_small else _SIZE
    return [Case(min(rows, size), size, form) for rows, form in itertools.product(_ROWS, bits.FORMS)]


def measured(case: Case, kernel: Implementation, is_small: bool) -> dict:
    """Quartiles in milliseconds, and the medians over that of XLA's own; alternating, each call awaited."""
    of_bits = bits.Case(case.rows, case.size, case.size, case.form, "scalar", False)
    (a, a_scale, az, b, b_scale, bz, output_scale, oz), _ = bits.drawn(of_bits)
    packed = jquant.pack_matrix(b, bz)
    calls, declined = {}, {}
    for name in (kernel, Implementation.XLA):

        def product(*operands, name=name):
            return bits.product(of_bits, name, *operands)

        try:
            calls[str(name)] = jitted(product, a, a_scale, az, packed, b_scale, None, output_scale, oz)
            calls[str(name)]()
        except NotImplementedError as error:
            declined[str(name)] = str(calls.pop(str(name), "") and error)
    calls["XLA's own"] = jitted(lambda *operands: plain(case.form, *operands), a.view(np.int8), b.T, np.float32(2**-9))
    times = measure(calls, _FEW_ROUNDS if is_small else _ROUNDS)
    milliseconds = {name: quartiles(turns.further) for name, turns in times.items()}
    ratios = {name: median / milliseconds["XLA's own"][1] for name, (_, median, _) in milliseconds.items()}
    return {"quartiles_ms": milliseconds, "over_xla": ratios, "declined_by": declined}


def plain(form: str, a: jax.Array, b: jax.Array, scale: jax.Array) -> jax.Array:
    """int8 by int8 as a user writes it, without zero points and without care for the last bit."""
    sums = lax.dot_general(a, b, _CONTRACTION, preferred_element_type=jnp.int32)
    if form == "int32":
        return sums
    scaled = sums.astype(jnp.float32) * scale
    return scaled if form == "float32" else jnp.clip(jnp.round(scaled) + 77, 0, 255).astype(jnp.uint8)
