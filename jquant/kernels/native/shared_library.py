"""Finds jquant-native, and registers its functions with XLA, when it is first needed."""

import ctypes
import functools
import importlib
import itertools
import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

PACKAGE = "jquant_native"
VARIABLE = "JQUANT_NATIVE_ISA"  # of the environment: an instruction set, or "none"
PRODUCT = "jquant_product"
BLOCK_PRODUCT = "jquant_block_product"
CODED_BLOCK_PRODUCT = "jquant_coded_block_product"
WEIGHT_ONLY = "jquant_weight_only"
CONVOLUTION = "jquant_convolution"
DYNAMIC_QUANTIZE = "jquant_dynamic_quantize"
ELEMENTWISE = "jquant_elementwise"
CONCATENATE = "jquant_concatenate"
# Those that are known here.
_VERSIONS = {
    PRODUCT: (1, 2),
    BLOCK_PRODUCT: (1,),
    CODED_BLOCK_PRODUCT: (1,),
    WEIGHT_ONLY: (1,),
    CONVOLUTION: (1, 2),
    DYNAMIC_QUANTIZE: (1,),
    ELEMENTWISE: (1,),
    CONCATENATE: (1,),
}


class Function(NamedTuple):
    """A function of the library, registered with XLA."""

    name: str
    version: int

    @property
    def target(self) -> str:
        return f"{self.name}.{self.version}"


class Library(NamedTuple):
    """What became of looking for the library.

    Attributes:
      instruction_set: the name of the one that is used, or None if the library cannot be used.
      obstacle: why it cannot be used, or None.
      functions: each in the newest version that is known here; an older library, or a newer one, lacks some.
    """

    instruction_set: str | None
    obstacle: str | None
    functions: tuple[Function, ...] = ()


class _Listed(ctypes.Structure):
    """`jquant_function` of native/include/jquant_native.h"""

    _fields_ = (("name", ctypes.c_char_p), ("version", ctypes.c_int), ("handler", ctypes.c_void_p))


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
        library = ctypes.CDLL(str(package.LIBRARY))
        library.jquant_instruction_set.restype = ctypes.c_char_p
        instruction_set = library.jquant_instruction_set()
        if instruction_set is None:
            raise OSError("JQUANT_NATIVE_ISA names no instruction set that this processor has")
        functions = tuple(map(_registered, _newest(_listed(library))))
    except Exception as error:  # of the loader, or of XLA if it refuses the library
        obstacle = f"jquant-native cannot be used: {error}"
        warnings.warn(f"{obstacle}; XLA's products take its place", stacklevel=2)
        return Library(None, obstacle)
    return Library(instruction_set.decode(), None, functions)


def _newest(listed: Iterable[tuple[Function, Any]]) -> Iterable[tuple[Function, Any]]:
    """One version of each function."""
    by_version = sorted(listed, key=lambda each: each[0].version)
    return {function.name: (function, handler) for function, handler in by_version}.values()


def _registered(listed: tuple[Function, Any]) -> Function:
    function, handler = listed
    jax.ffi.register_ffi_target(function.target, jax.ffi.pycapsule(handler), platform="cpu")
    return function


def _listed(library: Any) -> Iterator[tuple[Function, Any]]:
    """The functions that are known here, and their handlers. The first libraries had no list of them."""
    if not hasattr(library, "jquant_functions"):
        yield from ((Function(name, 1), getattr(library, name)) for name in _VERSIONS if hasattr(library, name))
        return
    library.jquant_functions.restype = ctypes.POINTER(_Listed)
    for function in itertools.takewhile(lambda function: function.name, library.jquant_functions()):
        name = function.name.decode()
        if function.version in _VERSIONS.get(name, ()):
            yield Function(name, function.version), ctypes.c_void_p(function.handler)


def require(name: str, *sizes: Any) -> Function:
    """The function of that name, in the newest version that is known here and to the library.

    Raises:
      NotImplementedError: the library has none, or cannot be used for arrays of these sizes.
    """
    library = load()
    if library.obstacle is not None:
        raise NotImplementedError(f"implementation native: {library.obstacle}")
    function = next((function for function in library.functions if function.name == name), None)
    if function is None:
        known = " or ".join(f"{name}.{version}" for version in _VERSIONS[name])
        raise NotImplementedError(f"implementation native: this jquant-native has no {known}; install that of this jquant")
    if not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError("implementation native does not support symbolic sizes")
    return function


def is_usable() -> bool:
    """Whether it is installed, and this processor and this version of jax can use it."""
    return load().instruction_set is not None
