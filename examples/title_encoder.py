"""The int8 encoder of a language model, as plain JAX code around jquant's operators.

Reads the weights of the ONNX file in the package `traceforge-title-model` (FLAN-T5 small, trained further to write titles,
with dynamically quantized products), and runs 20 sentences about software through the encoder below and through
onnxruntime. With onnxruntime's float32 functions the result is onnxruntime's bit for bit; with JAX's own, last bits differ,
which now and then makes another integer. Prints how they agree, sentence by sentence, and how long they take; draws both,
and how similar the sentences are.

    pip install ".[models]"
    python examples/title_encoder.py --output title_encoder.png
"""

import argparse
import functools
import importlib.resources
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import onnxruntime_float32
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from tokenizers import Tokenizer
from tqdm import tqdm, trange

import jquant
from jquant import exact

HEADS, BUCKETS, NEAREST, FARTHEST = 6, 16, 8, 128  # the graph's constants, as are EPSILON and those of `gelu`
EPSILON = 1e-6
SENTENCES = {
    "crashes": (
        "The program crashes with a segmentation fault when the configuration file is empty.",
        "Opening a very large file makes the editor freeze and then exit without a message.",
        "The server dies with an out of memory error after two days under load.",
        "Saving a project whose name contains an accent raises an exception.",
    ),
    "speed": (
        "Start-up takes eight seconds because every plugin is loaded at once.",
        "Cache the compiled regular expressions, so that parsing the log is three times faster.",
        "The query became slow after we removed the index on the customer table.",
        "Render only the rows that are visible, which makes scrolling smooth again.",
    ),
    "documentation": (
        "Explain in the manual how to install the package without network access.",
        "The example in the tutorial does not run with the current release.",
        "Fix two broken links and a spelling mistake in the readme.",
        "Describe every option of the command line with its default value.",
    ),
    "tests": (
        "The integration tests fail at random because they depend on the time of day.",
        "Run the test suite on Windows and on macOS as well.",
        "Add a regression test for the parser of dates in leap years.",
        "Replace the mocked database by a real one in a temporary folder.",
    ),
    "security": (
        "Passwords must never be written to the log file.",
        "Escape the user name before it is inserted into the page, which prevents cross-site scripting.",
        "Update the encryption library to the version without the published vulnerability.",
        "Sessions have to expire after thirty minutes without activity.",
    ),
}


class Functions(NamedTuple):
    """What the network needs in float32 besides single products, sums and quotients."""

    matmul: Callable[[jax.Array, jax.Array], jax.Array]
    mean: Callable[[jax.Array], jax.Array]  # of the last axis, which stays
    softmax: Callable[[jax.Array], jax.Array]
    tanh: Callable[[jax.Array], jax.Array]


JAX = Functions(jnp.matmul, functools.partial(jnp.mean, axis=-1, keepdims=True), jax.nn.softmax, jnp.tanh)
ONNXRUNTIME = Functions(
    onnxruntime_float32.matmul, onnxruntime_float32.mean, onnxruntime_float32.softmax, onnxruntime_float32.tanh
)
OWN, EQUAL, OPTIMISED = "jquant, JAX's functions", "jquant, onnxruntime's functions", "onnxruntime, optimised"
PROGRAMS = {OWN: JAX, EQUAL: ONNXRUNTIME}
COLOURS = {OWN: "#E69F00", EQUAL: "#D55E00", OPTIMISED: "#0072B2"}


class Linear(NamedTuple):
    """One or more products of the same input, side by side: each column keeps the scale of its own matrix."""

    weight: jquant.PackedMatrix  # int8 (1, inputs, outputs)
    scale: jax.Array  # float32 (outputs,)


class Table(NamedTuple):
    rows: jax.Array  # uint8
    scale: jax.Array
    zero_point: jax.Array


class Block(NamedTuple):
    attention_norm: jax.Array  # float32 (1, 1, width), as the other norms
    query_key_value: Linear
    attention_output: Linear
    feed_forward_norm: jax.Array
    feed_forward_input: Linear  # the gate and what it is multiplied with
    feed_forward_output: Linear


