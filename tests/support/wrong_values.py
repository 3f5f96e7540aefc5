"""Values that take the place of arguments of `jquant.transform`, by name. Most are wrong for most arguments."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant import transform
from jquant.calibration import Range

_ROWS = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)

PLAIN = {
    "None": None,
    "a number": 3,
    "a string": "static",
    "a list": ["*"],
    "an object": object(),
    "a set": {1},
    "bytes": b"\0",
    "NaN": float("nan"),
    "strings": np.array(["a"]),
    "objects": np.array([object()]),
    "a class": transform.Scheme,
    "an integer of many digits": 10**400,
}
WRONG = {
    **PLAIN,
    "0": 0,
    "-1": -1,
    "True": True,
    "1.5": 1.5,
    "infinity": float("inf"),
    "a complex number": 1j,
    "no text": "",
    "no list": [],
    "no tuple": (),
    "no dict": {},
    "a dict": {"w": 3},
    "a dict of None": {"w": None},
    "a dict of text": {"w": "a"},
    "a dict of lists": {"w": [_ROWS]},
    "keys that are not text": {1: _ROWS},
    "keys of two types": {1: _ROWS, "w": _ROWS},
    "a list of arrays": [_ROWS],
    "a range": range(3),
    "an array": _ROWS,
    "integers": _ROWS.astype(np.int32),
    "a vector": _ROWS[0],
    "columns": _ROWS[:, :3],
    "complex numbers": _ROWS.astype(np.complex64),
    "bytes in another order": _ROWS.astype(">f4"),
    "float0": np.zeros((2, 8), jax.dtypes.float0),
    "a masked array": np.ma.masked_array(_ROWS, mask=True),
    "dates": np.ones((2, 8), "M8[s]"),
    "an array of no dimensions": np.array(1),
    "a number of JAX": jnp.float32(1),
    "a truth value of JAX": jnp.bool_(True),
    "a complex number of JAX": jnp.complex64(1),
    "a type": jax.ShapeDtypeStruct((2, 8), np.float32),
    "a dtype": np.dtype("float32"),
    "a key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(0), 3),
    "a function": lambda *arguments: arguments,
    "a function that returns None": lambda *arguments: None,
    "a Scheme": transform.Scheme(),
    "a Recipe": transform.Recipe([("*", transform.Scheme())], smallest=1),
    "ranges of complex numbers": {"w": Range(1j, 1)},
    "ranges of text": {"w": Range("a", "b")},
    "ranges of None": {"w": Range(None, None)},
    "quantized parameters of nothing": {"sites": {}, "inputs": {}, "float": {}},
    "quantized parameters of None": {"sites": None, "inputs": None, "float": None},
}
