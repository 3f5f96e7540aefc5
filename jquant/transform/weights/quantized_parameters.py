"""Checks of the parameters that a quantized function is called with: those that `quantize` returned, or restored ones."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from jquant.errors import TransformError, TransformTypeError
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform.formats import weight_formats
from jquant.transform.formats.integer_formats import Blocks, Columns
from jquant.transform.formats.stored_weights import SMOOTHING, Stored
from jquant.transform.program.parameters import described, is_array, require_arrays
from jquant.transform.program.plan import Plan, Site
from jquant.transform.weights import layers

Parts = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
_PARTS = "sites", "inputs", "float"


def parts(name: str, plan: Plan, params: Any) -> Parts:
    """What sites store, static inputs, and floats, each by name, asserting that they are those of a plan."""
    if not isinstance(params, Mapping) or set(params) != set(_PARTS):
        raise TransformTypeError(
            f"{name}: params is {described(params)}; it must be the quantized parameters, which "
            "transform.quantize returned with the function, or restored ones"
        )
    for part in _PARTS:
        if not isinstance(params[part], Mapping):
            raise TransformTypeError(f"{name}: params[{part!r}] is {described(params[part])}; it must be a dict by name")
    packed, static, floats = (dict(params[part]) for part in _PARTS)
    for part, trees, sites in (("sites", packed, plan.stored()), ("inputs", static, plan.inputs())):
        differing = trees.keys() ^ {site.name for site in sites}
        if differing:
            names = ", ".join(sorted(map(str, differing)))
            raise TransformError(f"{name}: the {part} of the quantized parameters do not belong to this function: {names}")
    return packed, static, floats


def require_stored(name: str, plan: Plan, expected: Mapping[str, Stored], packed: Mapping[str, Stored]) -> None:
    """Asserts that each site has weights of its form, types and shapes. Those in blocks may be a checkpoint's."""
    for site in plan.stored():
        given, types = packed[site.name], expected[site.name]
        if site.storage.filter is None:
            shape = (*plan.sizes(site), *layers.matrix_sizes(site.storage, site.weights.shape))
            obstacle = weight_formats.why_not_stored(site.storage.format, given, shape, optional=SMOOTHING)
            if obstacle is not None:
                raise TransformError(f"{name}: params['sites'], the weights of {site.name}: {obstacle}")
        where = f"{name}: params['sites'][{site.name!r}]"
        if site.storage.filter is None and isinstance(site.storage.format, Columns | Blocks):
            _require_beside_matrix(where, types, given)
        else:
            _require_same(where, types, given)


def _require_beside_matrix(where: str, expected: Stored, given: Stored) -> None:
    """Asserts the types of the scales, factors and order beside packed weights, which have been checked."""
    for field, array in given.items():
        if field == "values":
            continue
        if not is_array(array):
            raise TransformTypeError(f"{where}[{field!r}] is {described(array)}; it must be an array")
        type = jax.typeof(array)
        is_right = jnp.issubdtype(type.dtype, jnp.integer if field == "permutation" else jnp.floating)
        if not is_right or (field in expected and type.shape != expected[field].shape):
            wanted = described(expected[field]) if field in expected else "an order of rows" if is_right else "integers"
            raise TransformError(f"{where}[{field!r}] is {described(array)}; it must be like {wanted}")


def _require_same(where: str, expected: Any, given: Any) -> None:
    """Asserts that a tree has the structure, shapes and dtypes of another, of types."""
    wanted, structure = jax.tree.flatten(expected)
    leaves = tree_leaves_with_path(given)
    if jax.tree.structure(given) != structure:
        raise TransformTypeError(f"{where} is {described(given)}; it must be like {described(expected)}")
    for (path, leaf), type in zip(leaves, wanted, strict=True):
        _require_type(f"{where}{keystr(path)}", leaf, type)


def _require_type(where: str, leaf: Any, wanted: Any) -> None:
    actual = jax.typeof(leaf)
    if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
        raise TransformError(f"{where} is {described(leaf)}; it must be {jax.typeof(wanted).str_short()}, as in quantize")


def require_static(name: str, plan: Plan, static: Mapping[str, Any]) -> None:
    """Asserts that each static input has a scale and a zero point of its types."""
    for site in plan.inputs():
        where, given = f"{name}: params['inputs'][{site.name!r}]", static[site.name]
        if not isinstance(given, ScaleZeroPoint):
            raise TransformTypeError(f"{where} is {described(given)}; it must be a jquant.ScaleZeroPoint")
        _require_same(where, _static_types(plan, site), given)


def _static_types(plan: Plan, site: Site) -> ScaleZeroPoint:
    sizes, zero_point = plan.sizes(site), np.dtype(site.scheme.activation_type.lower())
    types: Any = (jax.ShapeDtypeStruct(sizes, dtype) for dtype in (np.dtype(np.float32), zero_point))
    return ScaleZeroPoint(*types)


def require_float(name: str, parameter: str, leaf: Any, wanted: jax.ShapeDtypeStruct) -> None:
    """Asserts that a parameter that stays float has its type."""
    where = f"{name}: params['float'][{parameter!r}]"
    if not is_array(leaf):
        require_arrays(where, leaf)
        raise TransformTypeError(f"{where} is {described(leaf)}; it must be an array")
    _require_type(where, leaf, wanted)
