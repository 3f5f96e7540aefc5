"""What stands in for a GPU or TPU in a rehearsal on a CPU: interpreted kernels, and smaller shapes."""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.device import simulator
from jquant.kernels import implementations
from jquant.modes import Implementation

_MOST = {"m": 33, "k": 192, "n": 72}  # and up to 7 more for sizes that are no multiples of 8, so that these stay ragged


def smaller(**sizes: int) -> dict[str, int]:
    """The sizes of a product, each at most `_MOST` or a little more."""
    return {name: min(size, _MOST[name] + size % 8) for name, size in sizes.items()}


def interpret(implementation: Implementation) -> None:
    """Lets programs for CPUs have a kernel for GPUs or TPUs, interpreted."""
    modules = {Implementation.MOSAIC_TPU: _for_tpus, Implementation.MOSAIC_GPU: _for_gpus}
    interpreted = functools.cache(modules[implementation])
    implementations.module_of = lambda *_: interpreted()


def _for_tpus() -> Any:
    from jquant.kernels.pallas import tpu, tpu_blocks

    products = tpu.integer_dot, tpu_blocks.block_dot
    return types.SimpleNamespace(**{product.__name__: functools.partial(product, interpret=True) for product in products})


def _for_gpus() -> Any:
    from jquant.kernels.pallas import gpu, gpu_blocks

    if not simulator.SIMULATES_THE_KERNELS:
        raise NotImplementedError(f"Pallas simulates the Hopper kernels from jax 0.11 on; this is {jax.__version__}")
    simulator.take_operands_in_registers()
    products = gpu.integer_dot, gpu_blocks.block_dot
    return types.SimpleNamespace(**{product.__name__: _simulated(product) for product in products})


def _simulated(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`product` in the simulator, as a callback: the simulator's own, in order, cannot be lowered within a primitive."""

    def function(*operands, **parameters):
        simulated = functools.partial(product, interpret=simulator.parameters(), **parameters)
        return jax.pure_callback(jax.jit(simulated), jax.eval_shape(simulated, *operands), *operands)

    return function
