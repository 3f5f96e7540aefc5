"""What a file says about its tensors: strings in the header of safetensors."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

from jquant.arithmetic import packed_int4
from jquant.errors import TransformError
from jquant.files import safetensors
from jquant.files.diagnostics import refuse
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.transform.recipes.recipe import Recipe

FORMAT, VERSION = "jquant.transform", 1
_START = b'{"__metadata__":{"format":"jquant.transform",'  # of the header of every file that this module describes
_FLOAT4 = jnp.dtype(jnp.float4_e2m1fn)
_TYPES = {dtype.name: dtype for dtype in (*map(jnp.dtype, (jnp.int4, jnp.uint4, jnp.int8, jnp.uint8)), _FLOAT4)}


class Blocks(NamedTuple):
    """The integers of a matrix in blocks, or the floats that they are twice of."""

    dtype: np.dtype
    block_size: int


class Description(NamedTuple):
    """The recipe of the function, and how the matrices in blocks are stored, by site."""

    recipe: Recipe
    blocks: dict[str, Blocks]


def written(
    recipe: Recipe, sites: Mapping[str, Mapping[str, Any]], ranges: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, str]:
    """The strings for a file. `format` is the first, as `_START` has it."""
    versions = {
        "jquant": importlib.import_module("jquant").__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
    }
    matrices = {name: stored["values"] for name, stored in sites.items() if isinstance(stored["values"], PackedBlockMatrix)}
    blocks = {
        name: dict(zip(Blocks._fields, (each.stored_type.name, each.block_size), strict=True))
        for name, each in matrices.items()
    }
    return {
        "format": FORMAT,
        "format_version": str(VERSION),
        "recipe": recipe.to_json(),
        "calibration": json.dumps(_as_lists(ranges)),
        "blocks": json.dumps(blocks, sort_keys=True),
        "versions": json.dumps(versions),
    }


def _as_lists(ranges: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, Any]]:
    """A range is two numbers, or two lists of those of layers."""
    return {name: {"min": low.tolist(), "max": high.tolist()} for name, (low, high) in ranges.items()}


def read(path: Path, strings: Mapping[str, str]) -> Description:
    """What the strings of a file say.

    Raises:
      CheckpointError: another format, a newer version of this one, or strings that are broken.
    """
    if strings.get("format") != FORMAT:
        refuse(path, None, "is not a file that transform.save wrote: its metadata do not name the format jquant.transform")
    version = strings.get("format_version", "")
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10 and int(version)):
        refuse(path, None, f"its format_version is {version[:100]!r}; it must be a number")
    if int(version) > VERSION:
        by = strings.get("versions", "")[:200]
        refuse(path, None, f"is newer than this jquant, which reads format {VERSION}: it has format {version}, from {by}")
    try:
        recipe = Recipe.from_json(strings.get("recipe", ""))
    except TransformError as error:
        refuse(path, None, f"its recipe is broken, or newer than this jquant: {error}")
    return Description(recipe, _blocks(path, strings.get("blocks", "")))


def _blocks(path: Path, text: str) -> dict[str, Blocks]:
    found = {}
    for name, fields in safetensors.parse_json(path, text.encode("utf-8", "replace")).items():
        values = [fields.get(field) for field in Blocks._fields] if isinstance(fields, dict) else [None, None]
        dtype, size = values
        if not isinstance(dtype, str) or dtype not in _TYPES or type(size) is not int or not _is_size(_TYPES[dtype], size):
            wanted = f"one of {', '.join(_TYPES)} and a number of rows, for floats a multiple of {packed_int4.PER_WORD}"
            refuse(
                path, None, f"its metadata have {str(fields)[:100]} as the blocks of {name[:100]!r}; they must be {wanted}"
            )
        found[name] = Blocks(_TYPES[dtype], size)
    return found


def _is_size(dtype: np.dtype, size: int) -> bool:
    """Whether blocks of this type can have so many rows: whole words of floats."""
    return 0 < size < 2**31 and (dtype != _FLOAT4 or size % packed_int4.PER_WORD == 0)


def require_whole_header(path: Path) -> None:
    """Asserts that a file is not shorter than the header that it begins, if it is one that `transform.save` wrote."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length, start = int.from_bytes(file.read(8), "little"), file.read(len(_START))
    begins = len(start) > 0 and _START.startswith(start)
    if size == 0 or (begins and size < 8 + length):
        whole = "" if size == 0 else f"; its header alone has {length}"
        refuse(path, None, f"is truncated: it has {size} bytes{whole}")
