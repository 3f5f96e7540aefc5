"""Finds jquant-native, and registers its functions with XLA, when it is first needed."""

import ctypes
import functools
import importlib
import os
import threading
import warnings
from typing import Any, NamedTuple

import jax

from jquant.lowering import cpu_features

PACKAGE = "jquant_native"
VARIABLE = "JQUANT_NATIVE_ISA"  # of the environment: an instruction set, or "none"
PRODUCT = "jquant_product"
BLOCK_PRODUCT = "jquant_block_product"
WEIGHT_ONLY = "jquant_weight_only"
CONVOLUTION = "jquant_convolution"
DYNAMIC_QUANTIZE = "jquant_dynamic_quantize"
_TARGETS = PRODUCT, BLOCK_PRODUCT, WEIGHT_ONLY, CONVOLUTION, DYNAMIC_QUANTIZE


class Library(NamedTuple):
    """What became of looking for the library.

    Attributes:
      instruction_set: the name of the one that is used, or None if the library cannot be used.
      obstacle: why it cannot be used, or None.
      targets: the names of the functions that it has: an older library lacks some.
    """

    instruction_set: str | None
    obstacle: str | None
    targets: frozenset[str] = frozenset()


_lock = threading.Lock()


def load() -> Library:
    """The library, loaded and registered once. Warns, once, if it is installed and cannot be used."""
    with _lock:
        return _load_once()


@functools.cache
def _load_once() -> Library:
    if os.environ.get(VARIABLE) == "none":
        return Library(None, f"{VARIABLE} is none, which switches jquant-native off")
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        return Library(None, "the package jquant-native is not installed (pip install ./native)")
    try:
        functions = ctypes.CDLL(str(package.LIBRARY))
        functions.jquant_instruction_set.restype = ctypes.c_char_p
        instruction_set = functions.jquant_instruction_set()
        if instruction_set is None:
            raise OSError("JQUANT_NATIVE_ISA names no instruction set that this processor has")
        known = frozenset(target for target in _TARGETS if hasattr(functions, target))
        for target in known:
            handler = jax.ffi.pycapsule(getattr(functions, target))
            jax.ffi.register_ffi_target(target, handler, platform="cpu")
    except Exception as error:  # of the loader, or of XLA if it refuses the library
        obstacle = f"jquant-native cannot be used: {error}"
        warnings.warn(f"{obstacle}; XLA's products take its place", stacklevel=2)
        return Library(None, obstacle)
    return Library(instruction_set.decode(), None, known)


def require(target: str, *sizes: Any) -> None:
    """Raises `NotImplementedError` unless the library has a function, and can be used for arrays of these sizes."""
    library = load()
    if library.obstacle is not None:
        raise NotImplementedError(f"implementation native: {library.obstacle}")
    if target not in library.targets:
        raise NotImplementedError(f"implementation native: this jquant-native has no {target}; install a newer one")
    if not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError("implementation native does not support symbolic sizes")


def is_default() -> bool:
    """Whether programs for a CPU use the library unless they ask for something else.

    Not on processors that multiply tiles of int8 (AMX), where nobody has compared it with XLA, which uses them.
    """
    return load().instruction_set is not None and not cpu_features.has_amx_int8()
