"""Low-rank adapters: small float matrices that are trained beside the frozen integers of a quantized function.

A site of weights `w` computes ``x @ w + (x @ a) @ b * (alpha / rank)``: `w` stays packed, and `a` and `b` are trained.
"""

import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arguments.statics import float_data_type, integer, is_sequence, number
from jquant.arithmetic.straight_through import straight_through
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.placement import explain_array_errors_as
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.program.layouts import MATMUL, Storage
from jquant.transform.program.parameters import described, require_arrays
from jquant.transform.program.plan import Plan, Site
from jquant.transform.quantize import QuantizedFunction
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.rewriting import compute, rewrite
from jquant.transform.rewriting.site_functions import straight_through_output, straight_through_product
from jquant.transform.weights import layers, prepared_weights

__all__ = ["attach", "init", "merge"]

_INIT, _ATTACH, _MERGE = (f"transform.adapters.{name}" for name in ("init", "attach", "merge"))
_LARGEST = 2.0**31
Adapters = Mapping[str, Mapping[str, Any]]


def __dir__() -> list[str]:
    return __all__


@explain_array_errors_as(_INIT, TransformError)
def init(
    quantized_apply: QuantizedFunction,
    key: Any,
    rank: int,
    *,
    sites: str | Sequence[str] = "*",
    dtype: Any = "float32",
) -> dict[str, dict[str, jax.Array]]:
    """Makes the adapters of a quantized function: two matrices for each product, whose own product is 0 at first.

    Args:
      quantized_apply: the function that `quantize` returned.
      key: a key of `jax.random`.
      rank: the columns of ``a`` and rows of ``b``, at least 1.
      sites: a pattern, or a list of these, as in a `Recipe`: the names of the products that are adapted, where ``*``
        matches anything. Convolutions and embeddings have no adapters; the product by a table that an embedding looks up
        has one.
      dtype: the float type of the matrices.

    Returns:
      ``{site: {"a": a, "b": b}}``, plain dicts. ``a`` has shape (K, rank), with normally distributed elements of standard
      deviation ``1 / sqrt(K)``, and ``b`` has shape (rank, N), with zeros, where (K, N) is the shape of the matrix that the
      input is multiplied by: dimensions that a product sums over are one dimension, K, and so are those of its output, N.
      Before these come the layers of weights that `jax.lax.scan` stacks, and the batch of weights that have one (the product
      of its sizes), as in ``"bhd,hdn->bhn"``.

    Raises:
      TransformError: a pattern that matches no product, or a rank below 1.
      TransformTypeError: an argument of the wrong type, such as a function that is not from `quantize`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> params, x = {"kernel": jnp.linspace(-1, 1, 1024).reshape(32, 32)}, jnp.ones((4, 32))
      >>> quantized_apply, quantized_params = transform.quantize(
      ...     lambda params, x: x @ params["kernel"], params, transform.weight_only_int4, x
      ... )
      >>> adapters = transform.adapters.init(quantized_apply, jax.random.key(0), rank=2)
      >>> jax.tree.map(jnp.shape, adapters)
      {'kernel': {'a': (32, 2), 'b': (2, 32)}}
    """
    plan = _plan(_INIT, quantized_apply)
    with as_transform_errors():
        rank = integer(_INIT, "rank", rank, range(1, 2**31), "a number of columns, at least 1")
        float_type = float_data_type(_INIT, "dtype", dtype)
    chosen = _matching(plan, sites)
    try:
        keys = jax.random.split(key, len(chosen))
    except (TypeError, ValueError) as error:
        raise TransformTypeError(f"{_INIT}: key is {described(key)}; it must be one key of jax.random") from error
    adapters = {}
    for site, each in zip(chosen, keys, strict=True):
        *leading, rows, columns = _shape(plan, site)
        a = jax.random.normal(each, (*leading, rows, rank), float_type) * float_type.type(1 / math.sqrt(rows))
        adapters[site.name] = {"a": a, "b": jnp.zeros((*leading, rank, columns), float_type)}
    return adapters


