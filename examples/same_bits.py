"""One int8 ONNX model, run in every way that this machine has: how many different answers are there?

The model is a residual network of convolutions in QDQ form, as quantizers write it, with weights and scales from a formula,
so that its file is the same everywhere. onnxruntime runs it with its optimizations off and on. jquant loads it with
`qdq="fused"`, which multiplies integers, and runs it by XLA, eagerly, compiled, and compiled for eight devices, which share
the images; and with each instruction set of jquant-native. Prints a digest of all integers of the last two layers, 1,049,216
of them, how many differ from the first line's, and how many images get another class. jquant's digest is always the same; in
onnxruntime, it depends on the optimizations, and on the processor. This takes a minute.

    pip install ".[models]" ./native
    python examples/same_bits.py
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper
from tqdm import tqdm

IMAGES, DEVICES = 64, 8
OUTPUTS = "features", "classes"
INSTRUCTION_SETS = "none", "amx_int8", "avx512_vnni", "avx_vnni", "avx2", "neon_i8mm", "neon_dot", "portable"
JQUANT, ONNXRUNTIME = "jquant", "onnxruntime"
GRAPH = """<ir_version: 10, opset_import: ["" : 21]>
network (uint8[64, 3, 32, 32] images) => (uint8[64, 64, 16, 16] features, uint8[64, 10] classes) {
  image = DequantizeLinear (images, image_scale, middle)
  stem_filters = DequantizeLinear <axis = 0> (stem_weight, stem_weight_scale)
  stem_bias = DequantizeLinear <axis = 0> (stem_integers, stem_bias_scale)
  stem_sum = Conv <pads = [1, 1, 1, 1]> (image, stem_filters, stem_bias)
  stem_positive = Relu (stem_sum)
  stem_stored = QuantizeLinear (stem_positive, stem_scale, zero)
  stem = DequantizeLinear (stem_stored, stem_scale, zero)
  branch_filters = DequantizeLinear <axis = 0> (branch_weight, branch_weight_scale)
  branch_bias = DequantizeLinear <axis = 0> (branch_integers, branch_bias_scale)
  branch_sum = Conv <pads = [1, 1, 1, 1]> (stem, branch_filters, branch_bias)
  branch_stored = QuantizeLinear (branch_sum, branch_scale, middle)
  branch = DequantizeLinear (branch_stored, branch_scale, middle)
  residual_sum = Add (stem, branch)
  residual_stored = QuantizeLinear (residual_sum, residual_scale, middle)
  residual = DequantizeLinear (residual_stored, residual_scale, middle)
  last_filters = DequantizeLinear <axis = 0> (last_weight, last_weight_scale)
  last_bias = DequantizeLinear <axis = 0> (last_integers, last_bias_scale)
  last_sum = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (residual, last_filters, last_bias)
  last_positive = Relu (last_sum)
  features = QuantizeLinear (last_positive, last_scale, zero)
  last = DequantizeLinear (features, last_scale, zero)
  flat = Flatten (last)
  head_matrix = DequantizeLinear <axis = 0> (head_weight, head_weight_scale)
  head_bias = DequantizeLinear <axis = 0> (head_integers, head_bias_scale)
  head_sum = Gemm <transB = 1> (flat, head_matrix, head_bias)
  classes = QuantizeLinear (head_sum, head_scale, middle)
}
"""


class Layer(NamedTuple):
    """The shape of its weights, and the scales of its input and output."""

    shape: tuple[int, ...]
    input_scale: float
    output_scale: float


LAYERS = {
    "stem": Layer((32, 3, 3, 3), 0.01, 0.011),
    "branch": Layer((32, 32, 3, 3), 0.011, 0.023),
    "last": Layer((64, 32, 3, 3), 0.027, 0.019),
    "head": Layer((10, 64 * 16 * 16), 0.019, 0.033),
}


def integers(name: str, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
    """Integers from `low` to `high`, of bytes that a hash makes of the name: the same ones everywhere."""
    stream = hashlib.shake_256(name.encode()).digest(2 * int(np.prod(shape)))
    return (np.frombuffer(stream, "<u2").astype(np.int32) % (high - low + 1) + low).reshape(shape)


def model() -> onnx.ModelProto:
    tensors = {"zero": np.uint8(0), "middle": np.uint8(128)}
    tensors |= {"image_scale": np.float32(0.01), "residual_scale": np.float32(0.027)}
    for name, layer in LAYERS.items():
        channels, depth = layer.shape[0], int(np.prod(layer.shape[1:]))
        scale = (integers(f"{name} scale", 64, 128, (channels,)) / np.float32(4096 * np.sqrt(depth))).astype(np.float32)
        tensors |= {
            f"{name}_weight": integers(name, -127, 127, layer.shape).astype(np.int8),
            f"{name}_weight_scale": scale,
            f"{name}_integers": integers(f"{name} bias", -4000, 4000, (channels,)),
            f"{name}_bias_scale": scale * np.float32(layer.input_scale),
            f"{name}_scale": np.float32(layer.output_scale),
        }
    result = onnx.parser.parse_model(GRAPH)
    result.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
    onnx.checker.check_model(result, full_check=True)
    return result


def images() -> np.ndarray:
    return integers("images", 0, 255, (IMAGES, 3, 32, 32)).astype(np.uint8)


class Way(NamedTuple):
    """How the model is run: in an engine, with its instruction set or level of optimization."""

    engine: str
    setting: str
    form: str = ""

    def __str__(self) -> str:
        if self.engine == ONNXRUNTIME:
            return f"onnxruntime, optimizations {self.setting}"
        return f"jquant, {'XLA' if self.setting == 'none' else self.setting}, {self.form}"


def ways() -> Iterator[Way]:
    yield from (Way(ONNXRUNTIME, setting) for setting in ("off", "on"))
    yield from (Way(JQUANT, "none", form) for form in ("eager", "compiled", "eight devices"))
    yield from (Way(JQUANT, setting, "compiled") for setting in INSTRUCTION_SETS[1:])


def by_onnxruntime(setting: str) -> list[np.ndarray]:
    import onnxruntime

    levels, options = onnxruntime.GraphOptimizationLevel, onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if setting == "on" else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(OUTPUTS, {"images": images()})


def instruction_set() -> str:
    """What jquant-native uses in this process."""
    from jquant.kernels.native import shared_library

    return shared_library.load().instruction_set or "none"


def by_jquant(form: str) -> list[np.ndarray]:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import jquant.onnx

    loaded, x = jquant.onnx.load(model(), qdq="fused"), jax.numpy.asarray(images())
    if form == "eight devices":
        mesh = jax.make_mesh((DEVICES,), ("images",), axis_types=(jax.sharding.AxisType.Auto,))
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("images")))
    function = loaded if form == "eager" else jax.jit(loaded)
    outputs = function(loaded.params, {"images": x})
    return [np.asarray(outputs[name]) for name in OUTPUTS]


def answer(way: Way, folder: Path) -> list[np.ndarray] | None:
    """The integers, from a process of its own, because an instruction set is chosen once; None where it has none."""
    file = folder / "answer.npz"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
    if way.engine == JQUANT:
        environment["JQUANT_NATIVE_ISA"] = way.setting
    if way.form == "eight devices":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    command = [sys.executable, __file__, "--way", json.dumps(way), "--output", str(file)]
    subprocess.run(command, env=environment, check=True)
    with np.load(file) as arrays:
        return [*arrays.values()] or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", type=lambda text: Way(*json.loads(text)), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        engine, setting, form = arguments.way
        if engine == ONNXRUNTIME:
            np.savez(arguments.output, *by_onnxruntime(setting))
        else:
            np.savez(arguments.output, *(by_jquant(form) if instruction_set() == setting else []))
        return
    first, without = None, []
    print(f"{'':<38}{'digest':<14}{'integers that differ':>22}{'other classes':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for way in tqdm([*ways()], unit="run", leave=False):
            outputs = answer(way, Path(folder))
            if outputs is None:
                without.append(way.setting)
                continue
            first = first or outputs
            digest = hashlib.sha256(b"".join(output.tobytes() for output in outputs)).hexdigest()[:12]
            different = sum(int(np.sum(output != other)) for output, other in zip(outputs, first, strict=True))
            classes = int(np.sum(outputs[-1].argmax(1) != first[-1].argmax(1)))
            tqdm.write(f"{way!s:<38}{digest:<14}{different:>22,}{f'{classes} of {IMAGES}':>16}")
    if without:
        print(f"not here: {', '.join(without)}, which this processor, or an installed jquant-native, does not have")


if __name__ == "__main__":
    main()
