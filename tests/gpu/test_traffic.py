"""Every element-wise operator, compiled for an H200: its tensors are read once, and its result is written once."""

import functools

import pytest
from support import moved_once
from support.sampling import one_in

from benchmarks import chips

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")


# It writes how far each element is below the largest of its slice.
EXCEPTIONS = {"quantized_linear_softmax"}


@one_in(3, "name", sorted(moved_once.ELEMENTWISE.keys() - EXCEPTIONS), others="full")
def test_each_tensor_is_moved_once(name):
    moved_once.assert_moved_once(name, functools.partial(chips.compile, "h200"))
