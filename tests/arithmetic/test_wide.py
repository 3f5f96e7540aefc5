"""`jquant.arithmetic.wide` against Python's integers."""

import jax
import numpy as np

from jquant.arithmetic import wide

BITS, COUNT = 96, 2000


def words(numbers: list[int], count: int = 3) -> wide.Words:
    return tuple(np.array([number >> 32 * index & 0xFFFFFFFF for number in numbers], np.uint32) for index in range(count))


def numbers(words: wide.Words) -> list[int]:
    return [sum(int(word) << 32 * index for index, word in enumerate(number)) for number in zip(*words, strict=True)]


def draw(rng: np.random.Generator) -> list[int]:
    """Numbers of every length, and then numbers with long carries."""
    drawn = [
        int.from_bytes(rng.bytes(12), "little") >> (BITS - length) for length in rng.integers(0, BITS + 1, COUNT).tolist()
    ]
    return drawn + rng.permutation([2**BITS - 1, 2**BITS - 2**32, 1, 0, 2**32, 2**64 - 1, 2**95] * 30).tolist()


@jax.jit
def operations(a, b, count):
    numbers = wide.add(a, b), wide.negate(a), wide.product(a[0], b), wide.shift_left(a, count), wide.shift_right(a, count)
    return numbers, wide.leading_zeros(a), wide.is_negative(a)


def test_operations():
    rng = np.random.default_rng(0)
    a, b = draw(rng), draw(rng)
    shifts = [index % (BITS + 1) for index in range(len(a))]
    results, zeros, is_negative = operations(words(a), words(b), np.array(shifts, np.int32))
    expected = [
        [(x + y) % 2**BITS for x, y in zip(a, b, strict=True)],
        [-x % 2**BITS for x in a],
        [x % 2**32 * y for x, y in zip(a, b, strict=True)],
        [(x << shift) % 2**BITS for x, shift in zip(a, shifts, strict=True)],
        [x >> shift for x, shift in zip(a, shifts, strict=True)],
    ]
    for result, formula in zip(results, expected, strict=True):
        assert numbers(result) == formula
    assert zeros.tolist() == [BITS - x.bit_length() for x in a]
    assert is_negative.tolist() == [x >= 2 ** (BITS - 1) for x in a]
