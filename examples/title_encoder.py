"""The int8 encoder of a language model, loaded from its ONNX file with one call.

The package `traceforge-title-model` has FLAN-T5 small, fine-tuned to write titles, with dynamically quantized products.
20 sentences about software go through its encoder, in jquant and in onnxruntime. With onnxruntime's float32 functions, the
result is onnxruntime's, bit for bit; with JAX's own, the last bits differ, which sometimes gives another integer. Prints how
far the results differ for each sentence, and how long they take; draws both, and how similar the sentences are.

    pip install ".[models]"
    python examples/title_encoder.py --output title_encoder.png
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import onnxruntime_float32
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from onnxruntime import InferenceSession
from titles import ENCODER, SENTENCES, TOPICS, median_milliseconds, onnxruntime_session, run, tokenize

import jquant

OWN, EQUAL, OPTIMISED = "jquant, JAX's functions", "jquant, onnxruntime's functions", "onnxruntime, optimised"
FLOATS = {OWN: None, EQUAL: onnxruntime_float32.FUNCTIONS}
COLOURS = {OWN: "#E69F00", EQUAL: "#D55E00", OPTIMISED: "#0072B2"}


@functools.partial(jax.jit, static_argnums=0)
def encode(model: jquant.onnx.Model, params: dict, inputs: dict) -> jax.Array:
    """The last hidden state, of shape (sentences, length, width)."""
    return model(params, inputs)["last_hidden_state"]


@functools.partial(jax.jit, static_argnums=0)
def encode_each(model: jquant.onnx.Model, params: dict, inputs: dict) -> jax.Array:
    """`encode` of each sentence on its own: its ranges do not depend on the other sentences."""
    return jax.vmap(lambda sentence: encode(model, params, sentence)[0])({name: x[:, None] for name, x in inputs.items()})


def run_each(session: InferenceSession, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """`run` of each sentence on its own."""
    sentences = zip(*inputs.values(), strict=True)
    return np.concatenate([run(session, {k: x[None] for k, x in zip(inputs, each, strict=True)}) for each in sentences])


def cosine_distances(actual: np.ndarray, expected: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """1 - cosine of each sentence, over its tokens without the padding; 0 if they are equal."""
    pair = (np.where(mask[..., None], x, 0).reshape(len(x), -1).astype(np.float64) for x in (actual, expected))
    actual, expected = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in pair)
    return np.sum((actual - expected) ** 2, 1) / 2


def similarities(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Cosines between the mean tokens of the sentences, less the mean of all sentences."""
    mean = np.sum(hidden * mask[..., None], 1) / mask.sum(1, keepdims=True)
    mean -= mean.mean(0)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    return mean @ mean.T


def draw_similarities(axes: Axes, similarity: np.ndarray) -> None:
    image = axes.imshow(similarity, cmap="RdBu_r", vmin=-0.5, vmax=0.5)
    lines = np.cumsum([len(sentences) for sentences in TOPICS.values()])
    for line in lines[:-1] - 0.5:
        axes.axhline(line, color="white", linewidth=2)
        axes.axvline(line, color="white", linewidth=2)
    labels = [sentence if len(sentence) < 48 else sentence[:46] + " …" for sentence in SENTENCES]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xticks(lines - 2.5, TOPICS, fontsize=9)
    axes.set_title("How similar the sentences are to the encoder", fontsize=11)
    axes.figure.colorbar(image, ax=axes, shrink=0.7, label="cosine of the mean tokens, less the mean of all", extend="both")


def draw_agreement(axes: Axes, distances: dict[str, np.ndarray]) -> None:
    for (label, distance), marker in zip(distances.items(), "sdo", strict=True):
        axes.plot(distance, range(len(distance)), marker, label=label, color=COLOURS[label], fillstyle="none", clip_on=False)
    axes.set_xscale("symlog", linthresh=1e-16)
    axes.set_xticks([0, *10.0 ** np.arange(-15, 1, 3)])
    axes.minorticks_off()
    axes.set(xlim=(0, 1), xlabel="1 - cosine", yticks=[], ylim=(len(distance) - 0.5, -0.5))
    axes.set_title("How far the last hidden state is from\nonnxruntime's without its optimisations", fontsize=11)
    axes.legend(loc="lower center", fontsize=8)


def draw_latencies(axes: Axes, latencies: dict[str, dict[str, float]]) -> None:
    for place, (label, colour) in enumerate(COLOURS.items()):
        times = [milliseconds[label] for milliseconds in latencies.values()]
        bars = axes.barh(np.arange(len(latencies)) + 0.28 * (place - 1), times, 0.28, color=colour)
        axes.bar_label(bars, fmt=f" %.1f  {label}", fontsize=8)
    axes.set_yticks(range(len(latencies)), latencies)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel="milliseconds, median")
    axes.set_title("How long it takes", fontsize=11)


def draw(path: Path, similarity: np.ndarray, distances: dict, latencies: dict) -> None:
    figure = Figure(figsize=(15, 9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.8, 1))
    left, right = top.subplots(1, 2, width_ratios=(1.7, 1))
    draw_similarities(left, similarity)
    draw_agreement(right, distances)
    draw_latencies(bottom.subplots(), latencies)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description="The int8 encoder of a language model, compared with onnxruntime.")
    parser.add_argument("--output", type=Path, default=Path("title_encoder.png"), help="the PNG to write")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the timing")
    arguments = parser.parse_args()
    models = {name: jquant.onnx.load(ENCODER, overrides=floats) for name, floats in FLOATS.items()}
    print(models[OWN])
    inputs, session, total = tokenize(SENTENCES), onnxruntime_session(ENCODER), len(SENTENCES)

    def calls(ours: Callable, theirs: Callable, count: int) -> dict[str, Callable[[], np.ndarray | jax.Array]]:
        """Calls of all contestants, on the first `count` sentences."""
        first = {name: x[:count] for name, x in inputs.items()}
        operands = jax.device_put(first)
        programs = {name: lambda m=m: ours(m, m.params, operands).block_until_ready() for name, m in models.items()}
        return programs | {OPTIMISED: lambda: theirs(session, first)}

    expected = run_each(onnxruntime_session(ENCODER, optimised=False), inputs)
    results = {name: np.asarray(call()) for name, call in calls(encode_each, run_each, total).items()}
    distances = {name: cosine_distances(result, expected, inputs["attention_mask"]) for name, result in results.items()}
    print("The last hidden state, compared with onnxruntime's without its optimisations, 1 - cosine:")
    print(f"{'':<34}" + "".join(f"{name:>34}" for name in distances))
    for sentence, *row in zip(SENTENCES, *distances.values(), strict=True):
        columns = (f"{distance:.1e}" if distance else "equal" for distance in row)
        print(f"{sentence[:32]:<34}" + "".join(f"{column:>34}" for column in columns))

    latencies = {}
    for title, ours, theirs, count in (
        ("1 sentence", encode, run, 1),
        (f"{total} sentences, one range for all", encode, run, total),
        (f"{total} sentences, each with its ranges", encode_each, run_each, total),
    ):
        contestants = calls(ours, theirs, count)
        times = median_milliseconds([*contestants.values()], arguments.rounds)
        latencies[title] = dict(zip(contestants, times, strict=True))
        print(f"{title}: " + ", ".join(f"{name} {time:.2f} ms" for name, time in latencies[title].items()))
    draw(arguments.output, similarities(results[EQUAL], inputs["attention_mask"]), distances, latencies)


if __name__ == "__main__":
    main()
