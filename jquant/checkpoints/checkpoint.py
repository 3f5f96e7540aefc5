"""A checkpoint: a mapping from names to arrays and quantized weights, each of which is read on demand."""

import collections
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jquant.checkpoints import gguf_files, gguf_weights, safetensors_weights
from jquant.checkpoints.entry import Entry
from jquant.checkpoints.weight import PackedWeight, QuantizedWeight
from jquant.files import safetensors
from jquant.files.diagnostics import Warnings, refuse
from jquant.files.stored_tensor import StoredTensor

_CONFIGS = "config.json", "quantize_config.json"  # older GPTQ files have the second, without a quant_method
_MODELOPT_CONFIG = "hf_quant_config.json"
_INDEX = "model.safetensors.index.json"
_MAX_NAME_LENGTH = 255  # in bytes, of a file on any common system


class Checkpoint(Mapping[str, np.ndarray | QuantizedWeight]):
    """The tensors of a checkpoint by name, as `load` returns them: each is read when it is accessed, and none is kept.

    A quantized weight is a `QuantizedWeight`, under the name that it would have in float, ``layer.weight``. Everything else
    is a NumPy array as stored in the file: a float matrix is (N, K).

    Attributes:
      path: the directory or file that was loaded.
      kinds: for each name, the dtype of an array, or its format's term for a quantized weight.
      metadata: for a GGUF file, its keys and values, with lists for arrays of strings or of arrays; for safetensors files,
        the strings in their headers.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry], metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata = dict(metadata)
        self.kinds = {name: entry.kind for name, entry in entries.items()}
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> np.ndarray | QuantizedWeight:
        if name in self._entries:
            return self._entries[name].read()
        weight = f"{str(name).rpartition('.')[0]}.weight"
        raise KeyError(f"{name!r}, but there is {weight!r}" if weight in self._entries else name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {len(self)} tensors)"

    def __str__(self) -> str:
        counts = collections.Counter(self.kinds.values())
        sizes: collections.Counter[str] = collections.Counter()
        for entry in self._entries.values():
            sizes[entry.kind] += entry.nbytes
        width = max(map(len, counts), default=0)
        rows = (f"  {kind:<{width}} {number:>6} {sizes[kind]:>15,} bytes" for kind, number in counts.most_common())
        return "\n".join([str(self.path), *rows])

    def read(self, *, pack: bool = False, progress: bool = False) -> dict[str, np.ndarray | QuantizedWeight | PackedWeight]:
        """Reads all tensors, one after another.

        Args:
          pack: whether to pack the weights that have a packed form (`QuantizedWeight.pack`). Others are returned unpacked.
            Those of GGUF files and floats of 4 bits are packed a few rows at a time, which takes less memory.
          progress: whether to show a progress bar in bytes, if the package tqdm is installed.

        Returns:
          A dictionary, which is a pytree.

        Raises:
          CheckpointError: a tensor is broken.
        """
        values = {}
        with _progress_bar(sum(entry.nbytes for entry in self._entries.values()), progress) as bar:
            for name, entry in self._entries.items():
                values[name] = entry.read_packed() if pack else entry.read()
                if bar is not None:
                    bar.update(entry.nbytes)
        return values


def _progress_bar(total: int, shown: bool) -> contextlib.AbstractContextManager[Any]:
    if shown:
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            pass
        else:
            return tqdm(total=total, unit="B", unit_scale=True)
    return contextlib.nullcontext()


def load(path: str | os.PathLike[str], *, quantization_config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Opens a checkpoint of quantized weights: reads its headers, and checks them.

    A directory has the layout of a model hub: ``config.json``, and ``model.safetensors``, or several files with
    ``model.safetensors.index.json``. A single file is either safetensors, with the ``config.json`` of its folder, or GGUF,
    which needs the package gguf.

    Supported are GPTQ (2, 4 and 8 bits; formats gptq and gptq_v2; also with activation order), AWQ (gemm), auto-round (in
    the layouts of these two), compressed-tensors (int-quantized, float-quantized and naive-quantized of 8 bits,
    pack-quantized of 2, 4 and 8, nvfp4-pack-quantized, mxfp4-pack-quantized), ModelOpt (NVFP4, FP8), fp8 in blocks
    (``weight_scale_inv``), the MXFP4 of gpt-oss, and GGUF. Floats are arrays, in any safetensors file.

    Args:
      path: a directory or a file.
      quantization_config: replaces ``quantization_config`` of ``config.json``; needed for files without one.

    Returns:
      A `Checkpoint`.

    Raises:
      CheckpointError: a broken file, or an unsupported format; the message names the file and the tensor.
      ModuleNotFoundError: a GGUF file, but the package gguf is not installed.
      OSError: a file that cannot be opened.
      TypeError: a `quantization_config` that is not a mapping.

    Warns:
      UserWarning: a GGUF file is one part of a split model, so that it has only some of the tensors; files hold tensors that
        their index does not name, which are not read; or the configuration contradicts tensors whose content is clear
        (which may also be reported later, when a tensor is read). Each kind of contradiction is reported once, for the first
        tensor that has it.

    Example:
      >>> import json, pathlib, tempfile
      >>> import jquant.checkpoints
      >>> folder = tempfile.TemporaryDirectory()
      >>> entry = {"dtype": "I8", "shape": [2, 3], "data_offsets": [0, 6]}
      >>> scale = {"dtype": "F32", "shape": [2, 1], "data_offsets": [6, 14]}
      >>> header = json.dumps({"layer.weight": entry, "layer.weight_scale": scale}).encode()
      >>> data = bytes([1, 2, 3, 4, 5, 6]) + bytes([0, 0, 0, 63, 0, 0, 0, 64])  # and 0.5, 2.0
      >>> file = pathlib.Path(folder.name, "model.safetensors")
      >>> _ = file.write_bytes(len(header).to_bytes(8, "little") + header + data)
      >>> weight = jquant.checkpoints.load(file)["layer.weight"]
      >>> weight
      QuantizedWeight(int8[3,2], scale float32, block_size 3)
      >>> weight.dequantize()
      array([[ 0.5,  8. ],
             [ 1. , 10. ],
             [ 1.5, 12. ]], dtype=float32)
      >>> weight.pack().matrix
      PackedMatrix(int8[3,2])
      >>> folder.cleanup()
    """
    if not isinstance(quantization_config, Mapping | None):
        type_name = type(quantization_config).__name__
        raise TypeError(
            f"quantization_config is a {type_name}; it must be a mapping, such as {{'quant_method': 'gptq', ...}}"
        )
    path = Path(path)
    if path.is_dir():
        (files, weight_map), folder = _files(path), path
    elif path.is_file():
        files, weight_map, folder = [path], {}, path.parent
    elif path.exists():
        refuse(path, None, "is neither a file nor a directory")
    else:
        raise FileNotFoundError(f"{path} does not exist")
    if len(files) == 1 and _begins_with(files[0], gguf_files.MAGIC):
        tensors, metadata = gguf_files.read_header(files[0])
        return Checkpoint(path, {name: gguf_weights.entry(tensor) for name, tensor in tensors.items()}, metadata)
    warn = Warnings()
    tensors, metadata = _safetensors(files, weight_map, warn)
    config = _quantization_config(folder) if quantization_config is None else quantization_config
    return Checkpoint(path, safetensors_weights.entries(tensors, config, path, warn), metadata)


