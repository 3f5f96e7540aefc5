"""What calibration observes of the inputs of products whose weights are prepared for them."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jquant.calibration import Range
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.transform.observations import observed_uses
from jquant.transform.program.parameters import described
from jquant.transform.program.plan import Plan, Site
from jquant.transform.recipes.preparation import Awq, SmoothQuant


class InputStatistics(NamedTuple):
    """What `calibrate` observed of the input of a site, float32; None: nothing that its scheme needs.

    With X the rows of all batches, as the matrix (rows, K) that the product multiplies. Stacked layers come first.

    Attributes:
      range: the range of a static input.
      products: ``X^T X``, of shape (K, K), or (batch, K, K) for a product of batches of matrices.
      largest: ``max|x|`` of each channel, of shape (K,).
      mean: ``mean|x|`` of each channel, of shape (K,).
      errors: ``X^T (Y - X)``, of the shape of `products`, with Y the same rows in the float network.
    """

    range: Range | None = None
    products: Any = None
    largest: Any = None
    mean: Any = None
    errors: Any = None


class Sums(NamedTuple):
    """The statistics of the rows so far, of one layer; `products` and `errors` are None if no scheme needs them."""

    rows: jax.Array  # their number, int32
    products: jax.Array | None
    largest: jax.Array
    magnitudes: jax.Array
    errors: jax.Array | None


def initial(plan: Plan, site: Site) -> Sums:
    """The sums before the first batch, for all layers."""
    batch, depth = site.matrix_batch, site.depth
    sizes = plan.sizes(site)
    preparation = site.storage.preparation
    products = jnp.zeros((*sizes, *batch, depth, depth), jnp.float32)
    return Sums(
        rows=jnp.zeros(sizes, jnp.int32),
        products=products if preparation.needs_products else None,
        largest=jnp.zeros((*sizes, depth), jnp.float32),
        magnitudes=jnp.zeros((*sizes, depth), jnp.float32),
        errors=products if preparation.needs_errors else None,
    )


def updated(sums: Sums, rows: jax.Array, exact: jax.Array | None = None) -> Sums:
    """The sums after some more rows: a matrix (rows, K), or a batch of these; `exact` are those of the float network."""
    rows = rows.astype(jnp.float32)
    magnitudes, over = jnp.abs(rows), tuple(range(rows.ndim - 1))
    products, errors = sums.products, sums.errors
    if products is not None:
        products = products + _product(rows, rows, products.ndim)
    if errors is not None:
        assert exact is not None
        errors = errors + _product(rows, exact.astype(jnp.float32) - rows, errors.ndim)
    return Sums(
        rows=sums.rows + math.prod(rows.shape[:-1]),
        products=products,
        largest=jnp.maximum(sums.largest, magnitudes.max(over, initial=0)),
        magnitudes=sums.magnitudes + magnitudes.sum(over),
        errors=errors,
    )


def _product(rows: jax.Array, others: jax.Array, rank: int) -> jax.Array:
    """``rows^T others``, of that rank: of each matrix of a batch, or of all of them."""
    subscripts = "...rk,...rl->...kl" if rank == rows.ndim else "...rk,...rl->kl"
    sharding = _whole(jax.typeof(rows).sharding)
    return jnp.einsum(subscripts, rows, others, precision=lax.Precision.HIGHEST, out_sharding=sharding)


def _whole(sharding: Any) -> NamedSharding | None:
    """What explicit axes of a mesh that split the rows leave of their sums; None if there are none."""
    mesh = sharding.mesh
    return NamedSharding(mesh, PartitionSpec()) if not mesh.empty and mesh.are_all_axes_explicit else None


def finished(sums: Sums) -> InputStatistics:
    """The statistics of all rows."""
    count = jnp.maximum(sums.rows, 1).astype(jnp.float32)
    mean = sums.magnitudes / count[..., None]
    return InputStatistics(products=sums.products, largest=sums.largest, mean=mean, errors=sums.errors)


def require_memory(name: str, plan: Plan, sites: Sequence[Site]) -> None:
    """Asserts that the sums of these sites fit into the memory of a device. Errors begin with `name`."""
    sizes = {site.name: _bytes(jax.eval_shape(lambda site=site: initial(plan, site))) for site in sites}
    total, available = sum(sizes.values()), _memory()
    if total <= available:
        return
    largest = max(sizes, key=sizes.__getitem__)
    text = f"X^T X of the inputs of {len(sizes)} sites takes {total / 1e9:.1f} GB, and there are {available / 1e9:.1f} GB"
    advice = (
        f"{largest} alone takes {sizes[largest] / 1e9:.1f} GB: calibrate some of the sites at a time, or round it to nearest"
    )
    raise TransformError(f"{name}: {text}; {advice}")


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _memory() -> int:
    """The bytes of memory of the first device, or of the machine if the device does not tell."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def entry(where: str, calibration: Mapping[str, Any], name: str) -> Any:
    """What a calibration has for a site. Errors begin with `where`."""
    if name not in calibration:
        known_names = ", ".join(map(str, calibration)) or "none"
        raise TransformError(f"{where} is missing; calibration has: {known_names}. Calibrate with the same recipe")
    return calibration[name]


