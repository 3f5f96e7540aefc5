"""Functions whose parameters are saved and loaded, among them one with each format of weights and each kind of site.

The quantized parameters are drawn, not computed, so that no weights have to be packed by programs.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr

import jquant
from jquant import transform
from jquant.transform import Scheme

WIDTH, COLUMNS, LAYERS, EXPERTS, TOKENS = 44, 25, 2, 3, 5
FLOATS = {"activations": "FLOAT"}
ROWS = {"activations": "DYNAMIC_ROW"}
SCHEMES: dict[str, Scheme | None] = {  # by the name of the parameter
    "int8": Scheme(**ROWS),
    "int8_in_parts": Scheme(**ROWS, k_parts=4, scale_type="BFLOAT16"),
    "int8_tensor": Scheme(weights="PER_TENSOR", activations="STATIC"),
    "uint8": Scheme(weight_type="UINT8"),
    "uint8_tensor": Scheme(weight_type="UINT8", weights="PER_TENSOR", **ROWS),
    "uint8_blocks": Scheme(weight_type="UINT8", block_size=7, **ROWS),
    "int8_blocks": Scheme(block_size=8, scale_type="FLOAT16", **FLOATS),
    "int4": Scheme(weight_type="INT4", **ROWS),
    "int4_blocks": Scheme(weight_type="INT4", block_size=8, scale_type="FLOAT16", **ROWS),
    "uint4_blocks": Scheme(weight_type="UINT4", block_size=12, scale_type="BFLOAT16", **FLOATS),
    "int2": Scheme(weight_type="INT2", block_size=16, scale_type="FLOAT16", **FLOATS),
    "float8_e4m3fn": Scheme(weight_type="FLOAT8E4M3FN", **FLOATS),
    "float8_e5m2": Scheme(weight_type="FLOAT8E5M2", block_size=5, scale_type="FLOAT16", **FLOATS),
    "mxfp8_e4m3fn": Scheme(weight_type="MXFP8E4M3FN", **FLOATS),
    "mxfp8_e5m2": Scheme(weight_type="MXFP8E5M2", **FLOATS),
    "mxfp6_e2m3fn": Scheme(weight_type="MXFP6E2M3FN", **FLOATS),
    "mxfp6_e3m2fn": Scheme(weight_type="MXFP6E3M2FN", block_size=6, **FLOATS),
    "mxfp4": Scheme(weight_type="MXFP4", **FLOATS),
    "mxint8": Scheme(weight_type="MXINT8", **FLOATS),
    "nvfp4": Scheme(weight_type="NVFP4", **FLOATS),
    "mxfp4_codes": Scheme(weight_type="MXFP4", **ROWS),
    "mxfp4_bytes": Scheme(weight_type="MXFP4", block_size=6, **ROWS),
    "mxfp6_bytes": Scheme(weight_type="MXFP6E2M3FN", activations="STATIC"),
    "mxint8_bytes": Scheme(weight_type="MXINT8"),
    "smoothed": Scheme(smoothing="SMOOTHQUANT", **ROWS),
    "rotated": Scheme(weight_type="INT4", block_size=16, rotation="HADAMARD", **FLOATS),
    "stacked/int4": Scheme(weight_type="INT4", block_size=16, **ROWS),
    "stacked/nvfp4": Scheme(weight_type="NVFP4", **FLOATS),
    "stacked/nvfp4_codes": Scheme(weight_type="NVFP4", **ROWS),
    "stacked/uint8": Scheme(weight_type="UINT8", activations="STATIC"),
    "experts/index": Scheme(**ROWS),
    "experts/groups": Scheme(weight_type="INT4", block_size=8, **ROWS),
    "filters/int8": Scheme(activations="STATIC"),
    "filters/float8": Scheme(weight_type="FLOAT8E4M3FN", **FLOATS),
    "table*": Scheme(weight_type="INT4", block_size=8, **ROWS),
    "left": None,
}
STACKED = "int4", "nvfp4", "nvfp4_codes", "uint8"
FEW = "int8", "int4_blocks", "nvfp4", "smoothed", "stacked/nvfp4_codes", "stacked/uint8"


def outputs(params: Any, x: jax.Array, tokens: jax.Array, names: Sequence[str]) -> dict[str, jax.Array]:
    """The output of each site, by the name of its parameter, so that no sum mixes them."""
    y = {}
    for name in names:
        family, _, key = name.rpartition("/")
        w = params[family][key] if family else params[name]
        if family == "stacked":
            y[name] = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x[:, :COLUMNS], w)[0]
        elif name == "experts/index":
            y[name] = jnp.einsum("td,tdn->tn", x, w[tokens % EXPERTS])
        elif name == "experts/groups":
            y[name] = lax.ragged_dot(x, w, jnp.array([2, 0, TOKENS - 2], jnp.int32))
        elif family == "filters":
            y[name] = lax.conv_general_dilated(x[:, :36].reshape(TOKENS, 4, 3, 3), w, (1, 1), "SAME")
        elif name == "table":
            y[name] = jnp.tanh(w[tokens]) @ w.T
        else:
            y[name] = x @ w
    return y


def apply(params: Any, x: jax.Array, tokens: jax.Array) -> dict[str, jax.Array]:
    """The outputs of all sites; and parameters of types that stay as they are."""
    y, kept = outputs(params, x, tokens, [name.rstrip("*") for name in SCHEMES]), params["kept"]
    noise = jax.random.normal(kept["key"], (TOKENS, COLUMNS))
    bias = jnp.where(kept["flag"], kept["bias"].astype(jnp.float32), 0)[None] + kept["steps"].astype(jnp.float32)[None]
    return {**y, "kept": bias + kept["scale"].astype(jnp.float32)[None] + noise}


def apply_few(params: Any, x: jax.Array, tokens: jax.Array) -> dict[str, jax.Array]:
    """The outputs of some sites."""
    return outputs(params, x, tokens, FEW)


def recipe(names: Sequence[str] | None = None) -> transform.Recipe:
    """The schemes of all sites, or of some."""
    chosen = [(name, scheme) for name, scheme in SCHEMES.items() if names is None or name.rstrip("*") in names]
    return transform.Recipe(chosen, smallest=1)


def types() -> dict[str, Any]:
    """The types of the float parameters, some of which stay float."""
    shape = jax.ShapeDtypeStruct
    params: dict[str, Any] = {name: shape((WIDTH, COLUMNS), jnp.float32) for name in SCHEMES if name.isidentifier()}
    params["table"] = shape((16, COLUMNS), jnp.float32)
    params["stacked"] = {name: shape((LAYERS, COLUMNS, COLUMNS), jnp.float32) for name in STACKED}
    params["experts"] = {name: shape((EXPERTS, WIDTH, COLUMNS), jnp.float32) for name in ("index", "groups")}
    params["filters"] = {name: shape((8, 4, 3, 3), jnp.float32) for name in ("int8", "float8")}
    kept = {"bias": jnp.bfloat16, "scale": jnp.float8_e4m3b11fnuz, "steps": jnp.int4, "flag": jnp.bool}
    params["kept"] = {name: shape((COLUMNS,), dtype) for name, dtype in kept.items()}
    params["kept"]["key"] = shape((), jax.random.key(0).dtype)
    return params


def inputs() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(8).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    return x, np.int32([0, 15, 3, 7, 2])


def drawn(types: Any, rng: np.random.Generator) -> Any:
    """Quantized parameters of these types: any integers and codes, whose numbers are neither large nor NaN."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _drawn(keystr(path[-1:]), leaf, rng), types, is_leaf=lambda node: isinstance(node, _PACKED)
    )


