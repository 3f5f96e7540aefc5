"""Integers of a few bits, packed into 32-bit words, lowest bits first."""

import numpy as np


def unpack(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """The integers, as uint8. Each word holds 32 / bits neighbours along `axis`, which is -1 or -2."""
    words = words.view(np.uint32)
    each = 32 // bits
    shape = (*words.shape, each) if axis == -1 else (*words.shape[:-1], each, words.shape[-1])
    found = np.empty(shape, np.uint8)
    for place in range(each):
        part = (words >> np.uint32(bits * place)) & np.uint32(2**bits - 1)
        found[(..., place) if axis == -1 else (..., place, slice(None))] = part
    sizes = list(words.shape)
    sizes[axis] *= each
    return found.reshape(sizes)


def plus_one(words: np.ndarray, bits: int) -> np.ndarray:
    """Words with 1 added to each of their integers: to the word as a whole, so that an integer that overflows carries."""
    return words.view(np.uint32) + np.uint32((2**32 - 1) // (2**bits - 1))
