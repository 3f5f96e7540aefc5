"""Chips that programs are compiled for without having them: NVIDIA GPUs of each generation since Ampere, and TPUs.

The compilers for GPUs and TPUs come with ``jax[cuda13]`` and ``jax[tpu]``.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

TPU_TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
GPUS = ("a100", "a10", "l4", "h200", "b200", "rtx5090")
NAMES = ("cpu", *GPUS, *TPU_TOPOLOGIES)
_GPU_TARGETS = Path(__file__).with_name("gpu_targets")


@functools.cache
def gpus(name: str, topology: str = "1x1x1") -> list[jax.Device]:
    """GPUs of one kind, by its name in `GPUS`, of a topology: slices x hosts in a slice x GPUs in a host."""
    target = (_GPU_TARGETS / f"{name}.txtpb").read_text()
    return topologies.get_topology_desc(platform="cuda", target_config=target, topology=topology).devices


@functools.cache
def tpus(topology: str) -> list[jax.Device]:
    """The TPUs of a topology, such as "v5e:2x2"."""
    # Read when libtpu is loaded: it is to ask no TPU host for its metadata, and to let other processes load it as well.
    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    return topologies.get_topology_desc(topology, platform="tpu").devices


def device(chip: str) -> jax.Device:
    """One chip, by its name in `NAMES`."""
    if chip == "cpu":
        return jax.devices("cpu")[0]
    return gpus(chip)[0] if chip in GPUS else tpus(TPU_TOPOLOGIES[chip])[0]


def compile(chip: str, function: Callable, *arguments: Any, **options: Any) -> jax.stages.Compiled:
    """``jax.jit(function)`` for one chip, arguments of these shapes and dtypes or trees of them, and XLA's `options`."""
    sharding = jax.sharding.SingleDeviceSharding(device(chip))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    if chip in GPUS:  # autotuning would need a GPU
        options = {"xla_gpu_autotune_level": 0, **options}
    return jax.jit(function).lower(*shapes).compile(compiler_options=options)
