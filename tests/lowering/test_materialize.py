"""Integers that several loops read are computed in one dimension, unless XLA partitions the program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jquant
from jquant.lowering import materialize

SHAPE = (2, 6, 5, 7)


def quantized(x: jax.Array) -> jax.Array:
    return jquant.quantize_linear(x, np.float32(0.1), np.uint8(100))


def divided_shapes(text: str) -> list[str]:
    """The shapes of the integers that a program divides, which is how they are shared."""
    return re.findall(r"stablehlo.divide .*: tensor<([\dx?]+)xui8>", text)


def test_one_device():
    lowered = jax.jit(quantized).lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    assert divided_shapes(lowered.as_text()) == ["420"]


def test_sums_keep_their_dimensions():
    """A reshape between a product and what is subtracted from it would cost memory, with the XLA of jax 0.10."""
    shared = jax.jit(materialize.shared).lower(jax.ShapeDtypeStruct(SHAPE, jnp.int32)).as_text()
    assert "tensor<2x6x5x7xi32>" in re.findall("stablehlo.divide .*", shared)[0]


def test_mapped():
    mapped = jax.vmap(quantized, in_axes=2, out_axes=1)
    lowered = jax.jit(mapped).lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    assert divided_shapes(lowered.as_text()) == ["420"]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_mesh(axis_type):
    """One dimension would have to be gathered: each device computes its part of the four."""
    mesh = jax.make_mesh((2,), ("x",), (axis_type,))
    x = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, "x")))
    with jax.set_mesh(mesh):
        lowered = jax.jit(quantized).lower(x)
        text = lowered.compile().as_text()
    assert divided_shapes(lowered.as_text()) == ["2x6x5x7"]
    assert "u8[2,3,5,7]" in text
    assert not re.search("all-gather|all-reduce|all-to-all|collective-permute", text)


def test_inside_shard_map():
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,))
    function = jax.shard_map(quantized, mesh=mesh, in_specs=PartitionSpec(None, "x"), out_specs=PartitionSpec(None, "x"))
    lowered = jax.jit(function).lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    assert divided_shapes(lowered.as_text()) == ["210"]


def test_symbolic_sizes():
    shape = export.symbolic_shape("n, 6, m, 7")
    exported = export.export(jax.jit(quantized), platforms=["cpu"])(jax.ShapeDtypeStruct(shape, jnp.float32))
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_array_equal(exported.call(x), quantized(x))
    assert divided_shapes(exported.mlir_module()) == ["?"]