class Encoder(NamedTuple):
    embedding: Table
    position_bias: Table
    blocks: tuple[Block, ...]
    norm: jax.Array


def model_folder() -> Path:
    return Path(str(importlib.resources.files("traceforge_title_model") / "data" / "span"))


def load_encoder(graph: onnx.GraphProto) -> Encoder:
    """The graph's weights in the order of the code below."""
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    matrices = {node.name: node.input[1].removesuffix("_quantized") for node in products}

    def linear(layer: str, *names: str) -> Linear:
        chosen = [matrices[f"/enc/block.{layer}/{name}/MatMul_quant"] for name in names]
        weights = [values[f"{matrix}_quantized"] for matrix in chosen]  # whose zero points are 0
        scales = [values[f"{matrix}_scale"] for matrix in chosen]
        scale = np.repeat(scales, [weight.shape[1] for weight in weights])
        return Linear(jquant.pack_matrix(np.concatenate(weights, axis=1)[None]), jnp.asarray(scale))

    def table(name: str) -> Table:
        return Table(*(jnp.asarray(values[f"enc.{name}.weight_{part}"]) for part in ("quantized", "scale", "zero_point")))

    def norm(name: str) -> jax.Array:
        return jnp.asarray(values[f"enc.{name}layer_norm.weight"])[None, None]

    blocks = []
    for index in tqdm(range(len(products) // 7), desc="packing weights", unit="block"):
        attention, feed_forward = f"{index}/layer.0/SelfAttention", f"{index}/layer.1/DenseReluDense"
        blocks.append(
            Block(
                norm(f"block.{index}.layer.0."),
                linear(attention, "q", "k", "v"),
                linear(attention, "o"),
                norm(f"block.{index}.layer.1."),
                linear(feed_forward, "wi_0", "wi_1"),
                linear(feed_forward, "wo"),
            )
        )
    position_bias = table("block.0.layer.0.SelfAttention.relative_attention_bias")
    return Encoder(table("embed_tokens"), position_bias, tuple(blocks), norm("final_"))


def look_up(table: Table, indices: jax.Array | np.ndarray) -> jax.Array:
    return jquant.dequantize_linear(table.rows[indices], table.scale, table.zero_point)


def root_mean_square_norm(x: jax.Array, weight: jax.Array, functions: Functions) -> jax.Array:
    mean_square = functions.mean(exact.product(x, x))
    root = exact.seal(jnp.sqrt(exact.sum(mean_square, EPSILON)))
    return exact.product(weight, exact.product(x, exact.reciprocal(root)))


def gelu(x: jax.Array, functions: Functions) -> jax.Array:
    """`jax.nn.gelu`, each operation rounded by itself."""
    cube = exact.product(exact.product(x, x), x)
    inner = exact.product(exact.sum(x, exact.product(cube, 0.044715)), math.sqrt(2 / math.pi))
    return exact.product(0.5 * x, exact.sum(functions.tanh(inner), 1))


def linear(layer: Linear, x: jax.Array) -> jax.Array:
    """Quantizes `x` by the range that it has, multiplies, and returns to float32."""
    return jquant.matmul_integer_to_float(*jquant.dynamic_quantize_linear(x), layer.weight, layer.scale, None)


def position_buckets(length: int) -> np.ndarray:
    """Of each query and key, the row of the table of biases: near distances have their own, farther ones share."""
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    near = np.abs(distance)
    logarithm = np.log(np.maximum(near, 1).astype(np.float32) / np.float32(NEAREST)) / np.float32(np.log(FARTHEST / NEAREST))
    far = np.minimum(NEAREST + (logarithm * np.float32(BUCKETS - NEAREST)).astype(np.int64), BUCKETS - 1)
    return np.where(distance > 0, BUCKETS, 0) + np.where(near < NEAREST, near, far)


def attention_bias(table: Table, mask: jax.Array) -> jax.Array:
    """Of every head, query and key: what the distance adds to the score, and that padding is not attended to."""
    by_distance = jnp.transpose(look_up(table, position_buckets(mask.shape[1])), (2, 0, 1))[None]
    return by_distance + ((1 - mask.astype(jnp.float32)) * jnp.finfo(jnp.float32).min)[:, None, None]


@jax.named_scope("attend")
def attend(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array, functions: Functions) -> jax.Array:
    """Of operands of shape (batch, heads, length, width). T5 does not divide the scores by the root of the width."""
    scores = exact.sum(functions.matmul(query, jnp.swapaxes(key, -1, -2)), bias)
    return functions.matmul(functions.softmax(scores), value)


def attention(block: Block, x: jax.Array, bias: jax.Array, functions: Functions) -> jax.Array:
    batch, length, _ = x.shape
    projected = linear(block.query_key_value, x).reshape(batch, length, 3, HEADS, -1)
    mixed = attend(*jnp.moveaxis(projected, (2, 3), (0, 2)), bias, functions)
    return linear(block.attention_output, jnp.swapaxes(mixed, 1, 2).reshape(batch, length, -1))


def feed_forward(block: Block, x: jax.Array, functions: Functions) -> jax.Array:
    gate, value = jnp.split(linear(block.feed_forward_input, x), 2, axis=-1)
    return linear(block.feed_forward_output, exact.product(gelu(gate, functions), value))


@functools.partial(jax.jit, static_argnames="functions")
def encode(encoder: Encoder, tokens: jax.Array, mask: jax.Array, functions: Functions) -> jax.Array:
    """The last hidden state, of shape (sentences, length, width)."""
    x = look_up(encoder.embedding, tokens)
    bias = attention_bias(encoder.position_bias, mask)
    for block in encoder.blocks:
        x = x + attention(block, root_mean_square_norm(x, block.attention_norm, functions), bias, functions)
        x = x + feed_forward(block, root_mean_square_norm(x, block.feed_forward_norm, functions), functions)
    return root_mean_square_norm(x, encoder.norm, functions)


@functools.partial(jax.jit, static_argnames="functions")
def encode_each(encoder: Encoder, tokens: jax.Array, mask: jax.Array, functions: Functions) -> jax.Array:
    """`encode`, of each sentence by itself: its ranges are its own, whatever stands beside it."""
    return jax.vmap(lambda *sentence: encode(encoder, *sentence, functions)[0])(tokens[:, None], mask[:, None])


def tokenize(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """int64 token indices and mask, as the graph takes them, padded to the longest sentence."""
    encodings = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).encode_batch(list(sentences))
    return np.array([encoding.ids for encoding in encodings]), np.array([encoding.attention_mask for encoding in encodings])


def onnxruntime_session(model: onnx.ModelProto, optimised: bool = True) -> onnxruntime.InferenceSession:
    """With as many threads as XLA takes, which do not spin between calls."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return session.run(["last_hidden_state"], {"input_ids": tokens, "attention_mask": mask})[0]


def run_each(session: onnxruntime.InferenceSession, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Of each sentence by itself."""
    return np.concatenate([run(session, tokens[[index]], mask[[index]]) for index in range(len(tokens))])


def cosine_distances(actual: np.ndarray, expected: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """1 - cosine, of each sentence, over its tokens without the padding; 0 where they are equal."""
    pair = (np.where(mask[..., None], x, 0).reshape(len(x), -1).astype(np.float64) for x in (actual, expected))
    actual, expected = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in pair)
    return np.sum((actual - expected) ** 2, 1) / 2


def similarities(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Cosines of the mean tokens of the sentences, seen from the mean of all sentences."""
    mean = np.sum(hidden * mask[..., None], 1) / mask.sum(1, keepdims=True)
    mean -= mean.mean(0)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    return mean @ mean.T


def median_milliseconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of calls that take turns, so that what else the machine does falls on all of them."""
    times = np.empty((rounds, len(calls)))
    for call in calls:
        call()
    for index in trange(rounds, desc="timing", unit="round"):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[index, place] = 1e3 * (time.perf_counter() - start)
    return np.median(times, axis=0).tolist()


def draw_similarities(axes: Axes, similarity: np.ndarray) -> None:
    image = axes.imshow(similarity, cmap="RdBu_r", vmin=-0.5, vmax=0.5)
    lines = np.cumsum([len(sentences) for sentences in SENTENCES.values()])
    for line in lines[:-1] - 0.5:
        axes.axhline(line, color="white", linewidth=2)
        axes.axvline(line, color="white", linewidth=2)
    labels = [sentence if len(sentence) < 48 else sentence[:46] + " …" for group in SENTENCES.values() for sentence in group]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xticks(lines - 2.5, SENTENCES, fontsize=9)
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
        times = [found[label] for found in latencies.values()]
        bars = axes.barh(np.arange(len(latencies)) + 0.28 * (place - 1), times, 0.28, color=colour)
        axes.bar_label(bars, fmt=f" %.1f  {label}", fontsize=8)
    axes.set_yticks(range(len(latencies)), latencies)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel="milliseconds, median")
    axes.set_title("How long it takes", fontsize=11)


def draw(
    path: Path, similarity: np.ndarray, distances: dict[str, np.ndarray], latencies: dict[str, dict[str, float]]
) -> None:
    figure = Figure(figsize=(15, 9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.8, 1))
    left, right = top.subplots(1, 2, width_ratios=(1.7, 1))
    draw_similarities(left, similarity)
    draw_agreement(right, distances)
    draw_latencies(bottom.subplots(), latencies)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description="The int8 encoder of a language model, beside onnxruntime.")
    parser.add_argument("--output", type=Path, default=Path("title_encoder.png"), help="the PNG to write")
    parser.add_argument("--rounds", type=int, default=30, help="of the timing")
    arguments = parser.parse_args()

    model = onnx.load(model_folder() / "encoder.onnx")
    encoder = load_encoder(model.graph)
    sentences = [sentence for group in SENTENCES.values() for sentence in group]
    tokens, mask = tokenize(sentences)
    session = onnxruntime_session(model)

    def calls(ours: Callable, theirs: Callable, count: int) -> dict[str, Callable[[], np.ndarray | jax.Array]]:
        """Of the contestants, on the first sentences."""
        operands = tokens[:count], mask[:count]
        on_device = jax.device_put(operands)
        programs = {
            name: lambda functions=functions: ours(encoder, *on_device, functions).block_until_ready()
            for name, functions in PROGRAMS.items()
        }
        return programs | {OPTIMISED: lambda: theirs(session, *operands)}

    expected = run_each(onnxruntime_session(model, optimised=False), tokens, mask)
    results = {name: np.asarray(call()) for name, call in calls(encode_each, run_each, len(tokens)).items()}
    distances = {name: cosine_distances(result, expected, mask) for name, result in results.items()}
    print("The last hidden state beside onnxruntime's without its optimisations, 1 - cosine:")
    print(f"{'':<34}" + "".join(f"{name:>34}" for name in distances))
    for sentence, *found in zip(sentences, *distances.values(), strict=True):
        columns = (f"{distance:.1e}" if distance else "equal" for distance in found)
        print(f"{sentence[:32]:<34}" + "".join(f"{column:>34}" for column in columns))

    latencies = {}
    for title, ours, theirs, count in (
        ("1 sentence", encode, run, 1),
        (f"{len(tokens)} sentences, one range for all", encode, run, len(tokens)),
        (f"{len(tokens)} sentences, each with its ranges", encode_each, run_each, len(tokens)),
    ):
        contestants = calls(ours, theirs, count)
        times = median_milliseconds([*contestants.values()], arguments.rounds)
        latencies[title] = dict(zip(contestants, times, strict=True))
        print(f"{title}: " + ", ".join(f"{name} {time:.2f} ms" for name, time in latencies[title].items()))
    draw(arguments.output, similarities(results[EQUAL], mask), distances, latencies)


if __name__ == "__main__":
    main()
