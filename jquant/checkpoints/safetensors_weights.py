"""The weights that the tensors of safetensors files make up, by the suffixes of their names."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jquant.checkpoints import compressed_tensors, four_bit_weights, fp8, gptq
from jquant.checkpoints.entry import Entry, array_entry
from jquant.checkpoints.groups import Tensors
from jquant.files.diagnostics import Warnings, refuse
from jquant.files.stored_tensor import StoredTensor

_Reader = Callable[[str, Tensors, Mapping[str, Any], Warnings], Entry]
_BY_QWEIGHT: Mapping[str, _Reader] = {
    "gptq": gptq.gptq,
    "awq": gptq.awq,
    **dict.fromkeys(("auto-round", "auto_round", "intel/auto-round"), gptq.auto_round),
}
_WITH_SCALES = "compressed-tensors", "fp8", "modelopt"  # in which no weight of 8 bits is without scales
_METHODS = None, "mxfp4", *_WITH_SCALES, *_BY_QWEIGHT
_SUPPORTED = "'gptq', 'awq', 'auto-round', 'compressed-tensors', 'fp8', 'modelopt' and 'mxfp4'"
_MODELOPT = None, "NVFP4", "W4A16_NVFP4", "FP8", "MIXED_PRECISION"
_PACKAGES: Mapping[str, str] = {  # that read other methods
    "aqlm": "aqlm",
    "bitnet": "transformers",
    "bitsandbytes": "bitsandbytes",
    "eetq": "eetq",
    "exl2": "exllamav2",
    "exl3": "exllamav3",
    "fbgemm_fp8": "fbgemm-gpu",
    "fp_quant": "fp-quant",
    "higgs": "flute-kernel",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
    "quark": "amd-quark",
    "spqr": "spqr-quant",
    "torchao": "torchao",
    "vptq": "vptq",
}
_FOREIGN: Mapping[str, tuple[str, str]] = {  # suffixes of the names that only one format has, and the package that reads it
    ".absmax": ("bitsandbytes, in 4 bits", "bitsandbytes"),
    ".SCB": ("bitsandbytes, in 8 bits", "bitsandbytes"),
    ".W_q": ("HQQ", "hqq"),
    ".q_weight": ("EXL2", "exllamav2"),
    ".trellis": ("EXL3", "exllamav3"),
    ".codebooks": ("AQLM", "aqlm"),
    ".qscale_weight": ("Mistral's own fp8", "vllm"),
}


def entries(tensors: Tensors, config: Mapping[str, Any], path: Path, warn: Warnings) -> dict[str, Entry]:
    """The entries of safetensors files.

    Raises:
      CheckpointError: an unsupported format, or tensors of a weight that do not fit together.
    """
    method = config.get("quant_method") or config.get("method")  # GPTQModel writes either
    _require_supported(method, config, path)
    result: dict[str, Entry] = {}
    remaining = dict(tensors)  # readers remove the tensors of a weight
    for suffix, beside, weight, reader in _readers(method):
        for name in tensors:
            base = name.removesuffix(suffix)
            if base != name and name in remaining and f"{base}{beside}" in remaining:
                entry = reader(base, remaining, config, warn)
                if entry is not None:
                    result[f"{base}{weight}"] = entry
    for name, tensor in remaining.items():
        if name in result:
            tensor.refuse("is present both as it is and in a quantized form")
        _require_array(tensor, method)
        result[name] = array_entry(tensor)
    return result


def _require_supported(method: Any, config: Mapping[str, Any], path: Path) -> None:
    if method not in _METHODS:
        package = _PACKAGES.get(str(method))
        reads = f", which the package {package} reads" if package else ""
        refuse(path, None, f"quant_method is {str(method)[:100]!r}{reads}; supported are {_SUPPORTED}")
    if method == "compressed-tensors":
        format_, formats = config.get("format"), compressed_tensors.FORMATS
        if format_ not in (None, *formats):
            package = "which the package compressed-tensors reads"
            refuse(path, None, f"its format is {str(format_)[:100]!r}, {package}; supported are {', '.join(formats)}")
    if method == "modelopt" and config.get("quant_algo") not in _MODELOPT:
        algorithm, names = str(config["quant_algo"])[:100], ", ".join(name for name in _MODELOPT if name)
        refuse(path, None, f"its quant_algo is {algorithm!r}, which TensorRT-LLM reads; supported are {names}")


def _readers(method: Any) -> list[tuple[str, str, str, Callable[..., Entry | None]]]:
    """By the suffix of a tensor's name: that of one that must be there as well, that of the weight, and its reader."""
    experts = functools.partial(_experts, is_configured=method == "mxfp4")
    return [
        (".qweight", ".qweight", ".weight", _BY_QWEIGHT.get(str(method), _without_method)),
        (".weight_packed", ".weight_packed", ".weight", compressed_tensors.pack_quantized),
        (".weight_scale_2", ".weight", ".weight", four_bit_weights.modelopt),
        ("_scale_inv", "", "", _fp8),
        (".weight_scale", ".weight", ".weight", compressed_tensors.naive_quantized),
        ("_blocks", "_scales", "", functools.partial(experts, "_")),
        (".blocks", ".scales", "", functools.partial(experts, ".")),
    ]


def _without_method(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry:
    tensors[f"{base}.qweight"].refuse(
        "is from GPTQ or AWQ; config.json beside the file, or the argument quantization_config, must say which: "
        "{'quant_method': 'gptq', 'checkpoint_format': 'gptq'}, {... 'gptq_v2'} or {'quant_method': 'awq'}"
    )


def _fp8(base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings) -> Entry | None:
    if tensors[base].dtype.name not in fp8.FLOATS:
        return None
    return fp8.fp8(tensors.pop(base), tensors.pop(f"{base}_scale_inv"), config)


def _experts(
    dot: str, base: str, tensors: Tensors, config: Mapping[str, Any], warn: Warnings, *, is_configured: bool
) -> Entry | None:
    """Weights of gpt-oss: ``experts.down_proj_blocks``, or ``mlp2_weight.blocks`` in the layout of its authors."""
    codes, scale = f"{base}{dot}blocks", f"{base}{dot}scales"
    if not is_configured and not four_bit_weights.is_mxfp4(tensors[codes], tensors[scale]):
        return None
    return four_bit_weights.mxfp4(tensors.pop(codes), tensors.pop(scale))


def _require_array(tensor: StoredTensor, method: Any) -> None:
    """Refuses a tensor that is no array, but part of a weight whose other parts are missing, or of an unsupported format."""
    name = tensor.name
    for suffix, (format_, package) in _FOREIGN.items():
        if name.endswith(suffix):
            tensor.refuse(f"is from {format_}, which is not supported; the package {package} reads it")
    if name.endswith(".weight") and tensor.dtype.itemsize == 1 and method in _WITH_SCALES:
        tensor.refuse(f"is {tensor.type_name}, but there is no {name}_scale")