def _safetensors(
    files: list[Path], weight_map: dict[str, str], warn: Warnings
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors and the metadata of one file, or of several with an index, whose `weight_map` names each tensor's file.

    As in transformers 4, the index alone decides: copies of a tensor in other files are ignored, and so are tensors that the
    index does not name. (transformers 5 reads all tensors in the files, and of several copies the one in the last file.)

    Raises:
      CheckpointError: a file is not valid, or lacks a tensor that it should have according to the index.
    """
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    ignored: dict[str, str] = {}  # the first file that holds each
    for file in files:
        file_tensors, file_metadata = safetensors.read_header(file)
        metadata |= file_metadata
        for name, tensor in file_tensors.items():
            if not weight_map or weight_map.get(name) == file.name:
                tensors[name] = tensor
            else:
                ignored.setdefault(name, file.name)
    for name, file in weight_map.items():
        if name not in tensors:
            copy = f"; there is one in {ignored[name]}" if name in ignored else ""
            refuse(files[0].parent / file, name, f"is missing, but {_INDEX} says that this file has it{copy}")
    unnamed = sorted(ignored.keys() - weight_map.keys())
    if unnamed:
        count = f"{len(unnamed)} of the tensors in its files, such as {unnamed[0][:100]!r} in {ignored[unnamed[0]]}"
        warn("unnamed", files[0].parent / _INDEX, None, f"does not name {count}; what it does not name is not read")
    return tensors, metadata


def _files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of a directory that hold tensors, and the name of each tensor's file if there is an index.

    Raises:
      CheckpointError: no file, or several without an index; an index of files that do not exist or are in another folder.
    """
    if (folder / "model.safetensors").exists():
        return [_require_file(folder / "model.safetensors")], {}
    if (folder / _INDEX).exists():
        weight_map = _read_weight_map(folder / _INDEX)
        return [_require_file(folder / file) for file in sorted(set(weight_map.values()))], weight_map
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "no safetensors or GGUF file"
        refuse(folder, None, f"has {names}, and no {_INDEX}"[:1000])
    return [_require_file(files[0])], {}


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = safetensors.read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or any(not isinstance(file, str) for file in weight_map.values()):
        refuse(index, None, "its weight_map must map tensor names to file names")
    for name, file in weight_map.items():
        if not _is_file_name(file):
            refuse(index, name, f"is in {file[:100]!r}, which is not the name of a file in this folder")
    if not weight_map:
        refuse(index, None, "its weight_map is empty")
    return weight_map


def _is_file_name(text: str) -> bool:
    try:
        is_short = len(os.fsencode(text)) <= _MAX_NAME_LENGTH
    except UnicodeEncodeError:
        return False
    return is_short and Path(text).name == text and text not in (".", "..") and "\\" not in text and "\0" not in text


def _require_file(path: Path) -> Path:
    if not path.is_file():
        refuse(path, None, "is not a file")
    return path


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _quantization_config(folder: Path) -> Mapping[str, Any]:
    """The quantization_config in a folder's files; an empty one if there is none."""
    for name in _CONFIGS:
        file = folder / name
        if not file.exists():
            continue
        config = safetensors.read_json(file)
        if name == "quantize_config.json":
            return {"quant_method": config.get("method") or "gptq", **config}
        for key in ("quantization_config", "compression_config"):
            value = config.get(key)
            if isinstance(value, dict):
                return value
            if value is not None:
                refuse(file, None, f"its {key} is {str(value)[:100]}; it must be an object")
    return _modelopt_config(folder / _MODELOPT_CONFIG)


def _modelopt_config(file: Path) -> Mapping[str, Any]:
    """What ModelOpt writes beside a config.json that has no quantization_config."""
    if not file.exists():
        return {}
    config = safetensors.read_json(file).get("quantization")
    if not isinstance(config, dict):
        refuse(file, None, f"its quantization is {str(config)[:100]}; it must be an object")
    return {"quant_method": "modelopt", **config}
