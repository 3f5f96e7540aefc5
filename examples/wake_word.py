"""Wake words in int8: the networks of the package pymicro-wakeword in plain JAX code with jquant's operators.

Reads the weights of four TensorFlow Lite files. Each network listens to all four wake words in steps of 30 ms, with a state
that carries the earlier frames that its convolutions over time need. LiteRT, which the networks were made for, runs on the
same sound with each of its two sets of kernels. Prints how the layers and the networks agree with it, on speech and on noise
of every int8 value; draws the sound and the probabilities. The recordings beside this program are of a synthetic voice
(eSpeak NG's).

    pip install ".[models]"
    python examples/wake_word.py --output wake_word.png
"""

import argparse
import warnings
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymicro_wakeword
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, it draws with Agg and needs no display
from tqdm import tqdm

import jquant

MODELS = Path(pymicro_wakeword.__file__).parent / "models"
NAMES = tuple(model.value for model in pymicro_wakeword.Model)
RECORDINGS = Path(__file__).parent / "wake_words"
STRIDE = 3  # frames of 10 ms in a step
CHANNELS = 40  # of the frames
SAMPLES = 16_000  # in a second
ENGINES = {"XNNPACK": OpResolverType.AUTO, "built-in": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES}


class Quantization(NamedTuple):
    scale: np.float32
    zero_point: np.int8


class Layer(NamedTuple):
    """A convolution, with its weight in the layout of the file, or a dense layer, with its weight as (inputs, outputs)."""

    input: Quantization
    weight: np.ndarray  # int8
    weight_scale: np.ndarray  # float32 (outputs,)
    bias: np.ndarray  # int32 (outputs,)
    output: Quantization


class Sigmoid(NamedTuple):
    input: Quantization
    output: Quantization


class Operation(NamedTuple):
    """An operation of the file: a layer or a sigmoid, and the tensors that it reads and writes."""

    kind: str
    layer: Layer | Sigmoid
    input: int
    output: int


class Block(NamedTuple):
    depthwise: tuple[Layer, ...]  # each takes an equal part of the channels
    pointwise: Layer


class Network(NamedTuple):
    stem: Layer
    blocks: tuple[Block, ...]
    dense: Layer
    sigmoid: Sigmoid


