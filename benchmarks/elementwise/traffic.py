"""The bytes that compiled programs of the operators move, for chips that need not be present."""

from collections.abc import Sequence

import jax
import numpy as np

from benchmarks import chips, traffic
from benchmarks.elementwise.operators import ALL


def print_traffic(names: Sequence[str], count: int, chip_names: Sequence[str]) -> None:
    """Prints a table: for each operator and its naive formula, the bytes moved over those of arguments and results."""
    print(f"Bytes read and written beside those of arguments and results, {count:,} elements, jax {jax.__version__}\n")
    header = " | ".join(f"{chip}, ours | naive" for chip in chip_names)
    print(f"| | {header} |\n|---" + "|--:|--:" * len(chip_names) + "|")
    for name in names:
        operator = ALL[name]
        operands = operator.operands(np.random.default_rng(0), count)
        programs = [
            chips.compile(chip, function, *operands)
            for chip in chip_names
            for function in (operator.function, operator.naive)
        ]
        cells = [f"{traffic.read(program.as_text()).ratio:.2f}" for program in programs]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
