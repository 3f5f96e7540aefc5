"""One of several processes that compute a network together; `test_distributed.py` starts them.

Each process has two devices. The columns of the first layer and K of the second are split over the processes, so that the
second product is a sum over all of them; the rows are split over the devices of each.
"""

import argparse
import os
import sys
import threading
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jquant

DEVICES_PER_PROCESS = 2
ROWS, INPUTS, HIDDEN, OUTPUTS = 32, 96, 256, 48
HIDDEN_SCALE, HIDDEN_ZERO_POINT, OUTPUT_SCALE, OUTPUT_ZERO_POINT = np.float32(0.3), np.uint8(110), np.float32(8), np.int8(-5)
HEARTBEAT_SECONDS = 10
HOST = "127.0.0.1"


def problem() -> dict:
    """The network's arguments, with unpacked weights."""
    rng = np.random.default_rng(0)

    def integers(dtype, *shape):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape, dtype)

    return {
        "x": integers(np.uint8, ROWS, INPUTS),
        "x_scale": rng.uniform(0.01, 0.03, ROWS).astype(np.float32),
        "x_zero_point": integers(np.uint8, ROWS),
        "first": integers(np.int8, INPUTS, HIDDEN),
        "first_scale": rng.uniform(0.005, 0.02, HIDDEN).astype(np.float32),
        "first_zero_point": integers(np.int8, HIDDEN),
        "second": integers(np.uint8, HIDDEN, OUTPUTS),
        "second_scale": rng.uniform(0.005, 0.02, OUTPUTS).astype(np.float32),
        "second_zero_point": integers(np.uint8, OUTPUTS),
    }


def packed(problem: dict) -> dict:
    """The arguments of `network`, with packed weights, which hold their zero points."""
    arguments = dict(problem)
    for name in ("first", "second"):
        zero_point = arguments.pop(f"{name}_zero_point")
        arguments[name] = jquant.pack_matrix(problem[name], zero_point, block_size=32)
    return arguments


@jax.jit
def network(x, x_scale, x_zero_point, first, first_scale, second, second_scale):
    hidden = jquant.quantized_linear_matmul(
        *(x, x_scale, x_zero_point, first, first_scale, None, HIDDEN_SCALE, HIDDEN_ZERO_POINT)
    )
    return jquant.quantized_linear_matmul(
        *(hidden, HIDDEN_SCALE, HIDDEN_ZERO_POINT, second, second_scale, None, OUTPUT_SCALE, OUTPUT_ZERO_POINT)
    )


def placed(arguments: dict, mesh: jax.sharding.Mesh) -> dict:
    """The arguments as arrays over all processes, each of which provides the shards on its own devices."""
    specs = {
        **{"x": P("data"), "x_scale": P("data"), "x_zero_point": P("data")},
        **{"first": P(None, "model"), "first_scale": P("model")},
        **{"second": P("model"), "second_scale": P()},
    }
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    for name in ("first", "second"):
        shardings[name] = arguments[name].sharding_for(shardings[name])
    return jax.tree.map(
        lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, np.asarray(x).__getitem__), arguments, shardings
    )


def end_with_the_test() -> None:
    """Ends this process when the test closes the pipe, which it does however it ends."""
    sys.stdin.read()
    os._exit(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="the folder for the result and the compiled program")
    parser.add_argument("--then", choices=("end", "compute", "wait"), default="end", help="what to do after the result")
    options = parser.parse_args()
    threading.Thread(target=end_with_the_test, daemon=True).start()

    jax.config.update("jax_num_cpu_devices", DEVICES_PER_PROCESS)
    address = f"{HOST}:{options.port}"
    jax.distributed.initialize(
        *(address, options.processes, options.process),
        coordinator_bind_address=address,
        initialization_timeout=60,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=HEARTBEAT_SECONDS,
    )
    mesh = jax.make_mesh((options.processes, DEVICES_PER_PROCESS), ("model", "data"), axis_types=(AxisType.Auto,) * 2)
    for process, devices in enumerate(mesh.devices):
        assert all(device.process_index == process for device in devices), mesh
    arguments = placed(packed(problem()), mesh)
    program = network.lower(**arguments).compile()
    output = program(**arguments)
    rows = {f"{shard.index[0].start or 0}": np.asarray(shard.data) for shard in output.addressable_shards}

    (options.output / f"{options.process}.hlo").write_text(program.as_text())
    unfinished = options.output / f"{options.process}.unfinished.npz"
    np.savez(unfinished, **rows)
    unfinished.rename(options.output / f"{options.process}.npz")  # the test reads the file as soon as it exists
    while options.then == "compute":
        program(**arguments).block_until_ready()
    if options.then == "wait":
        threading.Event().wait()


if __name__ == "__main__":
    main()
