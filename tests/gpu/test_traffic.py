"""Every element-wise operator, compiled for an H200: its tensors are read once, and its result is written once."""

import jax
import pytest
from support.sampling import one_in

from benchmarks import traffic

from . import ptx

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")


def compiled(function, shapes) -> str:
    sharding = jax.sharding.SingleDeviceSharding(ptx.devices()[0])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
    return jax.jit(function).lower(*shapes).compile(compiler_options={"xla_gpu_autotune_level": 0}).as_text()


# It stores the difference of each element from the largest of its slice.
EXCEPTIONS = {"quantized_linear_softmax"}


@one_in(3, "name", sorted(traffic.ELEMENTWISE.keys() - EXCEPTIONS), others="full")
def test_each_tensor_is_moved_once(name):
    traffic.assert_moved_once(name, compiled)
