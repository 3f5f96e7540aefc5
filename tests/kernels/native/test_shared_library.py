"""Looking for jquant-native: installed or not, loadable or not, accepted by XLA or not."""

import concurrent.futures
import ctypes
import ctypes.util
import functools
import os
import re
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.native import requires_native

import jquant
from jquant.kernels import implementations
from jquant.kernels.native import shared_library
from jquant.modes import Implementation

A, B = np.full((3, 5), 200, np.uint8), np.full((5, 2), -100, np.int8)
PRODUCT = np.full((3, 2), 5 * 200 * -100, np.int32)


@pytest.fixture(autouse=True)
def not_looked_for(monkeypatch):
    """The library has not been looked for, and is again what it was after the test."""
    monkeypatch.setattr(shared_library, "_load_once", functools.cache(shared_library._load_once.__wrapped__))


@pytest.fixture
def install(monkeypatch):
    """Installs a package jquant_native whose library is a file with that name."""

    def function(path):
        package = types.ModuleType(shared_library.PACKAGE)
        package.LIBRARY = path
        monkeypatch.setitem(sys.modules, shared_library.PACKAGE, package)

    return function


@pytest.fixture
def load(install, monkeypatch):
    """Makes the loader return a library whose functions are those of Python."""

    def function(instruction_set, handler):
        name = instruction_set and ctypes.create_string_buffer(instruction_set)
        functions = types.SimpleNamespace(
            jquant_instruction_set=ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: name and ctypes.addressof(name)),
            jquant_product=ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler),
        )
        install("libjquant_native.so")
        monkeypatch.setattr(ctypes, "CDLL", lambda path: functions)

    return function


def of_a_later_xla(frame):
    """A handler that tells XLA, which asks for it, that it was built for version 0.99 of the interface.

    The offsets are those of the structures in xla/ffi/api/c_api.h, each of which begins with its size.
    """
    extension = ctypes.c_void_p.from_address(frame + 8).value
    metadata = ctypes.c_void_p.from_address(extension + 24).value
    ctypes.c_int.from_address(metadata + 28).value = 99


def check_that_xla_takes_its_place(obstacle):
    """Without another warning; by name, the error says why."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not shared_library.is_usable()
        assert implementations.default("cpu") is Implementation.XLA
        program = jax.jit(lambda a, b: jquant.matmul_integer(a, b)).lower(A, B)
        assert f"@{shared_library.PRODUCT}" not in program.as_text()
        np.testing.assert_array_equal(program.compile()(A, B), PRODUCT)
        with pytest.raises(NotImplementedError, match=f"^implementation native: {obstacle}"):
            jax.jit(lambda a, b: jquant.matmul_integer(a, b, implementation="native"))(A, B)


def check_one_warning(obstacle):
    """When the library is first looked for, from however many threads."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len({*threads.map(lambda _: shared_library.load(), range(8)), shared_library.load()}) == 1
    (warning,) = caught
    assert re.fullmatch(f"{obstacle}.*; XLA's products take its place", str(warning.message))
    check_that_xla_takes_its_place(obstacle)


def test_not_installed(monkeypatch):
    """Nobody is warned of what is optional."""
    monkeypatch.setitem(sys.modules, shared_library.PACKAGE, None)
    check_that_xla_takes_its_place(r"the package jquant-native is not installed \(pip install ./native\)$")


def test_switched_off(load, monkeypatch):
    """Without a warning, and without a look at the library."""
    load(b"portable", of_a_later_xla)
    monkeypatch.setenv(shared_library.VARIABLE, "none")
    check_that_xla_takes_its_place("JQUANT_NATIVE_ISA is none, which switches jquant-native off$")


def test_a_package_that_lacks_another(monkeypatch, tmp_path):
    """An error within the package is no sign that it is missing."""
    (tmp_path / "jquant_native.py").write_text("import a_package_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, shared_library.PACKAGE, raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        shared_library.load()


def test_no_file(install, tmp_path):
    install(tmp_path / "libjquant_native.so")
    check_one_warning("jquant-native cannot be used: ")


def test_a_broken_file(install, tmp_path):
    path = tmp_path / "libjquant_native.so"
    path.write_bytes(b"\x7fELF, but nothing else")
    install(path)
    check_one_warning("jquant-native cannot be used: ")


def test_a_library_of_something_else(install):
    """A shared library without the functions."""
    install(ctypes.util.find_library("m") or pytest.fail("no library to load"))
    check_one_warning("jquant-native cannot be used: .*jquant_instruction_set")


def test_an_unknown_instruction_set(load):
    load(None, lambda frame: None)
    check_one_warning("jquant-native cannot be used: JQUANT_NATIVE_ISA names no instruction set")


def test_a_library_that_xla_refuses(load):
    load(b"portable", of_a_later_xla)
    check_one_warning(r"jquant-native cannot be used: .*0\.99")


@requires_native
def test_an_environment_that_names_no_instruction_set():
    program = """
import numpy as np, jquant
for a in np.ones((2, 3, 4), np.uint8), np.ones((5, 3, 4), np.uint8):
    print(jquant.matmul_integer(a, a.swapaxes(1, 2)).sum())
"""
    environment = {**os.environ, "JQUANT_NATIVE_ISA": "nonsense"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert result.stdout.split() == ["72", "180"], result.stderr
    assert len(re.findall("UserWarning: jquant-native cannot be used: JQUANT_NATIVE_ISA names no", result.stderr)) == 1


@requires_native
def test_installed():
    """It is the default, and can be asked for by name."""
    library = shared_library.load()
    assert library.obstacle is None
    assert library.instruction_set == (os.environ.get("JQUANT_NATIVE_ISA") or library.instruction_set)
    program = jax.jit(lambda a, b: jquant.matmul_integer(a, b, implementation="native")).lower(A, B)
    assert f"custom_call @{shared_library.PRODUCT}" in program.as_text()
    np.testing.assert_array_equal(program.compile()(A, B), PRODUCT)
    assert shared_library.is_usable()
    assert implementations.default("cpu") is Implementation.NATIVE


@requires_native
@pytest.mark.parametrize("name", [None, "native"])
def test_exported_programs_have_xlas_product(name):
    """Another machine may run them; sizes may be symbolic."""
    (rows,) = export.symbolic_shape("rows")
    multiply = jax.jit(lambda a: jquant.matmul_integer(a, B, implementation=name))
    for size in (rows, A.shape[0]):
        program = export.export(multiply)(jax.ShapeDtypeStruct((size, A.shape[1]), jnp.uint8))
        assert f"@{shared_library.PRODUCT}" not in program.mlir_module()
        np.testing.assert_array_equal(program.call(A), PRODUCT)
