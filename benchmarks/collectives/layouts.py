"""Layouts of a product and of a feed-forward block on a mesh of TPUs, and the programs that are compiled for them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jquant
from benchmarks import chips
from benchmarks.shapes import PRODUCTS, named

UP, SCORES = (named(PRODUCTS, f"llama-7b.{layer}") for layer in ("up.prefill-16", "prefill-16.scores"))
ROWS, WIDTH, HIDDEN = UP.m, UP.k, UP.n
TYPES = ("int8", "bf16")
# XLA passes large operands on in steps while it multiplies, by collective-permutes in loops, whose number of iterations the
# program does not state. With this option it uses one operation, as for small operands; the bytes are the same.
OPTIONS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


class Layout(NamedTuple):
    """How the operands and the result of a program are laid out on the mesh, by name."""

    title: str
    specs: dict[str, P]

    @property
    def axes(self) -> set[str]:
        """The axes of the mesh that it uses."""
        return {axis for spec in self.specs.values() for entry in spec for axis in np.atleast_1d(entry) if axis}


# Over one axis, "x", or over two, "x" and "y".
PRODUCTS = (
    Layout("M", {"a": P("x"), "b": P(), "output": P("x")}),
    Layout("N", {"a": P(), "b": P(None, "x"), "output": P(None, "x")}),
    Layout("batch", {"a": P("x"), "b": P("x"), "output": P("x")}),
    Layout("K", {"a": P(None, "x"), "b": P("x"), "output": P()}),
    Layout("M and N", {"a": P("x"), "b": P(None, "y"), "output": P("x", "y")}),
    Layout("M and K", {"a": P("x", "y"), "b": P("y"), "output": P("x")}),
)
# "x" for the rows, "y" for the weights.
BLOCKS = (
    Layout("sum the products", {"x": P("x"), "up": P(None, "y"), "down": P("y"), "output": P("x")}),
    Layout("scatter the sums", {"x": P("x", "y"), "up": P(None, "y"), "down": P("y"), "output": P("x", "y")}),
    Layout("gather the activations", {"x": P("x", "y"), "up": P(None, "y"), "down": P(None, "y"), "output": P("x", "y")}),
    Layout(
        "gather the weights",
        {"x": P(("x", "y")), "up": P(None, ("x", "y")), "down": P(None, ("x", "y")), "output": P(("x", "y"))},
    ),
)


def make_mesh(topology: str, axes: int) -> Mesh:
    """All chips of a topology like "v5e:4x4", along one axis or along the two of the topology."""
    devices = np.array(chips.tpus(topology))
    sizes = tuple(map(int, topology.split(":")[1].split("x"))) if axes == 2 else (devices.size,)
    return Mesh(devices.reshape(sizes), ("x", "y")[:axes], axis_types=(AxisType.Auto,) * axes)


def array(mesh: Mesh, spec: P, dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def packed(mesh: Mesh, spec: P, k: int, n: int) -> jquant.PackedMatrix:
    """int8 weights, packed in blocks that a split of K does not cut."""
    axes = spec[0] if spec else None
    part = k // (mesh.shape[axes] if axes else 1)
    block_size = next(size for size in range(256, 0, -1) if part % size == 0)
    pack = functools.partial(jquant.pack_matrix, block_size=block_size)
    matrix = jax.eval_shape(pack, jax.ShapeDtypeStruct((k, n), jnp.int8))
    shardings = matrix.sharding_for(NamedSharding(mesh, spec))
    return jax.tree.map(lambda x, sharding: array(mesh, sharding.spec, x.dtype, *x.shape), matrix, shardings)


def product(type_: str, layout: Layout, mesh: Mesh) -> jax.stages.Compiled:
    """uint8 with a zero point by int8 to uint8, or bfloat16."""
    a, b, output = layout.specs.values()
    is_batch = layout.title == "batch"
    sizes = SCORES if is_batch else UP
    batch = (SCORES.batch,) if is_batch else ()
    shapes = (*batch, sizes.m, sizes.k), (*batch, sizes.k, sizes.n)
    if type_ == "bf16":
        operands = array(mesh, a, jnp.bfloat16, *shapes[0]), array(mesh, b, jnp.bfloat16, *shapes[1])
        return compile(jnp.matmul, mesh, output, *operands)
    weights = array(mesh, b, jnp.int8, *shapes[1]) if is_batch else packed(mesh, b, *shapes[1])

    def function(a, b, scale, zero_point):
        return jquant.quantized_linear_matmul(a, scale, zero_point, b, scale, None, scale, zero_point)

    scalars = array(mesh, P(), jnp.float32), array(mesh, P(), jnp.uint8)
    return compile(function, mesh, output, array(mesh, a, jnp.uint8, *shapes[0]), weights, *scalars)


def block(type_: str, layout: Layout, mesh: Mesh) -> jax.stages.Compiled:
    """``x + relu(x @ up) @ down``: int8 with a scale for each column of the weights, or bfloat16."""
    x, up, down, output = layout.specs.values()
    gathers_weights = layout.title == "gather the weights"
    replicated = NamedSharding(mesh, P())
    if type_ == "bf16":

        def function(x, up, down):
            if gathers_weights:
                up, down = (jax.lax.with_sharding_constraint(weights, replicated) for weights in (up, down))
            return x + jax.nn.relu(x @ up) @ down

        shapes = (x, (ROWS, WIDTH)), (up, (WIDTH, HIDDEN)), (down, (HIDDEN, WIDTH))
        return compile(function, mesh, output, *(array(mesh, spec, jnp.bfloat16, *shape) for spec, shape in shapes))

    def function(x, up, up_scale, down, down_scale, scale):
        if gathers_weights:
            up, down = (
                jax.lax.with_sharding_constraint(weights, weights.sharding_for(replicated)) for weights in (up, down)
            )
        hidden = jquant.quantized_linear_matmul(x, scale, None, up, up_scale, None, scale, output_dtype="UINT8")
        branch = jquant.quantized_linear_matmul(hidden, scale, None, down, down_scale, None, scale, output_dtype="INT8")
        return jquant.quantized_linear_add(x, scale, None, branch, scale, None, scale)

    up_columns, down_columns = (P(spec[1]) if len(spec) > 1 else P() for spec in (up, down))
    return compile(
        function,
        mesh,
        output,
        array(mesh, x, jnp.int8, ROWS, WIDTH),
        packed(mesh, up, WIDTH, HIDDEN),
        array(mesh, up_columns, jnp.float32, HIDDEN),
        packed(mesh, down, HIDDEN, WIDTH),
        array(mesh, down_columns, jnp.float32, WIDTH),
        array(mesh, P(), jnp.float32),
    )


def compile(function: Callable, mesh: Mesh, output: P, *operands) -> jax.stages.Compiled:
    return jax.jit(function, out_shardings=NamedSharding(mesh, output)).lower(*operands).compile(OPTIONS)