def attach(quantized_apply: QuantizedFunction, *, alpha: float | None = None) -> Callable[..., Any]:
    """Adds adapters to a quantized function: a function of them, to be trained, and of the quantized parameters.

    To the output of each site that has an adapter, it adds ``(x @ a) @ b * (alpha / rank)``. This is computed from the
    input before it is quantized, in the wider of the types of the input and of the adapter, and the sum is rounded to the
    type of the output. Where the product is 0, the output is that of the quantized function, bit for bit.

    The derivative is the straight-through one of `quantize`, whether `quantized_apply` was made with it or not.

    Args:
      quantized_apply: the function that `quantize` returned.
      alpha: a number. The product of an adapter is multiplied by ``alpha / rank``; None: by 1.

    Returns:
      A pure function, to be called as ``adapted(adapters, quantized_params, *inputs)``, so that ``jax.grad`` of a loss of it
      is the gradient in the adapters. `adapters` are those of `init`, also trained ones; sites that they leave out are
      computed without, and each may have a rank of its own. Keep the function: each call of `attach` makes another one,
      which is traced anew.

    Raises:
      TransformError: an `alpha` that is not finite. The returned function raises it for an adapter of the wrong shape,
        or of a name that is no product, and otherwise what the quantized function raises.
      TransformTypeError: an argument of the wrong type.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> params, x = {"kernel": jnp.linspace(-1, 1, 1024).reshape(32, 32)}, jnp.ones((4, 32))
      >>> quantized_apply, quantized_params = transform.quantize(
      ...     lambda params, x: x @ params["kernel"], params, transform.weight_only_int4, x
      ... )
      >>> adapters = transform.adapters.init(quantized_apply, jax.random.key(0), rank=2)
      >>> adapted = transform.adapters.attach(quantized_apply)
      >>> bool((adapted(adapters, quantized_params, x) == quantized_apply(quantized_params, x)).all())
      True
      >>> gradient = jax.grad(lambda adapters: adapted(adapters, quantized_params, x).sum())(adapters)
      >>> jax.tree.map(jnp.shape, gradient)
      {'kernel': {'a': (32, 2), 'b': (2, 32)}}
    """
    plan = _plan(_ATTACH, quantized_apply)
    alpha = _checked_alpha(_ATTACH, alpha)

    def output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
        without = straight_through_output(site, operands, scope)
        adapter = scope.adapter(site)
        return without if adapter is None else _adapted(site, operands, without, adapter, alpha)

    function = quantized_apply._with(rewrite.Functions(output, straight_through_product))

    def adapted(adapters: Any, quantized_params: Mapping[str, Mapping[str, Any]], /, *inputs: Any) -> Any:
        _require_adapters(_ATTACH, plan, adapters)
        try:
            return function._called(quantized_params, inputs, {name: dict(pair) for name, pair in adapters.items()})
        except (RuntimeError, ValueError, TypeError) as error:
            function._explain({"adapters": adapters, "quantized_params": quantized_params, "inputs": inputs}, error)
            raise

    return adapted