def read(path: Path) -> list[Operation]:
    """The operations with weights of a TensorFlow Lite file, and the sigmoid."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    tensors, operators = model.subgraphs[0].tensors, model.subgraphs[0].operators
    kinds = {number: kind for kind, number in vars(schema.BuiltinOperator).items()}

    def quantization(index: int) -> Quantization:
        parameters = tensors[index].quantization
        return Quantization(np.float32(parameters.scale[0]), np.int8(parameters.zeroPoint[0]))

    def constant(index: int, dtype: type) -> np.ndarray:
        return model.buffers[tensors[index].buffer].data.view(dtype).reshape(tensors[index].shape)

    operations = []
    for operator in operators:
        kind = kinds[model.operatorCodes[operator.opcodeIndex].builtinCode]
        if kind not in OPERATORS:
            continue
        (input, *weights), (output,) = map(int, operator.inputs), map(int, operator.outputs)
        layer = Sigmoid(quantization(input), quantization(output))
        if weights:
            weight, bias = constant(weights[0], np.int8), constant(weights[1], np.int32)
            if kind == "FULLY_CONNECTED":
                weight = weight.T
            layer = Layer(layer.input, weight, np.float32(tensors[weights[0]].quantization.scale), bias, layer.output)
        operations.append(Operation(kind, layer, input, output))
    return operations


def assemble(operations: Sequence[Operation]) -> Network:
    """The network: a convolution, blocks of depthwise and pointwise convolutions, a dense layer and the sigmoid."""
    (_, stem, *_), *layers, (_, dense, *_), (_, sigmoid, *_) = operations
    blocks, depthwise = [], ()
    for kind, layer, *_ in layers:
        if kind == "DEPTHWISE_CONV_2D":
            depthwise += (layer,)
        else:
            blocks.append(Block(depthwise, layer))
            depthwise = ()
    return Network(stem, tuple(blocks), dense, sigmoid)


def convolution(layer: Layer, x: jax.Array, stride: int = 1) -> jax.Array:
    """A convolution of (batch, time, 1, channels). A ReLU in the file is saturation: the zero point is the lowest int8."""
    groups = x.shape[3] // layer.weight.shape[3]
    bias = layer.bias.reshape(1, -1, 1, 1)
    return jquant.quantized_linear_convolution(
        x,
        *layer.input,
        layer.weight,
        layer.weight_scale,
        None,
        *layer.output,
        bias,
        strides=(stride, 1),
        groups=groups,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )


def depthwise_convolution(layer: Layer, x: jax.Array) -> jax.Array:
    """A convolution with a filter for each channel; the channels are the last dimension in the file."""
    return convolution(layer._replace(weight=layer.weight.transpose(3, 1, 2, 0)), x)


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    x = x.reshape(x.shape[0], -1)
    return jquant.quantized_gemm(x, *layer.input, layer.weight, layer.weight_scale, None, layer.bias, *layer.output)


def sigmoid(layer: Sigmoid, x: jax.Array) -> jax.Array:
    return jquant.quantized_linear_sigmoid(x, *layer.input, *layer.output)


OPERATORS = {
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": depthwise_convolution,
    "FULLY_CONNECTED": dense,
    "LOGISTIC": sigmoid,
}


def initial_state(network: Network) -> list[jax.Array]:
    """The initial state of each window: frames of real 0, as many as a window has before the new ones."""
    stem, blocks, dense, _ = network
    sizes = [(stem.weight.shape[1] - STRIDE, CHANNELS, stem.input)]
    for depthwise, pointwise in blocks:
        longest = max(layer.weight.shape[1] for layer in depthwise)
        sizes.append((longest - 1, pointwise.weight.shape[3], depthwise[0].input))
    channels = blocks[-1].pointwise.weight.shape[0]
    sizes.append((dense.weight.shape[0] // channels - 1, channels, dense.input))
    return [jnp.full((1, time, 1, channels), input.zero_point) for time, channels, input in sizes]


def listen(network: Network, state: list[jax.Array], frames: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """The next state, and a probability (uint8, in steps of 1/256) for every `STRIDE` frames, int8 (time, channels)."""
    new_state = []

    def window(x: jax.Array) -> jax.Array:
        """`x` after the frames of the state."""
        old = state[len(new_state)]
        joined = jnp.concatenate([old, x], axis=1)
        new_state.append(joined[:, x.shape[1] :])
        return joined

    x = convolution(network.stem, window(frames[None, :, None, :]), STRIDE)
    steps = x.shape[1]
    for depthwise, pointwise in network.blocks:
        parts = zip(depthwise, jnp.split(window(x), len(depthwise), axis=3), strict=True)
        parts = [depthwise_convolution(layer, part[:, 1 - steps - layer.weight.shape[1] :]) for layer, part in parts]
        x = convolution(pointwise, jnp.concatenate(parts, axis=3))
    x = window(x)[0, :, 0]
    windows = jnp.stack([x[start : start + steps] for start in range(x.shape[0] - steps + 1)], axis=1)
    probability = sigmoid(network.sigmoid, dense(network.dense, windows))[:, 0]
    probability = jquant.dequantize_linear(probability, *network.sigmoid.output)
    return new_state, jquant.quantize_linear(probability, network.sigmoid.output.scale)


@jax.jit
def stream(network: Network, state: list[jax.Array], frames: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """`listen` step by step, as in live audio; two steps in an iteration of the loop, after which XLA copies the state."""
    state, probability = jax.lax.scan(lambda state, step: listen(network, state, step), state, frames, unroll=2)
    return state, probability[:, 0]


def spoken(paths: Sequence[Path]) -> tuple[np.ndarray, list[float]]:
    """Recordings (16 kHz, 16-bit, mono) with a second of silence around each, and the start of each in seconds."""
    silence, parts, starts = np.zeros(SAMPLES, np.int16), [], []
    for path in paths:
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (SAMPLES, 2, 1):
                raise ValueError(f"{path}: it must be 16 kHz, 16-bit and mono")
            parts += [silence, np.frombuffer(file.readframes(file.getnframes()), "<i2")]
        starts.append(sum(map(len, parts[:-1])) / SAMPLES)
    return np.concatenate([*parts, silence]), starts


def features(audio: np.ndarray, input: Quantization) -> np.ndarray:
    """The features of the package's own front end, quantized: int8 (steps, `STRIDE`, `CHANNELS`)."""
    frames = np.concatenate([*pymicro_wakeword.MicroWakeWordFeatures().process_streaming(audio.tobytes())], axis=1)
    frames = frames[0, : frames.shape[1] // STRIDE * STRIDE].reshape(-1, STRIDE, CHANNELS)
    return np.asarray(jquant.quantize_linear(np.float32(frames), *input))


def litert(path: Path, resolver: OpResolverType, *, keep: bool = False) -> Interpreter:
    """LiteRT's interpreter; with `keep`, every tensor can be read after each step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental_preserve_all_tensors")  # says that it costs memory
        interpreter = Interpreter(
            str(path), experimental_op_resolver_type=resolver, experimental_preserve_all_tensors=keep, num_threads=1
        )
    interpreter.allocate_tensors()
    return interpreter


def trace(
    path: Path, resolver: OpResolverType, operations: Sequence[Operation], frames: np.ndarray
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """LiteRT's probabilities, and the tensors that each operation read and wrote, over all steps."""
    interpreter = litert(path, resolver, keep=True)
    (input,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    places = [output["index"], *(index for operation in operations for index in (operation.input, operation.output))]
    steps = []
    for frame in frames:
        interpreter.set_tensor(input["index"], frame[None])
        interpreter.invoke()
        steps.append([interpreter.get_tensor(place) for place in places])
    probability, *tensors = (np.concatenate(values) for values in zip(*steps, strict=True))
    return probability[:, 0], list(zip(tensors[::2], tensors[1::2], strict=True))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a).astype(int) - np.asarray(b).astype(int)


class Agreement(NamedTuple):
    """How many 8-bit integers were compared, how many differ, and by how much at most."""

    elements: int = 0
    different: int = 0
    largest: int = 0

    def with_more(self, differences: np.ndarray) -> "Agreement":
        """The agreement with the differences of further elements added."""
        largest = max(self.largest, int(np.abs(differences).max()))
        return Agreement(self.elements + differences.size, self.different + np.count_nonzero(differences), largest)

    def __str__(self) -> str:
        return f"{self.different} differ, by {self.largest}" if self.different else "equal"


class Heard(NamedTuple):
    """The probabilities that a network gives, in 256ths: jquant's, and those of each set of LiteRT's kernels."""

    probability: np.ndarray
    litert: dict[str, np.ndarray]  # by engine


def print_agreement(title: str, rows: dict[str, dict[str, Agreement]]) -> None:
    """A row for each name, a column for each engine."""
    print(f"{title:<34}{'elements':>11}" + "".join(f"{engine:>20}" for engine in ENGINES))
    for name, agreements in rows.items():
        elements = agreements["XNNPACK"].elements
        print(f"  {name:<32}{elements:>11,}" + "".join(f"{agreements[engine]!s:>20}" for engine in ENGINES))


def draw(path: Path, sound: np.ndarray, starts: dict[str, float], heard: dict[str, Heard]) -> None:
    """The sound, the probability that each network gives to its wake word, and how far LiteRT's differs from it."""
    figure = Figure(figsize=(12, 9), layout="constrained")
    sizes = {"width_ratios": (2, 1), "height_ratios": (1.6, *[1] * len(heard))}
    (left, right), *rows = figure.subplots(1 + len(heard), 2, sharex=True, gridspec_kw=sizes)
    seconds = 0.01 * STRIDE * np.arange(len(sound) + 1)
    image = sound.reshape(-1, CHANNELS).T
    left.imshow(image, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds[-1], 0, CHANNELS))
    left.set_ylabel("channels of the sound")
    for name, start in starts.items():
        left.text(start, CHANNELS, f"“{spelled(name)}”", va="bottom")
    for axes, (name, probabilities) in zip(rows, heard.items(), strict=True):
        draw_probability(*axes, probabilities, seconds)
        axes[0].set_ylabel(spelled(name))
    right.set_axis_off()
    right.legend(*rows[0][0].get_legend_handles_labels(), loc="center", frameon=False)
    rows[0][0].set_title("Probability that each network gives to its wake word")
    rows[0][1].set_title("LiteRT minus jquant, in 256ths")
    limit = max(np.abs(axes[1].get_ylim()).max() for axes in rows)
    for axes in rows:
        axes[1].set_ylim(-limit, limit)
    for axes in rows[-1]:
        axes.set_xlabel("seconds")
    figure.savefig(path, dpi=150)


