"""Pallas' simulator of GPUs, which runs the Hopper kernels on a CPU, without CUDA."""

from typing import Any

import jax
import numpy as np

SIMULATES_THE_KERNELS = jax.__version_info__ >= (0, 11)
# Of the process that simulates. NPROC is the number of XLA:CPU's threads: the simulator's would wait for each other for ever
# if they took all of them.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "NPROC": "64", "PJRT_NPROC": "64"}


def parameters() -> Any:
    """For the kernels' `interpret`."""
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # private, as long as it is experimental

    return InterpretGPUParams(detect_races=True)


def take_operands_in_registers() -> None:
    """Makes the simulator multiply by a left operand in registers, which is an array: it supports references only."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    multiply_references = gpu_callbacks.wgmma

    @gpu_callbacks.fail_on_exception
    def wgmma(*, a_allocation_key_as_array, **rest):
        a = np.asarray(a_allocation_key_as_array)
        if a.ndim == 1:  # the key of a reference
            return multiply_references(a_allocation_key_as_array=a_allocation_key_as_array, **rest)
        memory, thread = gpu_callbacks._get_shared_memory(), rest["thread"]
        information = {
            "logging_info": gpu_callbacks.memory.GPULoggingInfo(rest["mesh_location"], thread, rest["source_info"])
        }

        def content(name: str):
            key = gpu_callbacks.HostAllocationKey.from_array(rest[f"{name}_allocation_key_as_array"])
            transforms = jax.tree.map(int, gpu_callbacks._remove_noop_transforms(rest[f"{name}_transforms"]))
            place = memory.access(key, transforms)
            return memory.get_buffer_content(key, place, thread, **information)[0], key, place

        sums, key, place = content("acc")
        b, *_ = content("b")
        memory.store_buffer_content(key, place, sums + np.matmul(a, b, dtype=sums.dtype), thread, **information)
        return rest["token"]

    gpu_callbacks.wgmma = wgmma
