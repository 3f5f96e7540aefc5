"""Integers of fewer than 8 bits, packed into bytes."""

import numpy as np
from jax.numpy import iinfo


def pack_integers(x):
    """Packs integers into bytes, the first in the lowest bits; zeros fill the last byte of each row."""
    x = np.asarray(x)
    bits = iinfo(x.dtype).bits
    count = 8 // bits
    unsigned = x.astype(np.int64) % 2**bits
    padded = np.concatenate([unsigned, np.zeros((*x.shape[:-1], -x.shape[-1] % count), np.int64)], axis=-1)
    return np.sum([padded[..., place::count] * 2 ** (bits * place) for place in range(count)], axis=0).astype(np.uint8)


def unpack_integers(packed, dtype, size):
    """The inverse of `pack_integers`; `size` is the number of integers in a row."""
    bits = iinfo(dtype).bits
    places = np.arange(size)
    unsigned = packed[..., places * bits // 8].astype(np.int64) // 2 ** (places * bits % 8) % 2**bits
    return np.where(unsigned > iinfo(dtype).max, unsigned - 2**bits, unsigned).astype(dtype)
