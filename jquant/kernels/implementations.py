"""What the entries to several implementations share: where each kernel runs, its module, and what takes its place."""

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jquant.modes import Implementation

_PLATFORMS = {Implementation.MOSAIC_TPU: "tpu", Implementation.MOSAIC_GPU: "cuda"}
# What None stands for: a kernel where it has been run on the platform and was faster, otherwise XLA's product.
DEFAULTS = {"cpu": Implementation.XLA, "tpu": Implementation.XLA, "cuda": Implementation.XLA}


def default(platform: str) -> Implementation:
    """The implementation that None stands for in a program for `platform`."""
    return DEFAULTS.get(platform, Implementation.XLA)


def module_of(implementation: Implementation, platform: str, modules: Mapping[Implementation, str]) -> ModuleType:
    """The module of a kernel, out of `modules`, for a program for `platform`; imported only now."""
    home = _PLATFORMS[implementation]
    if platform != home:
        raise NotImplementedError(f"implementation {implementation} is for {home}; this program is for {platform}")
    try:
        return importlib.import_module(modules[implementation])
    except ImportError as error:
        raise NotImplementedError(
            f"implementation {implementation} needs a part of Pallas that cannot be imported: {error}"
        ) from error


@functools.cache
def warn_of_partitioning(implementation: Implementation, where: str) -> None:
    """Says, once, that XLA's product takes the place of a kernel that was named, and `where` it does not."""
    warnings.warn(
        f"implementation {implementation} cannot be partitioned by XLA, whose own product takes its place in programs "
        f"over several devices; {where}, the kernel runs on each shard",
        stacklevel=2,
    )


def unless_declined(kernel: Callable[..., jax.Array], otherwise: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`kernel`, or XLA's product if the kernel declines."""

    def function(*operands, **parameters):
        try:
            return kernel(*operands, **parameters)
        except NotImplementedError:
            return otherwise(*operands, **parameters)

    return function


def register_lowering(primitive: Primitive, lower: Callable) -> None:
    """Registers ``lower(platform, ...)`` for each platform, and for all that have no default."""
    for platform in DEFAULTS:
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    mlir.register_lowering(primitive, functools.partial(lower, "other"))
