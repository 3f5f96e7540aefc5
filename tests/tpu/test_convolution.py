"""Convolutions, compiled by libtpu: they use the int8 unit, which XLA's own convolution of several groups does not."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

import jquant
from benchmarks.chips import device

from . import bundles

pytest.importorskip("libtpu", reason="programs compile for TPUs only where libtpu is installed")


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_int8_unit_multiplies(chip, groups):
    sharding = jax.sharding.SingleDeviceSharding(device(chip))
    x = jax.ShapeDtypeStruct((2, 64, 28, 28), jnp.uint8, sharding=sharding)
    w = jax.ShapeDtypeStruct((64, 64 // groups, 3, 3), jnp.int8, sharding=sharding)
    folder = pathlib.Path(bundles._FOLDER.name)
    before = set(folder.iterdir())
    jax.jit(lambda x, w: jquant.convolution_integer(x, w, 121, groups=groups)).lower(x, w).compile()
    text = "".join(file.read_text() for file in set(folder.iterdir()) - before)
    products = [line for line in text.split() if line.startswith("vmatmul")]
    assert products
    assert all(".s8." in product for product in products)
