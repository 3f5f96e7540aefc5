"""Summarizes an ONNX model, compares it with onnxruntime, and exports it as StableHLO: ``python -m jquant.onnx model.onnx``.

Exits with 1 if integers differ from onnxruntime's, and with 2 if something is missing or not supported.
"""

import argparse
import collections
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jquant.errors import ModelError
from jquant.onnx import compare, stablehlo
from jquant.onnx.loader import load
from jquant.onnx.model import Model
from jquant.onnx.random_inputs import random_inputs


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        constants = {name: np.asarray(value) for name, value in _unique("--constants", options.constants).items()}
        model = load(options.model, constants=constants, qdq=options.qdq)
        print(model)
        sizes = _unique("--size", options.size)
        _check_sizes(model, sizes)
        if options.export:
            data = stablehlo.exported(model, sizes, options.platforms, options.constraint)
            options.export.write_bytes(data)
            print(f"{options.export}: {len(data):,} bytes, for {','.join(options.platforms)}")
        return _compare(model, options, constants, sizes) if options.compare or options.inputs else 0
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jquant.onnx", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--qdq", choices=("as_written", "fused"), default="as_written", help="as in jquant.onnx.load")
    several: Any = {"action": "extend", "nargs": "+", "default": []}  # several after one option, or the option repeated
    value = "the value to fix an input to, in JSON"
    parser.add_argument("--constants", type=_constant, **several, metavar="NAME=VALUE", help=value)
    size = "the size of an open dimension, by its name, or as input[0] if it has none (default: 1, for images 64)"
    parser.add_argument("--size", type=_size, **several, metavar="NAME=NUMBER", help=size)
    parser.add_argument("--compare", action="store_true", help="compare with onnxruntime, node by node and end to end")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="inputs for the comparison (default: random)")
    parser.add_argument("--rounds", type=int, default=10, help="how many calls to time; the median is printed")
    export = (
        "where to write the model as StableHLO, a program of XLA that jax.export.deserialize reads, without onnx and jquant "
        "(a function of JAX as an ONNX model is written by jquant.onnx.export)"
    )
    parser.add_argument("--export", type=Path, metavar="FILE", help=export)
    platforms = f"the platforms to export for, out of {', '.join(stablehlo.PLATFORMS)}"
    parser.add_argument("--platforms", type=_platforms, default="cpu,cuda,tpu", metavar="NAME,NAME", help=platforms)
    constraint = "what holds for the sizes that the exported program leaves open, such as 'sequence <= 512'"
    parser.add_argument("--constraint", **several, metavar="COMPARISON", help=constraint)
    return parser


def _unique(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The values of an option by name.

    Raises:
      ModelError: a name that occurs more than once.
    """
    for name, count in collections.Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ModelError(f"{option} gives {name} {count} times")
    return dict(pairs)


def _platforms(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in stablehlo.PLATFORMS]
    if unknown:
        known = ", ".join(stablehlo.PLATFORMS)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not a platform; choose from {known} (cuda and rocm are GPUs)")
    return names


def _constant(text: str) -> tuple[str, Any]:
    name, _, value = text.rpartition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a value in JSON") from error


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.rpartition("=")
    if not name or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    return name, int(value)


def _check_sizes(model: Model, sizes: dict[str, int]) -> None:
    """Checks the names of `sizes`.

    Raises:
      ModelError: a name that no open dimension has.
    """
    if sizes:
        names = _open_dimensions(model, {})
        unknown = [name for name in sizes if name not in names]
        if unknown:
            known = ", ".join(names) or "none"
            raise ModelError(f"--size {unknown[0]}: the dimensions without a fixed size are {known}")


def _open_dimensions(model: Model, sizes: dict[str, int]) -> list[str]:
    """The names of the dimensions whose size neither the file nor `sizes` fixes."""
    names = [size for shape in stablehlo.dimensions(model).values() for size in shape if isinstance(size, str)]
    return [name for name in dict.fromkeys(names) if name not in sizes]


def _advice(model: Model, sizes: dict[str, int]) -> list[str]:
    """How to pass other inputs, for a model that does not take the random ones."""
    lines = []
    if names := _open_dimensions(model, sizes):
        lines.append(f"the sizes {', '.join(names)} have a default; --size NAME=NUMBER gives them another")
    integers = [name for name, value in model.inputs.items() if value.dtype is not None and value.dtype.kind in "biu"]
    if integers:
        names = ", ".join(integers)
        lines.append(f"{names} drawn at random; --constants NAME=VALUE fixes one, and --inputs FILE.npz passes all inputs")
    return lines


def _compare(model: Model, options: argparse.Namespace, constants: dict[str, np.ndarray], sizes: dict[str, int]) -> int:
    """Prints the comparison with onnxruntime, and returns the exit code."""
    inputs = _read(model, options.inputs) if options.inputs else random_inputs(model, sizes)
    if not options.inputs:
        print("\nrandom inputs, which make this a smoke test; to judge a model, pass real ones with --inputs FILE.npz")
        for name, array in inputs.items():
            print(f"  {name}  {_summary(array)}")
    try:
        rows = compare.nodes(options.model, inputs, constants=constants, progress=_progress)
    except ModelError as error:
        raise ModelError("\n".join([str(error), *([] if options.inputs else _advice(model, sizes))])) from error
    print("\nnode by node, onnxruntime with optimizations off; each node is fed onnxruntime's values")
    if options.qdq == "fused":
        print("  nodes are compared as they are in the file, before any are fused; the fused model is compared end to end")
    print(compare.table(rows))
    different = sum(row.different for row in rows)
    outputs, times = compare.end_to_end(model, options.model, inputs, constants=constants, rounds=options.rounds)
    print("\nend to end, onnxruntime with all optimizations and two threads")
    for output in outputs:
        agreement = f"cosine {output.cosine:.9f}, argmax {output.argmax:.2%}"
        print(f"  {output.name}: {agreement}, {output.different:,} elements differ, by at most {output.deviation:.3g}")
    platform = jax.devices()[0].platform
    print(f"  a call: {times.model * 1e3:,.2f} ms on {platform}, onnxruntime {times.onnxruntime * 1e3:,.2f} ms on cpu")
    print(f"  compiling: {times.compiling:,.2f} s")
    return 1 if different else 0


def _summary(array: np.ndarray) -> str:
    """The dtype, the shape and the range of an input."""
    if not array.size or array.dtype == np.bool_:
        return f"{array.dtype}{list(array.shape)}"
    extremes = array.min(), array.max()
    smallest, largest = (str(value) if array.dtype.kind in "iu" else f"{value:.6g}" for value in extremes)
    return f"{array.dtype}{list(array.shape)} from {smallest} to {largest}"


def _read(model: Model, path: Path) -> dict[str, np.ndarray]:
    """The inputs that a file holds.

    Raises:
      ModelError: a file that does not hold exactly the inputs of the model.
    """
    file = np.load(path)
    inputs = dict(file) if isinstance(file, np.lib.npyio.NpzFile) else {}
    if set(inputs) != set(model.inputs):
        raise ModelError(f"{path} holds {', '.join(inputs) or 'no named arrays'}; it must hold {', '.join(model.inputs)}")
    return inputs


def _progress(numbers: Iterable[Any], count: int) -> Iterable[Any]:
    """A progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return numbers
    return tqdm(numbers, total=count, unit="node", leave=False)


if __name__ == "__main__":
    sys.exit(main())
