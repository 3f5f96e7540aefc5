"""Reads what chips send each other from programs compiled for TPU topologies, without the chips.

    JAX_PLATFORMS=cpu python -m benchmarks.collectives v5e:4x4 v5e:16x16

prints two tables in Markdown, whose figures `docs/mesh.md` quotes. They show, for each way of splitting a product and a
feed-forward block, what every chip sends in int8 and in bfloat16: the operations for the first topology, the bytes for all.
Needs libtpu (``pip install "jax[tpu]"``), and a few minutes for each topology.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

from benchmarks.collectives.layouts import BLOCKS, PRODUCTS, TYPES, Layout, block, make_mesh, product
from benchmarks.collectives.reading import Collective, read

TOPOLOGIES = ("v5e:4x4", "v5e:16x16")


def describe(collectives: Sequence[Collective]) -> str:
    """The collectives that send at least a hundredth of the bytes, and how many others there are."""
    sent = sum(collective.bytes_sent() for collective in collectives)
    large = [collective for collective in collectives if collective.bytes_sent() > sent / 100]
    names = [f"`{collective}`" for collective in large]
    if small := len(collectives) - len(large):
        names.append(f"{small} of less than 1 %")
    return ", ".join(names) or "none"


def rows(topologies: Sequence[str], compile: Callable, layouts: Sequence[Layout]) -> Iterator[str]:
    """Rows of a Markdown table: for each layout, the operations for the first topology, and the megabytes for all."""
    for layout in layouts:
        meshes = [make_mesh(topology, len(layout.axes)) for topology in topologies]
        programs = [read(compile(type_, layout, mesh).as_text()) for mesh in meshes for type_ in TYPES]
        operations = map(describe, programs[: len(TYPES)])
        sent = (sum(collective.bytes_sent() for collective in collectives) for collectives in programs)
        yield f"| {' | '.join([layout.title, *operations, *(f'{count / 1e6:.1f}' for count in sent)])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topologies", nargs="*", default=TOPOLOGIES, help="such as v5e:4x4")
    topologies = parser.parse_args().topologies
    columns = [
        "",
        *(f"{type_}, {topologies[0]}" for type_ in TYPES),
        *(f"{type_}, {topology}, MB" for topology in topologies for type_ in TYPES),
    ]
    for compile, layouts in ((product, PRODUCTS), (block, BLOCKS)):
        print(f"\n| {' | '.join(columns)} |\n|{'---|' * 3}{'--:|' * (len(columns) - 3)}", flush=True)
        for row in rows(topologies, compile, layouts):
            print(row, flush=True)


if __name__ == "__main__":
    main()
