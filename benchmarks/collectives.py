"""The communication between chips in programs for TPU topologies, without the chips: what `docs/scaling.md` shows.

    JAX_PLATFORMS=cpu python -m benchmarks.collectives v5e:4x4 v5e:16x16

prints two tables in Markdown. They show what each way of splitting a product, and a feed-forward block, makes every chip
send, in int8 and in bfloat16, as read from the programs that XLA compiles: the operations for the first topology, the bytes
for all. Needs libtpu (``pip install "jax[tpu]"``), and a few minutes for each topology.
"""

import argparse
import functools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jquant

ROWS, WIDTH, HIDDEN = 16 * 512, 4096, 11008  # the feed-forward block of Llama 7B, for 16 sequences of 512
BATCH, HEAD = 16 * 32, 128  # attention scores: the heads of 16 sequences
TOPOLOGIES = ("v5e:4x4", "v5e:16x16")
TYPES = ("int8", "bf16")
# XLA passes large operands on in steps while it multiplies, by collective-permutes in loops, and the program does not say
# how often those iterate. This makes it use one operation, as for small operands; the bytes are the same.
OPTIONS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


class Collective(NamedTuple):
    """An operation between devices, in a compiled program.

    Attributes:
      kind: all-reduce, all-gather, reduce-scatter, all-to-all or collective-permute.
      dtype: XLA's name: s8, bf16, ...
      whole: the shape that each device of the group has in the end (or at the start, for a reduce-scatter).
      group: how many devices take part together.
      times: how often one run of the program performs it.
    """

    kind: str
    dtype: str
    whole: tuple[int, ...]
    group: int
    times: int

    def bytes_sent(self) -> float:
        """The bytes that each device sends when the parts are passed around in a ring, which is the minimum."""
        parts = 1 if self.kind == "collective-permute" else (self.group - 1) / self.group
        passes = 2 if self.kind == "all-reduce" else 1  # a reduce-scatter, and an all-gather
        return passes * parts * math.prod(self.whole) * element_bytes(self.dtype) * self.times

    def __str__(self) -> str:
        array = f"{self.dtype}[{','.join(map(str, self.whole))}]"
        return f"{self.kind} {array}" + (f" x {self.times}" if self.times > 1 else "")


def element_bytes(dtype: str) -> float:
    return 1 if dtype == "pred" else int(re.search(r"\d+", dtype)[0]) / 8


_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALL = re.compile(r"(calls|body|to_apply|branch_computations)=\{?%([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\((.*?)\), (.*)"
)
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def collectives(program: str) -> list[Collective]:
    """The collectives of a compiled program, ``compiled.as_text()``.

    Each is counted once, although XLA:TPU writes one that overlaps with a product into each fusion that it spans, times the
    iterations of the loop that contains it. On a TPU, a reduce-scatter is a fusion around an all-reduce.

    Raises:
      ValueError: a collective in a loop with an unknown number of iterations, or replica groups in an unknown notation.
    """
    callers: dict[str, tuple[str, str]] = {}
    found: dict[tuple, tuple[str, re.Match]] = {}
    computation = ""
    for line in program.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        for how, callee in _CALL.findall(line):
            callers[callee] = computation, line if how == "body" else ""
        if match := _COLLECTIVE.search(line):
            channel = re.search(r"channel_id=(\d+)", match[5])
            found.setdefault((match[2], channel[1] if channel else line), (computation, match))

    def times(computation: str) -> int:
        if computation not in callers:
            return 1
        caller, loop = callers[computation]
        rounds = _TRIPS.search(loop)
        if loop and not rounds:
            raise ValueError(f"a loop with an unknown number of iterations: {loop}")
        return (int(rounds[1]) if rounds else 1) * times(caller)

    result: Counter[Collective] = Counter()
    for computation, match in found.values():
        result_type, kind, start, _, attributes = match.groups()
        arrays = [(dtype, shape) for dtype, shape in _ARRAY.findall(result_type) if shape]
        if start and kind != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]  # the operands come first
        group = 2 if kind == "collective-permute" else group_size(attributes)
        is_fused_scatter = kind == "all-reduce" and computation.startswith("all-reduce-scatter")
        for dtype, shape in arrays:
            whole = tuple(map(int, shape.split(",")))
            if kind == "reduce-scatter":
                whole = (group, *whole)
            name = "reduce-scatter" if is_fused_scatter else kind
            result[Collective(name, dtype, whole, group, 1)] += times(computation)
    return [collective._replace(times=count) for collective, count in result.items()]


