"""Runs programs of `jquant.host` in a process that has jax and jquant-native, but not jquant: python host_process.py FOLDER.

For each NAME.program of the folder, NAME.inputs.npz has the leaves, and NAME.outputs.npz gets the results.
"""

import ctypes
import sys
from pathlib import Path

sys.modules["jquant"] = None

import jax  # noqa: E402
import jquant_native  # noqa: E402
import numpy as np  # noqa: E402


class Listed(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("version", ctypes.c_int), ("handler", ctypes.c_void_p))


library = ctypes.CDLL(str(jquant_native.LIBRARY))
library.jquant_functions.restype = ctypes.POINTER(Listed)
for listed in library.jquant_functions():
    if listed.name is None:
        break
    handler = jax.ffi.pycapsule(ctypes.c_void_p(listed.handler))
    jax.ffi.register_ffi_target(f"{listed.name.decode()}.{listed.version}", handler, platform="cpu")

for path in Path(sys.argv[1]).glob("*.program"):
    program = jax.export.deserialize(path.read_bytes())
    with np.load(path.with_suffix(".inputs.npz")) as arrays:
        inputs = [jax.numpy.asarray(array) for array in arrays.values()]
    np.savez(path.with_suffix(".outputs.npz"), *jax.jit(program.call)(*inputs))
