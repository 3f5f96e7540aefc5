"""An int8 feed-forward block on a mesh of devices: how each tensor is split, and what the devices send each other.

Quantizes a block (two products, ReLU, a residual) with synthetic weights, splits it in two ways over a (data, model) mesh of
all devices, or of 8 virtual ones on a machine with one device, and compares the output with that of one device, bit for bit.
Reads the operations between devices from the compiled programs, and from those of the same block in bfloat16 and float32.
Prints the shardings, the operations and the bytes, and draws the bytes that each device holds and sends.

    pip install ".[examples]"
    python examples/sharded_inference.py --output sharded_inference.png
"""

import argparse
import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display

import jquant

WIDTH, HIDDEN, ROWS = 1024, 2752, 512  # the proportions of Llama 7B; rows for each part of the data axis
TYPES = ("int8", "bfloat16", "float32")
COLOURS = {"int8": "#d55e00", "bfloat16": "#56b4e9", "float32": "#999999"}

# SCALED keeps real 0 at integer 0, so that no operator below needs a zero point.
quantize_int8 = functools.partial(jquant.quantize, dtype="qint8", mode="SCALED", ensure_minimum_range=0)


class Block(NamedTuple):
    """``x + relu(x @ up) @ down`` in float32 or bfloat16."""

    x: jax.Array  # (rows, WIDTH)
    up: jax.Array  # (WIDTH, HIDDEN)
    down: jax.Array  # (HIDDEN, WIDTH)


class Scales(NamedTuple):
    x: jax.Array
    hidden: jax.Array
    branch: jax.Array
    output: jax.Array


class Int8Block(NamedTuple):
    x: jax.Array
    up: jquant.PackedMatrix
    up_scale: jax.Array  # float32 (HIDDEN,)
    down: jquant.PackedMatrix
    down_scale: jax.Array  # float32 (WIDTH,)
    scales: Scales


class Layout(NamedTuple):
    title: str
    x: P  # of the output as well, so that blocks follow each other
    up: P
    down: P


# Both layouts split the weights of both products over the model axis, so that each device holds the same number of bytes.
LAYOUTS = (
    Layout("sum the products", P("data", None), P(None, "model"), P("model", None)),  # down is split along K
    Layout("gather the activations", P("data", "model"), P(None, "model"), P(None, "model")),
)


def float_activations(block: Block) -> Scales:
    """The tensors that the int8 block keeps in int8."""
    hidden = jax.nn.relu(jnp.dot(block.x, block.up, precision="highest"))
    branch = jnp.dot(hidden, block.down, precision="highest")
    return Scales(block.x, hidden, branch, block.x + branch)


def float_block(block: Block) -> jax.Array:
    return float_activations(block).output


def int8_block(block: Int8Block) -> jax.Array:
    x, up, up_scale, down, down_scale, scales = block
    # The zero point is 0, the lowest uint8: saturation is the ReLU.
    hidden = jquant.quantized_linear_matmul(x, scales.x, None, up, up_scale, None, scales.hidden, output_dtype="UINT8")
    branch = jquant.quantized_linear_matmul(
        hidden, scales.hidden, None, down, down_scale, None, scales.branch, output_dtype="INT8"
    )
    return jquant.quantized_linear_add(x, scales.x, None, branch, scales.branch, None, scales.output)