@explain_array_errors_as(_MERGE, TransformError)
def merge(
    quantized_apply: QuantizedFunction,
    quantized_params: Mapping[str, Mapping[str, Any]],
    adapters: Any,
    *,
    alpha: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Adds adapters to the weights themselves, for those who do not want to keep them: the weights are quantized again.

    The weights of each site that has an adapter become ``dequantize(weights) + a @ b * (alpha / rank)``, quantized as the
    recipe of the function says, or in the type and the blocks of a checkpoint's weights that took their place. One layer at
    a time is dequantized, in float32.

    Quantizing again rounds once more: what an adapter has learnt is lost where it is smaller than half a step of the
    weights. In few bits, that may be most of it. Compare the loss before and after, or keep the adapters, which are exact.
    The ranges of static inputs stay as they are.

    Args:
      quantized_apply: the function that `quantize` returned.
      quantized_params: its parameters. They are not changed.
      adapters, alpha: as for `attach`.

    Returns:
      Quantized parameters of the same form, for `quantized_apply`.

    Raises:
      TransformError: as the function of `attach`, and an adapter of weights that another site uses, too, such as a table
        that is also looked up: that site would change.
      TransformTypeError: an argument of the wrong type.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> params, x = {"kernel": jnp.linspace(-1, 1, 1024).reshape(32, 32)}, jnp.ones((4, 32))
      >>> quantized_apply, quantized_params = transform.quantize(
      ...     lambda params, x: x @ params["kernel"], params, transform.weight_only_int4, x
      ... )
      >>> adapters = {"kernel": {"a": jnp.ones((32, 1)), "b": jnp.ones((1, 32))}}
      >>> merged = transform.adapters.merge(quantized_apply, quantized_params, adapters)
      >>> difference = quantized_apply(merged, x) - quantized_apply(quantized_params, x)
      >>> bool(abs(difference - 32).max() < 4)
      True
    """
    plan = _plan(_MERGE, quantized_apply)
    alpha = _checked_alpha(_MERGE, alpha)
    packed, static, floats = quantized_apply._parts(quantized_params)
    quantized_apply._types(rewrite.Resources(packed, static), ())  # asserts that all are arrays
    quantized_apply._require_types(quantized_apply.__name__, packed, static, floats)
    _require_adapters(_MERGE, plan, adapters)
    users: dict[str, list[str]] = {}
    for site in plan.sites.values():
        users.setdefault(site.stored, []).append(site.name)
    for site in plan.sites.values():
        if site.name not in adapters:
            continue
        others = [name for name in users[site.stored] if name != site.name]
        if others:
            message = f"the weights of {site.name} are those of {', '.join(others)} as well, which merging would change"
            raise TransformError(f"{_MERGE}: {message}: keep this adapter")
        packed[site.name] = _merged(site.storage, len(site.levels), alpha, packed[site.name], dict(adapters[site.name]))
    return {"sites": packed, "inputs": static, "float": floats}


def _plan(name: str, quantized_apply: Any) -> Plan:
    if not isinstance(quantized_apply, QuantizedFunction):
        wanted = "it must be the function that transform.quantize returned, itself and not under another transformation"
        raise TransformTypeError(f"{name}: quantized_apply is {described(quantized_apply)}; {wanted}")
    return quantized_apply._plan


def _checked_alpha(name: str, alpha: float | None) -> float | None:
    if alpha is None:
        return None
    with as_transform_errors():
        return number(name, "alpha", alpha, -_LARGEST, _LARGEST)


def _products(plan: Plan) -> dict[str, Site]:
    """The sites that can have an adapter, by name."""
    return {site.name: site for site in plan.sites.values() if site.kind == MATMUL}


def _matching(plan: Plan, patterns: str | Sequence[str]) -> list[Site]:
    """The products whose name or kind one of the patterns matches. Each pattern must match one."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not is_sequence(listed) or not all(isinstance(pattern, str) for pattern in listed):
        raise TransformTypeError(f"{_INIT}: sites is {shown(patterns)}; it must be a pattern of names, or a list of these")
    products = _products(plan)
    known_names = ", ".join(products) or "none"
    chosen = set()
    for pattern in listed:
        matching = {name for name in products if pattern == MATMUL or fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            raise TransformError(f"{_INIT}: sites has {pattern!r}, which matches no product; products: {known_names}")
        chosen |= matching
    if not chosen:
        raise TransformError(f"{_INIT}: sites is {shown(patterns)}, without a pattern; products: {known_names}")
    return [site for name, site in products.items() if name in chosen]


def _shape(plan: Plan, site: Site) -> tuple[int, ...]:
    """The shape of the weights as matrices: (*layers, batch, K, N), without the batch if there is none."""
    return (*plan.sizes(site), *layers.matrix_sizes(site.storage, site.weights.shape))


def _require_adapters(name: str, plan: Plan, adapters: Any) -> None:
    """Asserts that these are adapters of products, of the right shapes."""
    wanted = "a dict of the names of products, each with the float arrays 'a' and 'b', as transform.adapters.init makes it"
    if not isinstance(adapters, Mapping):
        raise TransformTypeError(f"{name}: adapters is {described(adapters)}; it must be {wanted}")
    products = _products(plan)
    for site_name, pair in adapters.items():
        if site_name not in products:
            known_names = ", ".join(products) or "none"
            raise TransformError(f"{name}: adapters has {shown(site_name)}, which is no product; products: {known_names}")
        where = f"{name}: adapters[{site_name!r}]"
        if not isinstance(pair, Mapping) or set(pair) != {"a", "b"}:
            raise TransformTypeError(f"{where} is {described(pair)}; it must be a dict with the arrays 'a' and 'b'")
        for factor, matrix in pair.items():
            dtype = getattr(matrix, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
                raise TransformTypeError(f"{where}[{factor!r}] is {described(matrix)}; it must be an array of floats")
            require_arrays(f"{where}[{factor!r}]", matrix)
        *leading, rows, columns = _shape(plan, products[site_name])
        a, b = (tuple(pair[factor].shape) for factor in "ab")
        rank = a[-1] if a else 0
        if a != (*leading, rows, rank) or b != (*leading, rank, columns) or not rank:
            right = f"{(*leading, rows, 'rank')} and {(*leading, 'rank', columns)}".replace("'", "")
            raise TransformError(f"{where} has the shapes {a} and {b}; they must be {right}, with a rank of at least 1")


def _factor(adapter: Mapping[str, Any], alpha: float | None) -> float:
    return 1.0 if alpha is None else alpha / adapter["a"].shape[-1]


def _adapted(
    site: Site, operands: Sequence[Any], output: jax.Array, adapter: Mapping[str, Any], alpha: float | None
) -> jax.Array:
    """The output of a site, with what its adapter adds."""
    x, which = operands[site.input_operand], compute.which_matrices(site, operands)
    dtype = compute.wider(x.dtype, adapter["a"].dtype, adapter["b"].dtype)

    def multiply(x: jax.Array, scale: None, adapter: Stored) -> jax.Array:
        return x @ adapter["a"] @ adapter["b"]

    matrices = {name: matrix.astype(dtype) for name, matrix in adapter.items()}
    if site.is_ragged:
        assert which is not None
        product = lax.ragged_dot(lax.ragged_dot(x.astype(dtype), matrices["a"], which), matrices["b"], which)
    else:
        product = compute.matrix_product(site, multiply, x.astype(dtype), None, matrices, which)
    product = product * dtype.type(_factor(adapter, alpha))
    wide = compute.wider(dtype, output.dtype)
    total = (output.astype(wide) + product.astype(wide)).astype(output.dtype)
    # -0.0 + 0.0 would be 0.0: the bits of the quantized function are kept.
    return straight_through(jnp.where(product == 0, output, total), total)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _merged(storage: Storage, num_levels: int, alpha: float | None, stored: Stored, adapter: dict[str, Any]) -> Stored:
    """The weights of a site with those of an adapter, quantized and packed, one layer at a time."""

    def merge_layer(layer: tuple[Stored, dict[str, jax.Array]]) -> Stored:
        stored, adapter = layer
        a, b = (adapter[name].astype(jnp.float32) for name in "ab")
        update = a @ b * jnp.float32(_factor(adapter, alpha))
        return prepared_weights.updated(storage.format, storage.preparation, stored, update)

    merge = merge_layer
    for _ in range(num_levels):
        merge = functools.partial(jax.lax.map, merge)
    return merge((stored, adapter))
