"""Compares what `transform.mixed_precision` finds with uniform schemes of the same bytes and with random assignments.

    python -m benchmarks.transform.mixed_precision [--output FILE.md] [--picture FILE.png]

Two Flax networks are trained. For each, the bytes of two uniform schemes are the budgets of a search, which measures noise
on batches of the training data. Everything in the tables is measured on test data: the noise of the logits, and the
accuracy. Writes the tables, by default to benchmarks/results/mixed-precision-PLATFORM-jax-VERSION.md, and the picture of a
search.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import numpy as np
from tqdm import tqdm

from benchmarks import environment
from benchmarks.transform.networks import CharacterModel, ResidualMLP, digits, documentation, train
from jquant import transform
from jquant.transform.choosing.trials import Trials

RESULTS = Path(__file__).parent.parent / "results"
NUM_RANDOM = 100
CANDIDATES = {
    "int2, blocks of 16": transform.Scheme(weight_type="INT2", block_size=16, scale_type="FLOAT16", activations="FLOAT"),
    "int4, blocks of 32": transform.Scheme(weight_type="INT4", block_size=32, scale_type="FLOAT16", activations="FLOAT"),
    "mxfp6": transform.Scheme(weight_type="MXFP6E2M3FN", activations="FLOAT"),
    "int8": transform.Scheme(activations="FLOAT"),
}
BUDGETS = "int4, blocks of 32", "mxfp6"


class Row(NamedTuple):
    """What a table says about some assignments; several have a median."""

    name: str
    bytes: str
    decibels: float
    accuracy: float


def within(trials: Trials, max_bytes: int) -> list[tuple[int, ...]]:
    """Random assignments of at most so many bytes, and at least 97 % of them."""
    random, assignments = np.random.default_rng(0), []
    count, sites = len(CANDIDATES), len(trials.choices.options)
    while len(assignments) < NUM_RANDOM:
        numbers = random.choice(count, sites, p=random.dirichlet(np.ones(count))) + 1
        if 0.97 * max_bytes <= trials.stored.bytes(numbers.tolist()) <= max_bytes:
            assignments.append(tuple(numbers.tolist()))
    return assignments


def table(trials: Trials, rows: Sequence[Row]) -> list[str]:
    lines = ["| | bytes | SNR of the logits, dB | accuracy |", "|---|--:|--:|--:|"]
    return [*lines, *(f"| {row.name} | {row.bytes} | {row.decibels:.2f} | {row.accuracy:.2%} |" for row in rows)]


def compare(model: nn.Module, params: dict, train_inputs: np.ndarray, test: tuple, picture: Path | None) -> list[str]:
    """The tables of one network; `test` has inputs and labels."""
    schemes = list(CANDIDATES.values())
    trials = Trials("mixed precision", model.apply, params, [(test[0],)], schemes, 256, False)
    exact = np.asarray(trials.outputs([0] * len(trials.choices.options), (test[0],))[0])

    def measured(assignments: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
        decibels, accuracies = [], []
        for numbers in tqdm(assignments, desc="measuring on test data", unit="assignment"):
            (logits,) = trials.outputs(numbers, (test[0],))
            decibels.append(10 * np.log10(np.sum(exact**2) / np.sum((logits - exact) ** 2)))
            accuracies.append(np.mean(np.argmax(logits, -1) == test[1]))
        return np.array(decibels), np.array(accuracies)

    def row(name: str, numbers: tuple[int, ...]) -> Row:
        (decibels,), (accuracy,) = measured([numbers])
        return Row(name, f"{trials.stored.bytes(numbers):,}", decibels, accuracy)

    accuracy = np.mean(np.argmax(exact, -1) == test[1])
    lines = [f"float32: {trials.stored.bytes([0] * len(trials.choices.options)):,} bytes, accuracy {accuracy:.2%}", ""]
    lines += table(trials, [row(f"{name}, at all sites", trials.choices.uniform(n)) for n, name in enumerate(CANDIDATES)])
    for name in BUDGETS:
        uniform = trials.choices.uniform(list(CANDIDATES).index(name))
        budget = trials.stored.bytes(uniform)
        batches = [train_inputs[:32], train_inputs[32:64]]
        search = transform.mixed_precision(model.apply, params, batches, schemes, max_bytes=budget, progress=True)
        print(search)
        if picture is not None and name == BUDGETS[1]:
            search.draw(picture)
        mixed = tuple(schemes.index(site.choice) + 1 for site in search.sites)
        assignments = within(trials, budget)
        decibels, accuracies = measured(assignments)
        best = int(np.argmax(decibels))
        sizes = [trials.stored.bytes(numbers) for numbers in assignments]
        lines += ["", f"At most {budget:,} bytes, those of {name}:", ""]
        rows = [row(f"{name}, at all sites", uniform), row("**mixed precision**", mixed)]
        medians = f"{int(np.median(sizes)):,}", float(np.median(decibels)), float(np.median(accuracies))
        rows.append(Row(f"{NUM_RANDOM} random assignments, median", *medians))
        rows.append(Row("the best of these", f"{sizes[best]:,}", decibels[best], accuracies[best]))
        lines += table(trials, rows)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transform.mixed_precision",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draws the search of the character model")
    arguments = parser.parse_args()
    description = environment.describe(["jquant-jax", "flax"])
    output = arguments.output or RESULTS / f"mixed-precision-{environment.file_name(description)}.md"
    lines = ["# Bits where they count: mixed precision, uniform schemes and random assignments", ""]
    lines += [f"- {name}: {value}" for name, value in description.items()]
    for model, data, size, options in (
        (CharacterModel(), documentation(), 64, {"steps": 300, "batch_size": 32}),
        (ResidualMLP(), digits(), 599, {}),
    ):
        train_inputs, test_inputs, train_labels, test_labels = data
        params = train(model, train_inputs, train_labels, **options)
        picture = arguments.picture if isinstance(model, CharacterModel) else None
        lines += ["", f"## {type(model).__name__}", ""]
        lines += compare(model, params, train_inputs, (test_inputs[:size], test_labels[:size]), picture)
    text = "\n".join(lines) + "\n"
    print(text)
    output.write_text(text)


if __name__ == "__main__":
    main()
