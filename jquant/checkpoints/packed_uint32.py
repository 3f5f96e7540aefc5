"""Integers of a few bits, packed into 32-bit words, lowest bits first."""

import numpy as np


def unpack(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """The integers, as uint8. Each word holds 32 / bits neighbours along `axis`, which is -1 or -2."""
    words = words.view(np.uint32)
    per_word = 32 // bits
    shape = (*words.shape, per_word) if axis == -1 else (*words.shape[:-1], per_word, words.shape[-1])
    integers = np.empty(shape, np.uint8)
    for place in range(per_word):
        part = (words >> np.uint32(bits * place)) & np.uint32(2**bits - 1)
        integers[(..., place) if axis == -1 else (..., place, slice(None))] = part
    sizes = list(words.shape)
    sizes[axis] *= per_word
    return integers.reshape(sizes)


def plus_one(words: np.ndarray, bits: int) -> np.ndarray:
    """Adds 1 to each integer of each word, by one addition per word: an integer that overflows carries into the next."""
    return words.view(np.uint32) + np.uint32((2**32 - 1) // (2**bits - 1))