def group_size(attributes: str) -> int:
    """The size of the groups, which are spelled out, or counted as (groups, size), or are axes of a mesh."""
    if spelled := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return spelled[1].count(",") + 1
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{([^:]*?)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    raise ValueError(f"replica groups in an unknown notation: {attributes}")


class Layout(NamedTuple):
    """How the operands and the result of a subject are laid out on the mesh, by name."""

    title: str
    specs: dict[str, P]


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


def mesh_of(topology: str, axes: int) -> Mesh:
    """All chips of a topology like "v5e:4x4", along one axis or along the two of the topology."""
    devices = np.array(topologies.get_topology_desc(topology, platform="tpu").devices)
    sizes = tuple(map(int, topology.split(":")[1].split("x"))) if axes == 2 else (devices.size,)
    return Mesh(devices.reshape(sizes), ("x", "y")[:axes], axis_types=(AxisType.Auto,) * axes)


def array(mesh: Mesh, spec: P, dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def packed(mesh: Mesh, spec: P, k: int, n: int) -> jquant.PackedMatrix:
    """int8 weights, in blocks that splitting K leaves whole."""
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
    shapes = ((BATCH, 512, HEAD), (BATCH, HEAD, 512)) if is_batch else ((ROWS, WIDTH), (WIDTH, HIDDEN))
    if type_ == "bf16":
        operands = array(mesh, a, jnp.bfloat16, *shapes[0]), array(mesh, b, jnp.bfloat16, *shapes[1])
        return compiled(jnp.matmul, mesh, output, *operands)
    weights = array(mesh, b, jnp.int8, *shapes[1]) if is_batch else packed(mesh, b, *shapes[1])

    def function(a, b, scale, zero_point):
        return jquant.quantized_linear_matmul(a, scale, zero_point, b, scale, None, scale, zero_point)

    scalars = array(mesh, P(), jnp.float32), array(mesh, P(), jnp.uint8)
    return compiled(function, mesh, output, array(mesh, a, jnp.uint8, *shapes[0]), weights, *scalars)


def block(type_: str, layout: Layout, mesh: Mesh) -> jax.stages.Compiled:
    """``x + relu(x @ up) @ down``: int8 with a scale for each column of the weights, or bfloat16."""
    x, up, down, output = layout.specs.values()
    whole = layout.title == "gather the weights"
    if type_ == "bf16":

        def function(x, up, down):
            if whole:
                up, down = (jax.lax.with_sharding_constraint(weights, NamedSharding(mesh, P())) for weights in (up, down))
            return x + jax.nn.relu(x @ up) @ down

        shapes = (x, (ROWS, WIDTH)), (up, (WIDTH, HIDDEN)), (down, (HIDDEN, WIDTH))
        return compiled(function, mesh, output, *(array(mesh, spec, jnp.bfloat16, *shape) for spec, shape in shapes))

    def function(x, up, up_scale, down, down_scale, scale):
        if whole:
            up, down = (
                jax.lax.with_sharding_constraint(weights, weights.sharding_for(NamedSharding(mesh, P())))
                for weights in (up, down)
            )
        hidden = jquant.quantized_linear_matmul(x, scale, None, up, up_scale, None, scale, output_dtype="UINT8")
        branch = jquant.quantized_linear_matmul(hidden, scale, None, down, down_scale, None, scale, output_dtype="INT8")
        return jquant.quantized_linear_add(x, scale, None, branch, scale, None, scale)

    up_columns, down_columns = (P(spec[1]) if len(spec) > 1 else P() for spec in (up, down))
    return compiled(
        *(function, mesh, output, array(mesh, x, jnp.int8, ROWS, WIDTH)),
        *(packed(mesh, up, WIDTH, HIDDEN), array(mesh, up_columns, jnp.float32, HIDDEN)),
        *(packed(mesh, down, HIDDEN, WIDTH), array(mesh, down_columns, jnp.float32, WIDTH)),
        array(mesh, P(), jnp.float32),
    )


def compiled(function: Callable, mesh: Mesh, output: P, *operands) -> jax.stages.Compiled:
    return jax.jit(function, out_shardings=NamedSharding(mesh, output)).lower(*operands).compile(OPTIONS)


def described(found: list[Collective]) -> str:
    """The collectives that matter."""
    sent = sum(collective.bytes_sent() for collective in found)
    large = [collective for collective in found if collective.bytes_sent() > sent / 100]
    names = [f"`{collective}`" for collective in large]
    if small := len(found) - len(large):
        names.append(f"{small} of less than 1 %")
    return ", ".join(names) or "none"


def rows(names: list[str], subject: Callable, layouts: tuple[Layout, ...]) -> Iterator[str]:
    """Rows of a subject's Markdown table: for each layout, what the first topology does, and what each chip of all sends."""
    for layout in layouts:
        axes = {axis for spec in layout.specs.values() for entry in spec for axis in np.atleast_1d(entry) if axis}
        meshes = [mesh_of(topology, len(axes)) for topology in names]
        found = [collectives(subject(type_, layout, mesh).as_text()) for mesh in meshes for type_ in TYPES]
        sums = [f"{sum(collective.bytes_sent() for collective in one) / 1e6:.1f}" for one in found]
        yield f"| {' | '.join([layout.title, *map(described, found[: len(TYPES)]), *sums])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topologies", nargs="*", default=TOPOLOGIES, help="such as v5e:4x4")
    arguments = parser.parse_args()
    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    names = arguments.topologies
    columns = [
        "",
        *(f"{type_}, {names[0]}" for type_ in TYPES),
        *(f"{type_}, {name}, MB" for name in names for type_ in TYPES),
    ]
    for subject, layouts in ((product, PRODUCTS), (block, BLOCKS)):
        print(f"\n| {' | '.join(columns)} |\n|{'---|' * 3}{'--:|' * (len(columns) - 3)}", flush=True)
        for row in rows(names, subject, layouts):
            print(row, flush=True)


if __name__ == "__main__":
    main()
