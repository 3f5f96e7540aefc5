"""Measures the network as an ONNX model in onnxruntime, in a process of its own, and prints the results as JSON.

    python -m benchmarks.program_size.onnx_worker BLOCKS [--compare]

With --compare, it also counts how many elements each operator of jquant computes otherwise than onnxruntime does, from the
same operands, and how many logits of the whole network differ.
"""

import argparse
import json
import time

import jax
import numpy as np
import onnx

from benchmarks.contestants.onnxruntime import session
from benchmarks.program_size.network import draw, program, random_image
from benchmarks.program_size.onnx_model import IMAGE_NAME, Recorder, Tensor, build, declared
from benchmarks.program_size.timing import run_seconds


def measure(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict:
    """The times to create a session and to run it."""
    serialized = model.SerializeToString()
    start, processor = time.perf_counter(), time.process_time()
    created = session(serialized)
    return {
        "session_seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
        "run_seconds": run_seconds(lambda: created.run(None, feed)),
    }


def compare_operators(model: onnx.ModelProto, recorder: Recorder, feed: dict[str, np.ndarray]) -> dict[str, dict]:
    """For each operator: its elements in onnxruntime, how many of jquant's differ, and the largest difference."""
    tensors = recorder.graph.outputs
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.extend(map(declared, tensors))
    outputs = session(shown.SerializeToString()).run(None, feed)
    values = {**feed, **dict(zip([tensor.name for tensor in tensors], outputs, strict=True))}

    def value(x: object) -> object:
        return values[x.name] if isinstance(x, Tensor) else x

    totals: dict[str, dict] = {}
    for operator, operands, options, tensor in recorder.calls:
        result = np.asarray(operator(*map(value, operands), **options))
        difference = abs(result.astype(np.float64) - values[tensor.name])
        total = totals.setdefault(operator.__name__, {"elements": 0, "different": 0, "by": 0.0})
        total["elements"] += result.size
        total["different"] += int(np.count_nonzero(difference))
        total["by"] = max(total["by"], float(difference.max()))
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("blocks", type=int)
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    parameters, nodes = draw(arguments.blocks)
    model, recorder = build(arguments.blocks, parameters)
    feed = {IMAGE_NAME: random_image()}
    results = {"nodes": dict(nodes), **measure(model, feed)}
    if arguments.compare:
        ours, _ = jax.jit(lambda *operands: program(arguments.blocks, *operands))(parameters, feed[IMAGE_NAME])
        theirs, _ = session(model.SerializeToString()).run(None, feed)
        results["operators"] = compare_operators(model, recorder, feed)
        results["logits"] = {"elements": theirs.size, "different": int(np.count_nonzero(np.asarray(ours) != theirs))}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