_PACKED = jquant.PackedMatrix, jquant.PackedBlockMatrix


def _drawn(field: str, type: Any, rng: np.random.Generator) -> Any:
    if isinstance(type, jquant.PackedMatrix):
        return _matrix(type, rng)
    if isinstance(type, jquant.PackedBlockMatrix):
        return _block_matrix(type, rng)
    if jnp.issubdtype(type.dtype, jax.dtypes.prng_key):
        return jax.random.key(3)
    if jnp.issubdtype(type.dtype, jnp.floating):
        return rng.uniform(0.25, 1, type.shape).astype(type.dtype)
    if type.dtype == np.uint8:  # codes of numbers below 2, with both signs, and of scales
        low, high, mask = (118, 126, 255) if "scale" in field else (0, 256, 0xBF)
        return rng.integers(low, high, type.shape, np.uint8) & np.uint8(mask)
    return rng.integers(0, 2 if type.dtype == bool else 8, type.shape).astype(type.dtype)


def _matrix(type: jquant.PackedMatrix, rng: np.random.Generator) -> jquant.PackedMatrix:
    data = rng.integers(-128, 128, type.data.shape, np.int8)
    *batch, n, _ = data.shape
    blocks = data.reshape(*batch, n, type.block_sums.shape[-2], -1).sum(-1, dtype=np.int32)
    zero_point = None if type.zero_point is None else rng.integers(0, 100, type.zero_point.shape).astype(type.dtype)
    return jquant.PackedMatrix(data, np.swapaxes(blocks, -1, -2), zero_point, type.dtype)


def _block_matrix(type: jquant.PackedBlockMatrix, rng: np.random.Generator) -> jquant.PackedBlockMatrix:
    """Rows behind the last one are 0 as they are stored."""
    limits = jnp.iinfo(jnp.uint4 if type.stored_type == jnp.float4_e2m1fn else type.dtype)  # codes are stored as they are
    rows = type.shape[-2]
    in_words = type.data.dtype == np.uint16
    per_element = 4 if in_words else 1
    *batch, count, n = type.data.shape
    integers = rng.integers(limits.min, limits.max + 1, (*batch, count * per_element, n))
    stored = integers - (limits.min if in_words else 128 if limits.max == 255 else 0)
    stored[..., rows:, :] = 0
    if in_words:
        places = stored.reshape(*batch, count, 4, n) << np.array([0, 4, 8, 12])[:, None]
        stored = places.sum(-2)
    scale = rng.uniform(0.01, 0.1, type.scale.shape).astype(type.scale.dtype)
    zero_point = None if type.zero_point is None else rng.integers(0, 8, type.scale.shape).astype(type.zero_point.dtype)
    minimum = None if type.minimum is None else rng.uniform(-1, 0, type.scale.shape).astype(type.minimum.dtype)
    return dataclasses.replace(
        type, data=stored.astype(type.data.dtype), scale=scale, zero_point=zero_point, minimum=minimum
    )


def digest(params: Any) -> dict[str, str]:
    """The dtype, the shape and a digest of the bytes of each array."""

    def one(leaf: Any) -> str:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        return f"{leaf.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"

    return {keystr(path): one(leaf) for path, leaf in jax.tree.leaves_with_path(params)}
