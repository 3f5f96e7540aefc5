"""Ways to break a checkpoint, and a process that loads what came of it.

``python malformed.py FIRST COUNT`` prints, for each, how it ended; a file has a time, and memory, to be read in.
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
from safetensors.numpy import load_file

SECONDS = 10
MEMORY = 2**22  # bytes of NumPy and Python, for files of up to 10 kB
NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 7, 8, 31, 33, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**64]


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
    }


def gguf_file(path: Path) -> None:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("words", ["a", "b", "c"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("nested", [[1, 2], [3]])
    for kind in (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.F16, Type.F32):
        tensor = gguf.quants.quantize(rng.normal(size=(3, 64)).astype(np.float32), kind)
        writer.add_tensor(kind.name, tensor, raw_dtype=kind if tensor.dtype == np.uint8 else None)
    writer.add_tensor("Q6_K", rng.integers(0, 256, (1, 210), np.uint8), raw_dtype=Type.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def header_of(data: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header: dict, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def places(tree, path: tuple = ()) -> list[tuple]:
    """Where in a tree of JSON something lies."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in inside for found in [(*path, key), *places(value, (*path, key))]]


def edited(tree, dice: random.Random) -> str:
    """Changes one thing in a tree of JSON: a number, a string, or a part that goes, or changes its place or its type."""
    *way, last = dice.choice(places(tree))
    part = tree
    for key in way:
        part = part[key]
    value = part[last]
    kind = dice.choice(["number", "removed", "type", "swapped"])
    if kind == "removed":
        del part[last]
    elif kind == "swapped":
        other = dice.choice(list(part) if isinstance(part, dict) else range(len(part)))
        part[last], part[other] = part[other], part[last]
    elif isinstance(value, int) and kind == "number":
        part[last] = dice.choice([*NUMBERS, value + 1, value - 1, 2 * value])
    elif last == "dtype":
        part[last] = dice.choice(
            ["I8", "U8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "BOOL", "C64", "F4"]
        )
    else:
        part[last] = dice.choice([None, [], {}, "x", -1, 0.5, True, 2**70, [value], {"x": value}])
    return f"{kind} of {'/'.join(map(str, (*way, last)))}"


def flipped(data: bytes, dice: random.Random, first: int, last: int) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 3, 10])):
        found[dice.randrange(first, last)] = dice.choice([0, 1, 2, 127, 128, 255, dice.randrange(256)])
    return bytes(found)


def broken_safetensors(folder: Path, dice: random.Random) -> tuple[Path, str]:
    name, model = dice.choice(sorted(models().items()))
    file = model.write(folder)
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    kind = dice.choice(
        ["truncated", "header", "header", "header", "config", "config", "bytes", "integers", "longer", "length"]
    )
    what = kind
    if kind == "truncated":
        data = data[: dice.randrange(len(data))]
    elif kind == "longer":
        data += bytes(dice.randrange(1, 50))
    elif kind == "length":
        data = (dice.choice([*NUMBERS, start - 7, start - 9]) % 2**64).to_bytes(8, "little") + data[8:]
    elif kind == "bytes":
        data = flipped(data, dice, 8, start)
    elif kind == "integers":
        data = flipped(data, dice, start, len(data))
    elif kind == "header":
        header, rest = header_of(data)
        what = edited(header, dice)
        data = with_header(header, rest)
    else:
        config = json.loads((folder / "config.json").read_text())
        what = f"config: {edited(config, dice)}"
        (folder / "config.json").write_text(json.dumps(config))
    file.write_bytes(data)
    return file, f"{name}: {what}"