def range_of(observed: Any) -> Any:
    """The range of a static input, from an entry of a calibration."""
    return observed.range if isinstance(observed, InputStatistics) else observed


def real_numbers(value: Any) -> np.ndarray:
    """An entry as float32. Raises an error of NumPy, or a TypeError, for anything but real numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{array.dtype} is no type of real numbers")
    with np.errstate(over="ignore"):  # infinities are refused
        return array.astype(np.float32)


def of_sites(name: str, plan: Plan, calibration: Mapping[str, Any] | None) -> dict[str, InputStatistics]:
    """The statistics that prepare the weights of each site that stores some, by its name. Errors begin with `name`."""
    sites = [site for site in plan.stored() if site.needs_statistics]
    if sites and calibration is None:
        message = f"the weights of some sites, such as {sites[0].name}, are {sites[0].storage.preparation.observing}"
        advice = "pass what transform.calibrate returned for this recipe"
        raise TransformError(f"{name}: {message}, which needs calibration=: {advice}")
    entries = observed_uses.statistics(name, plan, calibration or {})
    return {site.name: _of_site(name, plan, site, entries) for site in sites}


def _of_site(name: str, plan: Plan, site: Site, calibration: Mapping[str, Any]) -> InputStatistics:
    where = f"{name}: calibration[{site.statistics!r}], of the input of {site.name},"
    given = entry(where, calibration, site.statistics)
    if not isinstance(given, InputStatistics):
        raise TransformTypeError(
            f"{where} is {described(given)}; it must be a transform.InputStatistics, with X^T X or maxima. "
            "Calibrate with the same recipe"
        )
    wanted = placeholder(plan, site)
    fields = {}
    for field, type in wanted._asdict().items():
        if type is None:
            continue
        value = getattr(given, field)
        if value is None:
            raise TransformError(f"{where} has no {field}. Calibrate with the same recipe")
        try:
            array = real_numbers(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TransformTypeError(f"{where} has {field}={shown(value)}; it must be an array") from error
        if array.shape != type.shape:
            raise TransformError(f"{where} has {field} of shape {array.shape}; it must be {type.shape}")
        if not np.isfinite(array).all():
            raise TransformError(f"{where} has {field} that are not all finite: are there infinities or NaN in the batches?")
        fields[field] = jnp.asarray(value, jnp.float32)
    return InputStatistics(**fields)


def needed(site: Site, observed: InputStatistics) -> InputStatistics:
    """The statistics that the weights of a site need, among those that were observed."""
    smoothing = site.storage.preparation.smoothing
    return InputStatistics(
        products=observed.products if site.storage.preparation.needs_products else None,
        largest=observed.largest if isinstance(smoothing, SmoothQuant) else None,
        mean=observed.mean if isinstance(smoothing, Awq) else None,
        errors=observed.errors if site.storage.preparation.needs_errors else None,
    )


def placeholder(plan: Plan, site: Site) -> InputStatistics:
    """The types of the statistics that the weights of a site need."""
    return needed(site, jax.eval_shape(lambda: finished(initial(plan, site))))


def placeholders(plan: Plan) -> dict[str, InputStatistics]:
    """`placeholder` of each site that needs statistics."""
    return {site.name: placeholder(plan, site) for site in plan.stored() if site.needs_statistics}
