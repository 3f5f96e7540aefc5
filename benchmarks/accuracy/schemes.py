"""The schemes that are measured, as data: in the tables' order, the name and the fields of `jquant.transform.Scheme`."""

from typing import Any

_GPTQ = {"weight_rounding": "GPTQ", "weight_range": "mean_squared_error"}
_METHODS = {
    "nearest": {},
    "MSE ranges": {"weight_range": "mean_squared_error"},
    "AWQ": {"smoothing": "AWQ", "weight_range": "mean_squared_error"},
    "AWQ, min_max": {"smoothing": "AWQ"},
    "GPTQ": _GPTQ,
    "GPTQ, min_max": {"weight_rounding": "GPTQ"},
    "AWQ, GPTQ": {"smoothing": "AWQ", **_GPTQ},
    "GPTQ, sequential": _GPTQ,
    "GPTQ, half corrected": {**_GPTQ, "weight_rounding": ("GPTQ", 0.01, True, 0.5)},
    "GPTQ, corrected": {**_GPTQ, "weight_rounding": ("GPTQ", 0.01, True, 1.0)},
}
_BLOCKS = {
    "by channel": {},
    "by 128": {"block_size": 128, "scale_type": "FLOAT16"},
    "by 32": {"block_size": 32, "scale_type": "FLOAT16"},
}
_FLOATS = {"activations": "FLOAT"}
_ROWS = {"activations": "DYNAMIC_ROW"}


def is_sequential(name: str) -> bool:
    """Whether a scheme is calibrated with the inputs that the quantized network gives its sites."""
    return name.endswith(("sequential", "corrected"))


def _int4(blocks: str, activations: dict[str, Any], methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    inputs = ", int8 rows" if activations is _ROWS else ""
    return {
        f"int4 {blocks}{inputs}: {method}": {"weight_type": "INT4", **_BLOCKS[blocks], **activations, **_METHODS[method]}
        for method in methods
    }


SCHEMES: dict[str, dict[str, Any]] = {
    **_int4("by channel", _FLOATS, tuple(_METHODS)),
    **_int4("by 128", _FLOATS, tuple(_METHODS)),
    **_int4("by 32", _FLOATS, tuple(_METHODS)),
    **{
        f"int2 by 32: {method}": {"weight_type": "INT2", **_BLOCKS["by 32"], **_FLOATS, **_METHODS[method]}
        for method in ("MSE ranges", "GPTQ", "GPTQ, sequential", "GPTQ, half corrected", "GPTQ, corrected")
    },
    "uint4 by 32: nearest": {"weight_type": "UINT4", **_BLOCKS["by 32"], **_FLOATS},
    **_int4("by 32", _ROWS, ("nearest", "MSE ranges", "GPTQ", "AWQ, GPTQ")),
    "int8 by channel: nearest": _FLOATS,
    "int8 by channel, int8 rows: nearest": _ROWS,
    "int8 by channel, int8 rows: SmoothQuant 0.5": {**_ROWS, "smoothing": ("SMOOTHQUANT", 0.5)},
    "int8 by channel, int8 rows: Hadamard": {**_ROWS, "rotation": "HADAMARD"},
    "int8 by channel, int8 rows: Hadamard, GPTQ": {**_ROWS, "rotation": "HADAMARD", "weight_rounding": "GPTQ"},
    "int8 by channel, int8 rows: SmoothQuant 0.5, Hadamard": {
        **_ROWS,
        "smoothing": ("SMOOTHQUANT", 0.5),
        "rotation": "HADAMARD",
    },
    "int8 by 32, int8 rows: Hadamard": {**_ROWS, **_BLOCKS["by 32"], "rotation": "HADAMARD"},
    "MXFP8 (E4M3): nearest": {"weight_type": "MXFP8E4M3FN", **_FLOATS},
    "MXFP6 (E2M3): nearest": {"weight_type": "MXFP6E2M3FN", **_FLOATS},
    **{
        f"MXFP4: {name}": {"weight_type": "MXFP4", **_FLOATS, **_METHODS[name]} for name in ("nearest", "MSE ranges", "GPTQ")
    },
    **{
        f"NVFP4: {name}": {"weight_type": "NVFP4", **_FLOATS, **_METHODS[name]} for name in ("nearest", "MSE ranges", "GPTQ")
    },
}