def synthetic_block(key: jax.Array, rows: int) -> Block:
    keys = jax.random.split(key, 3)
    up, down = map(jax.nn.initializers.he_normal(), keys[:2], ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    return Block(jax.random.normal(keys[2], (rows, WIDTH)), up, down)


def quantized_weight(weight: jax.Array, parts: int) -> tuple[jquant.PackedMatrix, jax.Array]:
    """Packed weights, whose blocks allow K to be split into `parts`, and the scale of each column."""
    low, high = weight.min(axis=0), weight.max(axis=0)
    output, _, output_max = quantize_int8(weight, low, high, narrow_range=True, axis=1)
    block_size = next(size for size in range(256, 0, -1) if len(weight) // parts % size == 0)
    return jquant.pack_matrix(output, block_size=block_size), output_max / 127


def quantized_block(block: Block, parts: int) -> Int8Block:
    activations = jax.jit(float_activations)(block)
    scales = Scales(*(jnp.max(jnp.abs(activation)) / 127 for activation in activations))
    scales = scales._replace(hidden=jnp.max(activations.hidden) / 255)
    up, up_scale = quantized_weight(block.up, parts)
    down, down_scale = quantized_weight(block.down, parts)
    return Int8Block(jquant.quantize_linear(block.x, scales.x, output_dtype="INT8"), up, up_scale, down, down_scale, scales)


def mesh_of_all_devices() -> Mesh:
    jax.config.update("jax_num_cpu_devices", 8)
    devices = jax.devices() if jax.device_count() > 1 else jax.devices("cpu")
    model = math.gcd(len(devices), 4)
    sizes = len(devices) // model, model
    return jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def shardings(block: Block | Int8Block, layout: Layout, mesh: Mesh) -> Block | Int8Block:
    """The shardings of the arrays of a block, in a tree of the same structure."""
    x, up, down = (NamedSharding(mesh, spec) for spec in layout[1:])
    if isinstance(block, Block):
        return Block(x, up, down)
    up_scale, down_scale = (NamedSharding(mesh, P(weight.spec[1])) for weight in (up, down))
    scales = jax.tree.map(lambda _: NamedSharding(mesh, P()), block.scales)
    return Int8Block(x, block.up.sharding_for(up), up_scale, block.down.sharding_for(down), down_scale, scales)


class Collective(NamedTuple):
    """An operation between devices, in a compiled program."""

    kind: str
    dtype: str  # XLA's: s8, bf16, ...
    shape: tuple[int, ...]  # of its result, on one device
    group: int  # how many devices take part together

    def elements_sent(self) -> float:
        """The elements that each device sends when the parts are passed around in a ring."""
        elements = math.prod(self.shape) * (self.group if self.kind == "reduce-scatter" else 1)
        return elements * (self.group - 1) / self.group * (2 if self.kind == "all-reduce" else 1)

    def bytes_sent(self) -> float:
        return self.elements_sent() * int(re.search(r"\d+", self.dtype)[0]) / 8


def collectives(program: str) -> list[Collective]:
    """The operations between devices in a program. Some take several arrays at once; in this example, none is in a loop."""
    operations = []
    for types, kind, start, rest in re.findall(
        r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\((.*)", program
    ):
        arrays = re.findall(r"([a-z]+\d+)\[([\d,]+)\]", types)
        if start and kind != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]  # the operands come first
        group = group_size(rest)
        operations += [Collective(kind, dtype, tuple(map(int, shape.split(","))), group) for dtype, shape in arrays]
    return operations


def group_size(attributes: str) -> int:
    """The size of the groups, which XLA spells out, or counts as (groups, size), or gives as axes of the mesh."""
    if spelled := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return spelled[1].count(",") + 1
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*?)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    return 2  # collective-permute has pairs


class Run(NamedTuple):
    """A block in one type and layout, compiled for the mesh."""

    program: Callable
    held: int  # bytes of weights, scales and input on each device
    collectives: list[Collective]

    def sent(self) -> float:
        return sum(collective.bytes_sent() for collective in self.collectives)


def compiled(function: Callable, block: Block | Int8Block, layout: Layout, mesh: Mesh) -> Run:
    placed = shardings(block, layout, mesh)
    program = jax.jit(function, in_shardings=(placed,), out_shardings=placed.x).lower(block).compile()
    held = jax.tree.map(lambda x, sharding: math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize, block, placed)
    return Run(program, sum(jax.tree.leaves(held)), collectives(program.as_text()))


def print_shardings(block: Int8Block, layouts: tuple[Layout, ...], mesh: Mesh) -> None:
    for layout in layouts:
        print(f"\n{layout.title + ':':<26}{'type':<9}{'shape':<14}{'PartitionSpec':<24}{'bytes':>11}{'on a device':>13}")
        rows = zip(jax.tree.leaves_with_path(block), jax.tree.leaves(shardings(block, layout, mesh)), strict=True)
        for (path, x), sharding in rows:
            if x.ndim:
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                part = math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
                print(f"  {name:<24}{x.dtype.name:<9}{x.shape!s:<14}{sharding.spec!s:<24}{x.nbytes:>11,}{part:>13,}")


def print_collectives(runs: dict[tuple[str, str], Run]) -> None:
    print(f"\n{'between devices:':<26}{'block in':<11}{'operation':<18}{'result':<26}{'bytes sent':>16}")
    title = ""
    for (layout, type_), run in runs.items():
        for collective in run.collectives:
            result = f"{collective.dtype}[{','.join(map(str, collective.shape))}]"
            operation = f"{collective.kind} of {collective.group}"
            layout_once = "" if layout == title else f"  {layout}"
            print(f"{layout_once:<26}{type_:<11}{operation:<18}{result:<26}{collective.bytes_sent():>16,.0f}")
            title, type_ = layout, ""


def widened(type_: str, run: Run) -> bool:
    """Whether the program moves bfloat16 arrays as float32, as XLA does on a CPU."""
    return type_ == "bfloat16" and any(collective.dtype == "f32" for collective in run.collectives)


def print_sums(runs: dict[tuple[str, str], Run]) -> None:
    print(f"\n{'MiB on and from a device:':<26}{'block in':<11}{'held':>18}{'sent':>20}")
    for (layout, type_), run in runs.items():
        layout_once = f"  {layout}" if type_ == TYPES[0] else ""
        star = " *" if widened(type_, run) else ""
        print(f"{layout_once:<26}{type_:<11}{run.held / 2**20:>18.2f}{run.sent() / 2**20:>20.2f}{star}")
    if any(widened(type_, run) for (_, type_), run in runs.items()):
        print("  * on a CPU, XLA computes and moves bfloat16 as float32; elsewhere, these are half as many")
    for type_ in TYPES:
        layout, _ = min((key for key in runs if key[1] == type_), key=lambda key: runs[key].sent())
        print(f"  {type_ + ' sends least in:':<26}{layout}")


def draw(path: Path, runs: dict[tuple[str, str], Run], mesh: Mesh) -> None:
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    layouts = list(dict.fromkeys(layout for layout, _ in runs))
    held, sent = figure.subplots(1, 2)
    for (layout, type_), run in runs.items():
        place = layouts.index(layout) + 0.27 * (TYPES.index(type_) - 1)
        is_widened = widened(type_, run)
        for axes, size in ((held, run.held), (sent, run.sent() / (2 if is_widened else 1))):
            axes.bar(place, size / 2**20, 0.25, color=COLOURS[type_], label=None if layout != layouts[0] else type_)
            number = axes.annotate(
                f"{size / 2**20:.2f}", (place, size / 2**20), (0, 4), textcoords="offset points", ha="center"
            )
        if is_widened:
            number.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            sent.bar(place, run.sent() / 2**20, 0.25, facecolor="none", edgecolor=COLOURS[type_], hatch="///", zorder=0)
    held.set_title("held: weights, scales, input")
    held.set_ylabel("MiB on each device")
    sent.set_title("sent, to compute the block once")
    sent.set_ylabel("MiB from each device")
    for axes in (held, sent):
        axes.set_xticks(range(len(layouts)), layouts)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.1)
    sent.legend(frameon=False, loc="upper left")
    if any(widened(type_, run) for (_, type_), run in runs.items()):
        figure.supxlabel(
            "Hatched: on a CPU, XLA moves bfloat16 as float32. Solid: the same elements in 2 bytes each.", size=9
        )
    shape = " x ".join(f"{size} ({name})" for name, size in mesh.shape.items())
    figure.suptitle(
        f"A feed-forward block, {WIDTH} to {HIDDEN} to {WIDTH}, {ROWS * mesh.shape['data']} rows, on {shape} devices"
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="An int8 feed-forward block on a mesh of devices.")
    parser.add_argument("--output", type=Path, default=Path("sharded_inference.png"), help="the PNG to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the input")
    arguments = parser.parse_args()

    mesh = mesh_of_all_devices()
    shape = " x ".join(f"{size} ({name})" for name, size in mesh.shape.items())
    print(f"{mesh.size} devices, {mesh.devices.flat[0].device_kind}: a mesh of {shape}")

    block = synthetic_block(jax.random.key(arguments.seed), ROWS * mesh.shape["data"])
    int8 = quantized_block(block, mesh.shape["model"])
    forms = {
        "int8": (int8_block, int8),
        "bfloat16": (float_block, jax.tree.map(lambda x: x.astype(jnp.bfloat16), block)),
        "float32": (float_block, block),
    }
    runs = {(layout.title, type_): compiled(*forms[type_], layout, mesh) for layout in LAYOUTS for type_ in TYPES}
    print_shardings(int8, LAYOUTS, mesh)
    print_collectives(runs)
    print_sums(runs)

    print()
    one_device = np.asarray(jax.jit(int8_block)(int8))
    for layout in LAYOUTS:
        placed = jax.device_put(int8, shardings(int8, layout, mesh))
        output = np.asarray(runs[layout.title, "int8"].program(placed))
        different = np.count_nonzero(output != one_device)
        print(f"{layout.title}: {different} of {output.size:,} int8 outputs differ from those of one device")
        assert different == 0
    exact = np.asarray(jax.jit(float_block)(block))
    error = np.asarray(jquant.dequantize_linear(one_device, int8.scales.output)) - exact
    print(f"int8 against float32: the error's standard deviation is {np.std(error) / np.std(exact):.2%} of the output's")
    draw(arguments.output, runs, mesh)


if __name__ == "__main__":
    main()
