"""The models that are measured, with their inputs and the engines that they were made for."""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "examples"))  # whose programs import their neighbours


class Case(NamedTuple):
    """A model on one input.

    Attributes:
      title: which input.
      programs: our jitted programs, by name.
      operands: of the programs, on the device.
      engine: a call of the other engine, which returns when the result is there.
    """

    title: str
    programs: dict[str, Callable[..., Any]]
    operands: tuple
    engine: Callable[[], Any]


class Model(NamedTuple):
    """A model and the engine that it was made for.

    Attributes:
      engine: the package of the engine, whose name and version appear in the tables.
      packages: the other packages whose versions count.
      kinds: the kinds that our operations are grouped into, each with a regular expression. The first that matches the name
        of an operation in JAX, which XLA also gives to whatever it fuses with the operation, is its kind.
      cases: prepares everything that is not timed.
    """

    engine: str
    packages: tuple[str, ...]
    kinds: dict[str, str]
    cases: Callable[[], Iterator[Case]]


def title_encoder() -> Iterator[Case]:
    import title_encoder as example
    from titles import ENCODER, SENTENCES, onnxruntime_session, run, tokenize

    import jquant

    models = {name: jquant.onnx.load(ENCODER, overrides=floats) for name, floats in example.FLOATS.items()}
    session, batch = onnxruntime_session(ENCODER), tokenize(SENTENCES)
    sentences, length = batch["input_ids"].shape
    for count, ranges, program, engine in (
        (1, "", example.encode, run),
        (sentences, ", one range for all", example.encode, run),
        (sentences, ", each with its ranges", example.encode_each, example.run_each),
    ):
        inputs = {name: x[:count] for name, x in batch.items()}
        yield Case(
            f"{count} x {length} tokens{ranges}",
            {name: jax.jit(functools.partial(program, model)) for name, model in models.items()},
            (models[example.OWN].params, jax.device_put(inputs)),
            functools.partial(engine, session, inputs),
        )


def title_decoder() -> Iterator[Case]:
    """The step that follows 16 tokens."""
    from titles import DECODER, ENCODER, SENTENCES, onnxruntime_session, run, tokenize

    inputs = tokenize(SENTENCES[:1])
    hidden = run(onnxruntime_session(ENCODER), inputs)
    tokens = np.arange(16)[None]
    inputs = {"encoder_hidden_states": hidden, "encoder_attention_mask": inputs["attention_mask"], "input_ids": tokens}
    yield onnx_case(f"{tokens.size} tokens behind a sentence of {hidden.shape[1]}", DECODER, inputs)


def onnx_case(
    title: str, path: Path, inputs: dict[str, np.ndarray], qdq: Literal["as_written", "fused"] = "as_written"
) -> Case:
    """An unchanged ONNX file, with JAX's float functions."""
    from titles import onnxruntime_session

    import jquant

    start = time.perf_counter()
    model, session = jquant.onnx.load(path, qdq=qdq), onnxruntime_session(path)
    title += f", loaded in {time.perf_counter() - start:.1f} s"
    return Case(title, {"jquant": jax.jit(model)}, (model.params, jax.device_put(inputs)), lambda: session.run(None, inputs))


def random_inputs(path: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Normally distributed floats, and random integers from 0 and 1."""
    import jquant

    rng, inputs = np.random.default_rng(0), {}
    for name, value in jquant.onnx.load(path).inputs.items():
        shape = [size if isinstance(size, int) else sizes.get(str(size), 1) for size in value.shape or ()]
        numbers = rng.normal(size=shape) if np.issubdtype(value.dtype, np.floating) else rng.integers(0, 2, shape)
        inputs[name] = numbers.astype(value.dtype)
    return inputs


def random_case(path: Path, sizes: dict[str, int], qdq: Literal["as_written", "fused"]) -> Iterator[Case]:
    """Any ONNX file, on random inputs, whose named dimensions have these sizes or else 1."""
    inputs = random_inputs(path, sizes)
    title = ", ".join(f"{name} {list(x.shape)}" for name, x in inputs.items())
    yield onnx_case(f"{title}, {qdq.replace('_', ' ')}", path, inputs, qdq)


def wake_word(name: str) -> Iterator[Case]:
    """The weights are constants of our programs, as they are in LiteRT's; each step is one LiteRT call."""
    import wake_word as example

    path = example.MODELS / f"{name}.tflite"
    network = example.assemble(example.read(path))
    sound, _ = example.spoken([example.RECORDINGS / f"{word}.wav" for word in example.NAMES])
    steps = example.features(sound, network.stem.input)
    interpreter = example.litert(path, example.OpResolverType.AUTO)
    (input,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def invoke(steps: np.ndarray) -> None:
        for step in steps:
            interpreter.set_tensor(input["index"], step[None])
            interpreter.invoke()
            interpreter.get_tensor(output["index"])

    listen, stream = (jax.jit(functools.partial(program, network)) for program in (example.listen, example.stream))
    frames = steps.reshape(-1, example.CHANNELS)
    state, device_steps, frames = jax.device_put((example.initial_state(network), steps, frames))
    seconds = 0.01 * len(frames)
    for title, program, operand, count in (
        ("one step of 30 ms", listen, frames[: example.STRIDE], 1),
        (f"{seconds:.1f} s, step by step", stream, device_steps, len(steps)),
        (f"{seconds:.1f} s at once", listen, frames, len(steps)),
    ):
        yield Case(title, {"jquant": program}, (state, operand), functools.partial(invoke, steps[:count]))


TITLE_KINDS = {
    "products of integers": r"MatMul_quant.*/(dot_general|ffi_call)",
    "ranges, division by the scale, rounding to integers": r"QuantizeLinear.*/(reduce|div|select|round|jit)",
    "attention: scores, softmax, mixture": r"(Attention/MatMul|Softmax)",
    "norms": "layer_norm",
    "scales of products": r"(quant_output_scale|output_quantized|Cast|Mul)",
    "all else: activation functions, sums, look-ups": "",
}
WAKE_WORD_KINDS = {
    "convolutions": "quantized_linear_convolution",
    "dense layer, sigmoid": "quantized_gemm|quantized_linear_sigmoid",
    "all else: state": "",
}
ONNX_KINDS = {
    "jquant-native": "ffi_call",
    "XLA's convolutions": "conv_general_dilated",
    "XLA's products": "dot_general",
    "all else": "",
}
LITERT = "ai-edge-litert", ("pymicro-wakeword",), WAKE_WORD_KINDS
MODELS = {
    "title encoder (FLAN-T5 small)": Model("onnxruntime", ("onnx", "traceforge-title-model"), TITLE_KINDS, title_encoder),
    "title decoder (FLAN-T5 small)": Model("onnxruntime", ("onnx", "traceforge-title-model"), TITLE_KINDS, title_decoder),
    "wake word okay_nabu": Model(*LITERT, functools.partial(wake_word, "okay_nabu")),
    "wake word alexa": Model(*LITERT, functools.partial(wake_word, "alexa")),
}