def draw_probability(left: Axes, right: Axes, heard: Heard, seconds: np.ndarray) -> None:
    left.set_ylim(-0.05, 1.05)
    left.stairs(heard.probability / 256, seconds, baseline=None, color="#E69F00", linewidth=6, alpha=0.5, label="jquant")
    for (engine, other), (colour, width) in zip(heard.litert.items(), (("#009E73", 3), ("#0072B2", 1)), strict=True):
        style = {"baseline": None, "color": colour, "linewidth": width}
        left.stairs(other / 256, seconds, label=f"LiteRT, {engine} kernels", **style)
        right.stairs(difference(other, heard.probability), seconds, **style)


def spelled(name: str) -> str:
    return name.replace("_", " ").title()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--audio", type=Path, nargs="+", help="WAV files, 16 kHz, 16-bit, mono, instead of the four recordings"
    )
    parser.add_argument("--output", type=Path, default=Path("wake_word.png"), help="the PNG to write")
    arguments = parser.parse_args()

    paths = arguments.audio or [RECORDINGS / f"{name}.wav" for name in NAMES]
    audio, starts = spoken(paths)
    noise = np.random.default_rng(0).integers(-128, 128, (200, STRIDE, CHANNELS), np.int8)
    operators = {kind: jax.jit(operator) for kind, operator in OPERATORS.items()}
    layers = {kind: {engine: Agreement() for engine in ENGINES} for kind in OPERATORS}
    networks, heard = {}, {}
    for name in tqdm(NAMES, unit="network"):
        operations = read(path := MODELS / f"{name}.tflite")
        network = assemble(operations)
        sound = features(audio, network.stem.input)
        frames = np.concatenate([sound, noise])
        probability = np.asarray(stream(network, initial_state(network), frames)[1])
        networks[name], litert = {}, {}
        for engine, resolver in ENGINES.items():
            other, tensors = trace(path, resolver, operations, frames)
            networks[name][engine] = Agreement().with_more(difference(probability, other))
            litert[engine] = other[: len(sound)]
            for (kind, layer, *_), (input, output) in zip(operations, tensors, strict=True):
                differences = difference(operators[kind](layer, input), output)
                layers[kind][engine] = layers[kind][engine].with_more(differences)
        heard[name] = Heard(probability[: len(sound)], litert)
    print_agreement("layers, on LiteRT's inputs", layers)
    print_agreement("networks, probabilities in 256ths", networks)
    draw(arguments.output, sound, dict(zip((path.stem for path in paths), starts, strict=True)), heard)


if __name__ == "__main__":
    main()
