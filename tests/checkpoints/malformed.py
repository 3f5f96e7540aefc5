"""Breaks checkpoints at random and loads them, in a process of its own.

``python malformed.py FIRST COUNT`` prints the outcome of each file. Loading has a limit of time and of memory.
"""

import json
import random
import signal
import struct
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

SECONDS = 10
NAMES = ["x" * 100_000, "\ud800", "\0", "..", "/etc/passwd", "ä" * 128]  # of files
MEMORY = 2**22  # bytes that NumPy and Python may allocate, for files of up to 10 kB


def models() -> dict[str, "files.Model"]:
    rng = np.random.default_rng(0)
    return {
        "gptq": files.gptq(rng, order=True),
        "gptq of 8 bits": files.gptq(rng, 8, format_="gptq_v2"),
        "auto-round": files.auto_round(rng),
        "awq": files.awq(rng),
        "pack-quantized": files.pack_quantized(rng, sym=False, order=True),
        "int-quantized": files.naive_quantized(rng, sym=False),
        "float-quantized": files.naive_quantized(rng, files.ml_dtypes.float8_e4m3fn, strategy="block"),
        **{name: build(rng) for name, build in narrow_files.MODELS.items()},
    }


def gguf_file(path: Path) -> None:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("words", ["a", "b", "c"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("nested", [[1, 2], [3]])
    for type_ in (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.F16, Type.F32):
        tensor = gguf.quants.quantize(rng.normal(size=(3, 64)).astype(np.float32), type_)
        writer.add_tensor(type_.name, tensor, raw_dtype=type_ if tensor.dtype == np.uint8 else None)
    for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ2_0", "Q6_K"):
        block, size = gguf.GGML_QUANT_SIZES[Type[name]]
        writer.add_tensor(name, rng.integers(0, 256, (1, 256 // block * size), np.uint8), raw_dtype=Type[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def broken_safetensors(folder: Path, dice: random.Random) -> tuple[Path, str]:
    name, model = dice.choice(sorted(models().items()))
    file = model.write(folder)
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    defect = dice.choice(["truncated", *["header", "shape", "config"] * 3, "bytes", "integers", "longer", "length"])
    description = defect
    if defect == "truncated":
        data = data[: dice.randrange(len(data))]
    elif defect == "longer":
        data += bytes(dice.randrange(1, 50))
    elif defect == "length":
        data = (dice.choice([*NUMBERS, start - 7, start - 9]) % 2**64).to_bytes(8, "little") + data[8:]
    elif defect == "bytes":
        data = with_random_bytes(data, dice, 8, start)
    elif defect == "integers":
        data = with_random_bytes(data, dice, start, len(data))
    elif defect in ("header", "shape"):
        header, rest = split_header(data)
        description = edit(header, dice) if defect == "header" else reshape(header, dice)
        data = with_header(header, rest)
    else:
        config = json.loads((folder / "config.json").read_text())
        description = f"config: {edit(config, dice)}"
        (folder / "config.json").write_text(json.dumps(config))
    file.write_bytes(data)
    return file, f"{name}: {description}"


def broken_index(folder: Path, dice: random.Random) -> tuple[Path, str]:
    """Two files, and an index whose JSON is edited, or in which a name is long or not one of a file."""
    name, model = dice.choice(sorted(models().items()))
    model.write(folder).unlink()
    weight_map = {tensor: f"model-{dice.choice('12')}-of-2.safetensors" for tensor in model.tensors}
    for file in set(weight_map.values()):
        save_file({tensor: model.tensors[tensor] for tensor in weight_map if weight_map[tensor] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    description = "index: a name"
    if dice.random() < 0.7:
        description = f"index: {edit(index, dice)}"
    else:
        weight_map[dice.choice(sorted(weight_map))] = dice.choice(NAMES)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, f"{name}: {description}"


def broken_gguf(folder: Path, dice: random.Random) -> tuple[Path, str]:
    file = folder / "x.gguf"
    gguf_file(file)
    data = file.read_bytes()
    end = data.rindex(b"Q6_K") + 40  # of the header
    defect = dice.choice(["truncated", "number", "number", "bytes", "bytes", "integers", "longer"])
    if defect == "truncated":
        data = data[: dice.randrange(len(data))]
    elif defect == "longer":
        data += bytes(dice.randrange(1, 50))
    elif defect == "integers":
        data = with_random_bytes(data, dice, end, len(data))
    elif defect == "bytes":
        data = with_random_bytes(data, dice, 0, end)
    else:
        at, number = dice.randrange(4, end - 8), dice.choice(NUMBERS)
        data = data[:at] + struct.pack("<Q", number % 2**64) + data[at + 8 :]
    file.write_bytes(data)
    return file, f"GGUF: {defect}"


def outcome(file: Path, intact: dict[str, np.ndarray]) -> str:
    """Loads a file: an error, the values of the intact file, or others, which must be those that the packages read."""
    try:
        loaded = dequantized(jquant.checkpoints.load(file).read())
    except CheckpointError as error:
        folder = file if file.is_dir() else file.parent
        is_clear = str(folder) in str(error) and len(str(error)) < 2000
        return "error" if is_clear else f"an error that does not name the file, or is too long: {str(error)[:2000]}"
    if loaded.keys() == intact.keys() and all(same(loaded[name], intact[name]) for name in loaded):
        return "same values"
    if file.is_dir():
        return "other values" if leaves_out_tensors(file) else "not the values of the files"
    if file.suffix == ".gguf":
        return "other values" if agrees_with_gguf(file, loaded) else "not the values that gguf reads"
    return "other values" if agrees_with_safetensors(file, loaded) else "not the values that safetensors reads"


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether they have the same bits, but for those of NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and without_nan(a).tobytes() == without_nan(b).tobytes()


def without_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), np.zeros((), array.dtype), array) if array.dtype.kind == "f" else array


def dequantized(params: dict) -> dict[str, np.ndarray]:
    return {name: value.dequantize() if hasattr(value, "dequantize") else value for name, value in params.items()}


def leaves_out_tensors(folder: Path) -> bool:
    """Whether the index does not name all tensors in the files beside it."""
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        names |= split_header(file.read_bytes())[0].keys()
    return not names <= weight_map.keys()


def agrees_with_gguf(file: Path, loaded: dict[str, np.ndarray]) -> bool:
    """Whether these are the tensors that the package gguf reads, where quantized matrices may be transposed."""
    with np.errstate(all="ignore"):
        for tensor in gguf.GGUFReader(file).tensors:
            value, type_ = loaded.pop(tensor.name), tensor.tensor_type
            if gguf.GGML_QUANT_SIZES[type_][0] > 1:
                expected = gguf.quants.dequantize(tensor.data, type_)
                if not any(same(np.ascontiguousarray(array), expected) for array in (value, value.swapaxes(-1, -2))):
                    return False
            elif value.tobytes() != tensor.data.tobytes():
                return False
    return not loaded


def agrees_with_safetensors(file: Path, loaded: dict[str, np.ndarray]) -> bool:
    """Whether the package safetensors reads the file, and the same values where a tensor is not part of a weight."""
    try:
        expected = load_file(file)
    except AttributeError:  # 8-bit floats, which the package does not read
        return True
    except SafetensorError:
        return False
    return all(
        same(loaded[name], expected[name])
        for name in loaded.keys() & expected.keys()
        if loaded[name].shape == expected[name].shape and loaded[name].dtype == expected[name].dtype
    )


def run(number: int) -> str:
    """Builds and loads one broken file; returns the outcome."""
    dice = random.Random(number)
    build: Callable = dice.choice([broken_safetensors, broken_safetensors, broken_gguf, broken_index])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        file, description = build(folder, dice)
        print(json.dumps({"number": number, "description": description}), flush=True)
        if build is broken_gguf:
            intact_file = folder / "intact.gguf"
            gguf_file(intact_file)
        else:
            name = description.partition(":")[0]
            (folder / "intact").mkdir()
            intact_file = models()[name].write(folder / "intact")
        intact = dequantized(jquant.checkpoints.load(intact_file).read())
        tracemalloc.reset_peak()
        signal.alarm(SECONDS)
        started = time.monotonic()
        try:
            result = outcome(file, intact)
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        _, peak = tracemalloc.get_traced_memory()
        if peak > MEMORY:
            result = f"{peak} bytes of memory, and {result}"
        if time.monotonic() - started > SECONDS:
            result = f"more than {SECONDS} s, and {result}"
    return result


def main(first: int, count: int) -> None:
    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", UserWarning)  # about configurations that contradict the tensors
    tracemalloc.start()
    for number in range(first, first + count):
        print(json.dumps({"number": number, "outcome": run(number)}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from checkpoints import files, narrow_files
    from support.broken_files import NUMBERS, edit, reshape, split_header, with_header, with_random_bytes

    import jquant.checkpoints
    from jquant.checkpoints import CheckpointError

    main(*map(int, sys.argv[1:]))
