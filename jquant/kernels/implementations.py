"""Implementations of a product by platform: the defaults, the kernels' modules, and XLA where a kernel does not run."""

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jquant.kernels.native import shared_library
from jquant.lowering.partitioned import is_for_others
from jquant.modes import Implementation

_PLATFORMS = {Implementation.NATIVE: "cpu", Implementation.MOSAIC_TPU: "tpu", Implementation.MOSAIC_GPU: "cuda"}
# For `implementation=None`: a kernel if it has been run on the platform and was faster, otherwise XLA's product.
DEFAULTS = {"cpu": Implementation.NATIVE, "tpu": Implementation.XLA, "cuda": Implementation.XLA}


def default(platform: str) -> Implementation:
    """The implementation for `implementation=None` in a program for `platform`."""
    implementation = DEFAULTS.get(platform, Implementation.XLA)
    if implementation is Implementation.NATIVE and not shared_library.is_usable():
        return Implementation.XLA
    return implementation


def is_native_default() -> bool:
    """Whether programs for a CPU use the library unless they ask for something else."""
    return default("cpu") is Implementation.NATIVE


def exportable(implementation: Implementation, context: mlir.LoweringRuleContext) -> Implementation:
    """`implementation`, or XLA's in place of the native one in programs for other machines."""
    return Implementation.XLA if implementation is Implementation.NATIVE and is_for_others(context) else implementation


def module_of(implementation: Implementation, platform: str, modules: Mapping[Implementation, str]) -> ModuleType:
    """The module of a kernel, out of `modules`, for a program for `platform`; imported when it is needed."""
    supported = _PLATFORMS[implementation]
    if platform != supported:
        raise NotImplementedError(f"implementation {implementation} is for {supported}; this program is for {platform}")
    try:
        return importlib.import_module(modules[implementation])
    except ImportError as error:
        raise NotImplementedError(
            f"implementation {implementation} needs a package that cannot be imported: {error}"
        ) from error


@functools.cache
def warn_of_partitioning(implementation: Implementation, where: str) -> None:
    """Warns, once, that XLA's product replaces a kernel that was asked for, and says `where` the kernel would run."""
    warnings.warn(
        f"implementation {implementation} cannot be partitioned by XLA, whose own product takes its place in programs "
        f"over several devices; {where}, the kernel runs on each shard",
        stacklevel=2,
    )


def unless_declined(kernel: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, or `otherwise` if the kernel raises `NotImplementedError`."""

    def function(*operands, **parameters):
        try:
            return kernel(*operands, **parameters)
        except NotImplementedError:
            return otherwise(*operands, **parameters)

    return function


def register_lowering(primitive: Primitive, lower: Callable) -> None:
    """Registers ``lower(platform, ...)`` for each platform with a default, and ``lower("other", ...)`` for all others."""
    for platform in DEFAULTS:
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    mlir.register_lowering(primitive, functools.partial(lower, "other"))
