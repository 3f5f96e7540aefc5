"""Quantized networks drawn at random, against NumPy: their outputs, and the integers at each site."""

import pytest
from support.random_networks import FIRST, assert_equal_to_numpy

NETWORKS, GATE, CHUNK = 2000, 20, 10  # how many are drawn in all, in the gate and in each test, by each version of JAX


def chunks() -> list:
    """The first ones in the gate, and all in the full run."""
    marks = [pytest.mark.gate] * (GATE // CHUNK) + [pytest.mark.full] * ((NETWORKS - GATE) // CHUNK)
    return [pytest.param(chunk, marks=mark) for chunk, mark in enumerate(marks)]


@pytest.mark.parametrize("chunk", chunks())
def test_random_networks(chunk, count):
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        assert_equal_to_numpy(seed, count)
