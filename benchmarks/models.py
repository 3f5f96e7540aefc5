"""Measures whole int8 models beside the engines that they were made for, and says where our time goes.

    python -m benchmarks.models [--rounds 100] [--models NAME ...] [--output FILE.md]
    python -m benchmarks.models --onnx FILE.onnx --sizes batch=1 length=16

Prints the tables. A run with all models, or one with --output, also writes them: by default to
benchmarks/results/models-PLATFORM-jax-VERSION.md. With --onnx, it measures any model on random inputs beside onnxruntime; a
dimension that is not given is 1.
"""

import argparse
import functools
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import environment, report
from benchmarks.measure import measure, quartiles

sys.path.append(str(Path(__file__).parent.parent / "examples"))  # which import their neighbours

PROFILED_CALLS = 20
HEADER = "| | median, ms | quartiles, ms | times the engine's |\n|---|--:|--:|--:|"


class Case(NamedTuple):
    """A model on one input.

    Attributes:
      title: which input.
      programs: ours, jitted, by name.
      operands: what they are called with, on the device.
      engine: the other engine's call, which returns when the result is there.
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
      kinds: the kind of one of our operations: the first whose expression matches its name in JAX, which XLA gives to
        everything that it fuses with it.
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
    session, everything = onnxruntime_session(ENCODER), tokenize(SENTENCES)
    each, one_range = (example.encode_each, example.run_each), (example.encode, run)
    all_of_them, length = everything["input_ids"].shape
    for count, ranges, (program, engine) in (
        (1, "", one_range),
        (all_of_them, ", one range for all", one_range),
        (all_of_them, ", each with its ranges", each),
    ):
        inputs = {name: x[:count] for name, x in everything.items()}
        yield Case(
            f"{count} x {length} tokens{ranges}",
            {name: jax.jit(functools.partial(program, model)) for name, model in models.items()},
            (models[example.OWN].params, jax.device_put(inputs)),
            functools.partial(engine, session, inputs),
        )


def title_decoder() -> Iterator[Case]:
    """A step after 16 tokens."""
    from titles import DECODER, ENCODER, SENTENCES, onnxruntime_session, run, tokenize

    inputs = tokenize(SENTENCES[:1])
    hidden = run(onnxruntime_session(ENCODER), inputs)
    tokens = np.arange(16)[None]
    given = {"encoder_hidden_states": hidden, "encoder_attention_mask": inputs["attention_mask"], "input_ids": tokens}
    yield onnx_case(f"{tokens.size} tokens behind a sentence of {hidden.shape[1]}", DECODER, given)


def onnx_case(title: str, path: Path, inputs: dict[str, np.ndarray]) -> Case:
    """An ONNX file as it is, with JAX's float functions."""
    from titles import onnxruntime_session

    import jquant

    start = time.perf_counter()
    model, session = jquant.onnx.load(path), onnxruntime_session(path)
    title += f", loaded in {time.perf_counter() - start:.1f} s"
    return Case(title, {"jquant": jax.jit(model)}, (model.params, jax.device_put(inputs)), lambda: session.run(None, inputs))


