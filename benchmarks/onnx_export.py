"""Measures exported int8 networks in onnxruntime, beside onnxruntime's own quantization of the same float networks.

    python -m benchmarks.onnx_export [--rounds 100] [--output FILE.md]

Three Flax networks are trained: a dense and a convolutional one on the scikit-learn digits, a transformer on the text of the
documentation. Prints for each which predictions of the jitted int8 function onnxruntime repeats, the bytes of the files, and
the times of all contestants in one run; and writes them: by default to
benchmarks/results/onnx-export-PLATFORM-jax-VERSION.md.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import onnx
import onnxruntime
from tqdm import tqdm

from benchmarks import environment
from benchmarks.measure import measure, quartiles
from benchmarks.onnxruntime_quantization import exported, statically
from benchmarks.transform.networks import CNN, MLP, CharacterModel, digits, documentation, train
from jquant import transform

RESULTS = Path(__file__).parent / "results"
CALIBRATION_BATCHES = 4
TESTED = 600  # inputs at most
FLOAT, OWN, THEIRS = "float32", "jquant, {}", "quantize_static"
BATCH_SIZES = {MLP: 128, CNN: 128, CharacterModel: 8}
TRAINING = {MLP: {}, CNN: {}, CharacterModel: {"steps": 60, "batch_size": 32}}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session with all optimizations, on two threads that do not spin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def tables(model: nn.Module, data: Sequence[np.ndarray], rounds: int) -> list[str]:
    """The lines for one network; `data` has training and test inputs, and what follows from them."""
    train_inputs, test_inputs, train_labels, _ = data
    test_inputs = test_inputs[:TESTED]
    size = BATCH_SIZES[type(model)]
    params = train(model, train_inputs, train_labels, **TRAINING[type(model)])
    batches = [train_inputs[index * size : (index + 1) * size] for index in range(CALIBRATION_BATCHES)]
    calibration = transform.calibrate(model.apply, params, batches, transform.static_int8)
    types = test_inputs.shape[1:], test_inputs.dtype
    models = {FLOAT: exported(model.apply, params, *types)}
    functions, expected = {}, {FLOAT: np.asarray(jax.jit(model.apply)(params, test_inputs))}
    for name, recipe in {"static": transform.static_int8, "dynamic": transform.dynamic_int8}.items():
        data_ranges = calibration if name == "static" else None
        functions[name] = transform.quantize(model.apply, params, recipe, test_inputs[:size], calibration=data_ranges)
        for form in ("exact", "qdq"):
            label = OWN.format(f"{name}, {form}")
            models[label] = exported(*functions[name], *types, form=form)
            expected[label] = np.asarray(jax.jit(functions[name][0])(functions[name][1], test_inputs))
    models[THEIRS] = statically(models[FLOAT], batches)
    sessions = {name: session(each) for name, each in models.items()}
    calls = {name: functools.partial(run, each, test_inputs[:size]) for name, each in sessions.items()}
    with tqdm(total=rounds, desc=type(model).__name__, unit="round") as bar:
        times = measure(calls, rounds, after_round=bar.update)
    lines = ["| | as in JAX | as float32 | bytes | ms (quartiles) | over float32 | over quantize_static |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name, each in models.items():
        outputs = run(sessions[name], test_inputs)
        same = agreement(outputs, expected[name]) if name in expected else "-"
        low, median, high = quartiles(times[name].further)
        ratios = (f"{np.median(times[name].further / times[other].further):.2f}" for other in (FLOAT, THEIRS))
        cells = [name, same, agreement(outputs, expected[FLOAT]), f"{each.ByteSize():,}"]
        lines.append(f"| {' | '.join([*cells, f'{median:.3f} ({low:.3f} to {high:.3f})', *ratios])} |")
    return lines


def run(session: onnxruntime.InferenceSession, inputs: np.ndarray) -> np.ndarray:
    return session.run(None, {session.get_inputs()[0].name: inputs})[0]


def agreement(actual: np.ndarray, expected: np.ndarray) -> str:
    """How many predictions are the same."""
    return f"{np.mean(actual.argmax(-1) == expected.argmax(-1)):.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.onnx_export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    description = environment.describe(["jquant-jax", "flax", "onnx", "onnxruntime"])
    output = arguments.output or RESULTS / f"onnx-export-{environment.file_name(description)}.md"
    lines = ["# int8 networks from JAX in onnxruntime", ""]
    lines += [f"- {name}: {value}" for name, value in description.items()]
    for model, data in ((MLP(), digits()), (CNN(), digits()), (CharacterModel(), documentation())):
        lines += [
            "",
            f"## {type(model).__name__}, batch {BATCH_SIZES[type(model)]}",
            "",
            *tables(model, data, arguments.rounds),
        ]
    text = "\n".join(lines) + "\n"
    print(text)
    output.write_text(text)


if __name__ == "__main__":
    main()
