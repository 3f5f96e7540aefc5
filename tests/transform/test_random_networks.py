"""Quantized networks drawn at random, against NumPy: their outputs, and the integers at each site."""

import pytest
from support.random_networks import FIRST, assert_equal_to_numpy

NETWORKS, CHUNK = 2000, 5  # how many are drawn in all, and in each test


def chunks() -> list:
    """Ten chunks in the gate, and all in the full run."""
    marks = [pytest.mark.gate] * 10 + [pytest.mark.full] * (NETWORKS // CHUNK - 10)
    return [pytest.param(chunk, marks=mark) for chunk, mark in enumerate(marks)]


@pytest.mark.parametrize("chunk", chunks())
def test_random_networks(chunk, count):
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        assert_equal_to_numpy(seed, count)