def random_inputs(path: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Normally distributed floats, and integers of 0 and 1."""
    import jquant

    rng, found = np.random.default_rng(0), {}
    for name, value in jquant.onnx.load(path).inputs.items():
        shape = [size if isinstance(size, int) else sizes.get(str(size), 1) for size in value.shape or ()]
        numbers = rng.normal(size=shape) if np.issubdtype(value.dtype, np.floating) else rng.integers(0, 2, shape)
        found[name] = numbers.astype(value.dtype)
    return found


def any_onnx(path: Path, sizes: dict[str, int]) -> Iterator[Case]:
    inputs = random_inputs(path, sizes)
    yield onnx_case(", ".join(f"{name} {list(x.shape)}" for name, x in inputs.items()), path, inputs)


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
    start, on_device, frames = jax.device_put((example.initial_state(network), steps, steps.reshape(-1, example.CHANNELS)))
    seconds = 0.01 * len(frames)
    for title, program, operand, count in (
        ("one step of 30 ms", listen, frames[: example.STRIDE], 1),
        (f"{seconds:.1f} s, step by step", stream, on_device, len(steps)),
        (f"{seconds:.1f} s at once", listen, frames, len(steps)),
    ):
        yield Case(title, {"jquant": program}, (start, operand), functools.partial(invoke, steps[:count]))


TITLE_KINDS = {
    "products of integers": r"MatMul_quant.*/dot_general",
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
LITERT = "ai-edge-litert", ("pymicro-wakeword",), WAKE_WORD_KINDS
MODELS = {
    "title encoder (FLAN-T5 small)": Model("onnxruntime", ("onnx", "traceforge-title-model"), TITLE_KINDS, title_encoder),
    "title decoder (FLAN-T5 small)": Model("onnxruntime", ("onnx", "traceforge-title-model"), TITLE_KINDS, title_decoder),
    "wake word okay_nabu": Model(*LITERT, functools.partial(wake_word, "okay_nabu")),
    "wake word alexa": Model(*LITERT, functools.partial(wake_word, "alexa")),
}


_OPERATION = r'^ *(?:ROOT )?%([\w.-]+) = .*? ([a-z-]+)\(.*?(?:op_name="([^"]*)".*)?$'
_CONTROL_FLOW = ("while", "call", "conditional")  # whose time is that of the operations inside


def finish(program: Callable[..., Any], operands: tuple) -> Any:
    return jax.block_until_ready(program(*operands))


def compiled(program: Callable[..., Any], operands: tuple) -> tuple[float, float]:
    """Seconds to trace and compile it from scratch, and the megabytes that it needs besides its operands."""
    jax.clear_caches()
    start = time.perf_counter()
    analysis = program.lower(*operands).compile().memory_analysis()
    seconds = time.perf_counter() - start
    return seconds, (analysis.temp_size_in_bytes + analysis.output_size_in_bytes) / 1e6


def profile(program: Callable[..., Any], operands: tuple, kinds: dict[str, str]) -> Counter:
    """Milliseconds that a call spends in each kind of operation, on average."""
    text = program.lower(*operands).compile().as_text()
    kind_of = {
        operation: next(kind for kind, words in kinds.items() if re.search(words, name))
        for operation, opcode, name in re.findall(_OPERATION, text, re.MULTILINE)
        if opcode not in _CONTROL_FLOW
    }
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(PROFILED_CALLS):
                finish(program, operands)
        (path,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        events = [event for plane in planes for line in plane.lines for event in line.events]
    spent: Counter = Counter()
    for event in events:
        if event.name in kind_of:
            spent[kind_of[event.name]] += 1e-6 * event.duration_ns / PROFILED_CALLS
    return spent


def tables(name: str, rounds: int) -> list[str]:
    """The lines for one model."""
    model = MODELS[name]
    lines = [f"\n## {name}"]
    for case in model.cases():
        calls = {model.engine: case.engine}
        for label, program in case.programs.items():
            calls[label] = functools.partial(finish, program, case.operands)
        times = {contestant: quartiles(found.further) for contestant, found in measure(calls, rounds).items()}
        lines += [f"\n### {case.title}\n", HEADER]
        for contestant, (low, median, high) in times.items():
            ratio = median / times[model.engine][1]
            lines.append(f"| {contestant} | {median:.3f} | {low:.3f} to {high:.3f} | {ratio:.2f} |")
        lines += ["\n| | trace and compile, s | memory beside operands, MB |\n|---|--:|--:|"]
        for label, program in case.programs.items():
            seconds, megabytes = compiled(program, case.operands)
            lines.append(f"| {label} | {seconds:.2f} | {megabytes:.1f} |")
        for label, program in case.programs.items():
            spent = profile(program, case.operands, model.kinds)
            lines += [f"\n| of the time in the operations of {label} | ms | share |\n|---|--:|--:|"]
            lines += [f"| {kind} | {spent[kind]:.3f} | {spent[kind] / spent.total():.0%} |" for kind in model.kinds]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--onnx", type=Path, metavar="FILE.onnx", help="any model, instead of those")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="NAME=SIZE", help="sizes of its named dimensions")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    if arguments.onnx:
        sizes = {name: int(size) for name, size in (each.split("=") for each in arguments.sizes)}
        cases = functools.partial(any_onnx, arguments.onnx, sizes)
        MODELS[arguments.onnx.name] = Model("onnxruntime", ("onnx",), {"all": ""}, cases)
        arguments.models = [arguments.onnx.name]
    packages = dict.fromkeys(
        package for name in arguments.models for package in (MODELS[name].engine, *MODELS[name].packages)
    )
    results = {"environment": environment.describe([*packages])}
    name, load = f"models-{report.name(results)}", results["environment"]["load average"]
    lines = [
        f"# {name}\n",
        f"{report.machine(results)}; {report.versions(results)}; load average before the run {load}. {arguments.rounds} "
        "rounds, in each of which each has a turn of at least two calls, in random order; the first call of each turn does "
        "not count. The engine has its default optimisations: onnxruntime with as many threads as XLA, which do not spin "
        "between calls, LiteRT with one. "
        f"Where our time goes is from JAX's profiler, of {PROFILED_CALLS} calls in a row.",
    ]
    for model in arguments.models:
        lines += tables(model, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    default = Path(__file__).parent / "results" / f"{name}.md"
    if arguments.output or arguments.models == [*MODELS]:
        (arguments.output or default).write_text(text)


if __name__ == "__main__":
    main()
