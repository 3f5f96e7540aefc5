"""Measures networks that `jquant.transform` converted to int8 beside float, handwritten int8, Qwix and onnxruntime.

    python -m benchmarks.transform [--rounds 100] [--output FILE.md]

Two Flax networks are trained on the scikit-learn digits; each contestant has its own copy of the weights. Prints the
accuracy on the test set, the bytes of the parameters and the times of all contestants in one run, and writes them: by
default to benchmarks/results/transform-PLATFORM-jax-VERSION.md.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks import environment
from benchmarks.measure import measure, quartiles
from benchmarks.transform.contestants import make_contestants
from benchmarks.transform.networks import CNN, MLP, digits, train
from benchmarks.transform.onnx_quantization import onnxruntime_logits

RESULTS = Path(__file__).parent.parent / "results"
BATCH_SIZES = 128, 1
CALIBRATION_BATCHES = 4  # of 128


def accuracy_table(logits: dict[str, np.ndarray], labels: np.ndarray, sizes: dict[str, int]) -> list[str]:
    """For each contestant: its accuracy, how close it is to the float network, and the bytes of its parameters."""
    expected = logits["float32"]
    lines = ["| | test accuracy | predicts as float | cosine to float | bytes |", "|---|--:|--:|--:|--:|"]
    for name, actual in logits.items():
        digits = actual.argmax(-1)
        cosine = np.sum(expected * actual, dtype=np.float64) / (np.linalg.norm(expected) * np.linalg.norm(actual))
        size = f"{sizes[name]:,}" if name in sizes else "-"
        agreement = np.mean(digits == expected.argmax(-1))
        lines.append(f"| {name} | {np.mean(digits == labels):.2%} | {agreement:.2%} | {cosine:.6f} | {size} |")
    return lines


def times_table(times: dict[int, Any]) -> list[str]:
    """Medians, quartiles, and the medians of the ratios of each round."""
    header = " | ".join(f"batch {size}, ms (quartiles) | over float | over by hand" for size in times)
    lines = [f"| | {header} |", f"|---|{'--:|' * 3 * len(times)}"]
    for name in next(iter(times.values())):
        cells = [name]
        for batch_times in times.values():
            own = batch_times[name].further
            low, median, high = quartiles(own)
            ratios = (np.median(own / batch_times[other].further) for other in ("float32", "by hand, static"))
            cells += [f"{median:.3f} ({low:.3f} to {high:.3f})", *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def tables(model: nn.Module, images: np.ndarray, test: tuple[np.ndarray, np.ndarray], params: Any, rounds: int) -> list[str]:
    """The lines for one network; `test` has images and labels."""
    batches = [images[index * 128 : (index + 1) * 128] for index in range(CALIBRATION_BATCHES)]
    contestants = make_contestants(model, params, batches)
    jitted = {name: jax.jit(contestant.function) for name, contestant in contestants.items()}
    logits = {name: np.asarray(jitted[name](contestant.params, test[0])) for name, contestant in contestants.items()}
    different = np.sum(logits["transform, static"] != logits["by hand, static"])
    if isinstance(model, MLP):
        try:
            logits |= onnxruntime_logits(params, batches, test[0])
        except ImportError:
            print("onnxruntime is not installed, so it is left out")
    sizes = {
        name: sum(leaf.nbytes for leaf in jax.tree.leaves(contestant.params)) for name, contestant in contestants.items()
    }
    times = {}
    for size in BATCH_SIZES:
        batch = jnp.asarray(test[0][:size])
        calls = {
            name: functools.partial(finish, jitted[name], contestant.params, batch)
            for name, contestant in contestants.items()
        }
        with tqdm(total=rounds, desc=f"{type(model).__name__}, batch {size}", unit="round") as bar:
            times[size] = measure(calls, rounds, after_round=bar.update)
    equal = f"`transform, static` and `by hand, static`: {different} of {logits['float32'].size:,} outputs differ."
    return [*accuracy_table(logits, test[1], sizes), "", *times_table(times), "", equal]


def finish(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    return jax.block_until_ready(function(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    description = environment.describe(["jquant-jax", "flax", "qwix", "onnxruntime"])
    output = arguments.output or RESULTS / f"transform-{environment.file_name(description)}.md"
    train_images, test_images, train_labels, test_labels = digits()
    lines = ["# Networks in int8: by transformation, by hand, and by others", ""]
    lines += [f"- {name}: {value}" for name, value in description.items()]
    lines += ["- weights: trained on the scikit-learn digits; a copy for each contestant, in an order drawn anew each round"]
    for model in (MLP(), CNN()):
        params = train(model, train_images, train_labels)
        lines += ["", f"## {type(model).__name__}", ""]
        lines += tables(model, train_images, (test_images, test_labels), params, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    output.write_text(text)


if __name__ == "__main__":
    main()