def broken_gguf(folder: Path, dice: random.Random) -> tuple[Path, str]:
    file = folder / "x.gguf"
    gguf_file(file)
    data = file.read_bytes()
    end = data.rindex(b"Q6_K") + 40  # of the header
    kind = dice.choice(["truncated", "number", "number", "bytes", "bytes", "integers", "longer"])
    if kind == "truncated":
        data = data[: dice.randrange(len(data))]
    elif kind == "longer":
        data += bytes(dice.randrange(1, 50))
    elif kind == "integers":
        data = flipped(data, dice, end, len(data))
    elif kind == "bytes":
        data = flipped(data, dice, 0, end)
    else:
        at, number = dice.randrange(4, end - 8), dice.choice(NUMBERS)
        data = data[:at] + struct.pack("<Q", number % 2**64) + data[at + 8 :]
    file.write_bytes(data)
    return file, f"GGUF: {kind}"


def outcome(file: Path, before: dict[str, np.ndarray]) -> str:
    """How it ends: with an error, the values from before, or others, which then are those that the packages read."""
    try:
        found = values(jquant.checkpoints.load(file).read())
    except CheckpointError as error:
        return "error" if str(file.parent) in str(error) else f"an error that does not name the file: {error}"
    if found.keys() == before.keys() and all(same(found[name], before[name]) for name in found):
        return "same values"
    if file.suffix == ".gguf":
        return "other values" if as_gguf(file, found) else "not the values that gguf reads"
    return "other values" if as_safetensors(file, found) else "not the values that safetensors reads"


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def values(params: dict) -> dict[str, np.ndarray]:
    """With quantized weights as floats."""
    return {name: value.dequantize() if hasattr(value, "dequantize") else value for name, value in params.items()}


def as_gguf(file: Path, found: dict[str, np.ndarray]) -> bool:
    with np.errstate(all="ignore"):
        for tensor in gguf.GGUFReader(file).tensors:
            value, kind = found.pop(tensor.name), tensor.tensor_type
            if gguf.GGML_QUANT_SIZES[kind][0] > 1:
                wanted = gguf.quants.dequantize(tensor.data, kind)
                if not any(same(np.ascontiguousarray(each), wanted) for each in (value, value.swapaxes(-1, -2))):
                    return False
            elif value.tobytes() != tensor.data.tobytes():
                return False
    return not found


def as_safetensors(file: Path, found: dict[str, np.ndarray]) -> bool:
    """What is no part of a quantized weight is as in the file; and the file is a valid one."""
    try:
        wanted = load_file(file)
    except AttributeError:  # floats of 8 bits, which the package does not read
        return True
    except SafetensorError:
        return False
    return all(
        same(found[name], wanted[name])
        for name in found.keys() & wanted.keys()
        if found[name].shape == wanted[name].shape and found[name].dtype == wanted[name].dtype
    )


def run(number: int) -> str:
    dice = random.Random(number)
    build: Callable = dice.choice([broken_safetensors, broken_safetensors, broken_gguf])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        file, what = build(folder, dice)
        print(json.dumps({"number": number, "what": what}), flush=True)
        if build is broken_gguf:
            intact = folder / "intact.gguf"
            gguf_file(intact)
            before = values(jquant.checkpoints.load(intact).read())
        else:
            name = what.partition(":")[0]
            (folder / "intact").mkdir()
            before = values(jquant.checkpoints.load(models()[name].write(folder / "intact")).read())
        tracemalloc.reset_peak()
        signal.alarm(SECONDS)
        started = time.monotonic()
        try:
            found = outcome(file, before)
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        _, peak = tracemalloc.get_traced_memory()
        if peak > MEMORY:
            found = f"{peak} bytes of memory, and {found}"
        if time.monotonic() - started > SECONDS:
            found = f"more than {SECONDS} s, and {found}"
    return found


def main(first: int, count: int) -> None:
    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", UserWarning)  # what a configuration says that is not so
    tracemalloc.start()
    for number in range(first, first + count):
        print(json.dumps({"number": number, "found": run(number)}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from checkpoints import files

    import jquant.checkpoints
    from jquant.checkpoints import CheckpointError

    main(*map(int, sys.argv[1:]))
