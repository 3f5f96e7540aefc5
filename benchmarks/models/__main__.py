"""Measures whole int8 models beside the engines that they were made for, and says where our time goes.

    python -m benchmarks.models [--rounds 100] [--models NAME ...] [--output FILE.md]
    python -m benchmarks.models --onnx FILE.onnx --sizes batch=1 length=16 [--qdq fused]

Prints the tables. A run with all models, or one with --output, also writes them: by default to
benchmarks/results/models-PLATFORM-jax-VERSION.md. With --onnx, it measures any model on random inputs beside onnxruntime; a
named dimension without a size is 1.
"""

import argparse
import functools
from pathlib import Path

from benchmarks import environment
from benchmarks.measure import measure, quartiles
from benchmarks.models.cases import MODELS, ONNX_KINDS, Model, random_case
from benchmarks.models.profile import PROFILED_CALLS, compile_cost, finish, profile

RESULTS = Path(__file__).parent.parent / "results"
HEADER = "| | median, ms | quartiles, ms | times the engine's |\n|---|--:|--:|--:|"


def tables(name: str, model: Model, rounds: int) -> list[str]:
    """The lines for one model."""
    lines = [f"\n## {name}"]
    for case in model.cases():
        calls = {model.engine: case.engine}
        for label, program in case.programs.items():
            calls[label] = functools.partial(finish, program, case.operands)
        times = {contestant: quartiles(turns.further) for contestant, turns in measure(calls, rounds).items()}
        lines += [f"\n### {case.title}\n", HEADER]
        for contestant, (low, median, high) in times.items():
            ratio = median / times[model.engine][1]
            lines.append(f"| {contestant} | {median:.3f} | {low:.3f} to {high:.3f} | {ratio:.2f} |")
        lines += ["\n| | trace and compile, s | memory beside operands, MB |\n|---|--:|--:|"]
        for label, program in case.programs.items():
            seconds, megabytes = compile_cost(program, case.operands)
            lines.append(f"| {label} | {seconds:.2f} | {megabytes:.1f} |")
        for label, program in case.programs.items():
            milliseconds = profile(program, case.operands, model.kinds)
            lines += [f"\n| of the time in the operations of {label} | ms | share |\n|---|--:|--:|"]
            lines += [
                f"| {kind} | {milliseconds[kind]:.3f} | {milliseconds[kind] / milliseconds.total():.0%} |"
                for kind in model.kinds
            ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--onnx", type=Path, metavar="FILE.onnx", help="any model, instead of these")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="NAME=SIZE", help="sizes of its named dimensions")
    parser.add_argument("--qdq", choices=("as_written", "fused"), default="as_written", help="as in jquant.onnx.load")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    models = {name: MODELS[name] for name in arguments.models}
    if arguments.onnx:
        sizes = {name: int(size) for name, size in (text.split("=") for text in arguments.sizes)}
        cases = functools.partial(random_case, arguments.onnx, sizes, arguments.qdq)
        models = {arguments.onnx.name: Model("onnxruntime", ("onnx",), ONNX_KINDS, cases)}
    packages = dict.fromkeys(package for model in models.values() for package in (model.engine, *model.packages))
    description = environment.describe([*packages])
    file_name = f"models-{environment.file_name(description)}"
    lines = [
        f"# {file_name}\n",
        f"{environment.summary(description)} {arguments.rounds} rounds, in each of which each has a turn of at least two "
        "calls, in random order; the first call of each turn does not count. The engine has its default optimisations: "
        "onnxruntime with as many threads as XLA, which do not spin between calls, LiteRT with one. "
        f"Where our time goes is from JAX's profiler, of {PROFILED_CALLS} calls in a row.",
    ]
    for name, model in models.items():
        lines += tables(name, model, arguments.rounds)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output or [*models] == [*MODELS]:
        (arguments.output or RESULTS / f"{file_name}.md").write_text(text)


if __name__ == "__main__":
    main()
