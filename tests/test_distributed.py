"""Several processes that compute together: the same bits as one process, and all end when one is killed."""

import functools
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import distributed_worker as worker
from support.collectives import collectives
from support.sampling import one_in

from jquant.reference import products as reference

START_SECONDS = 240  # the limit for all processes to have a result, which takes 2 to 4 seconds
# The limit for all others to end after one process was killed. Those in a collective with it, and all of them if it was the
# coordinator, end at once, when its sockets close; the others end when it has missed its heartbeats.
END_SECONDS = 6 * worker.HEARTBEAT_SECONDS
# What they print: JAX's client of the coordinator, or the collective that was under way.
REASON = r"this most likely indicates that another task died|Gloo .* failed"


class Group:
    """Worker processes, which are killed at the end of the `with` block."""

    def __init__(self, folder: Path, then: list[str]):
        self.folder, self.then, self.processes = folder, then, []

    def __enter__(self) -> "Group":
        # Reserves the port without listening on it; the coordinator binds it, too, as gRPC's servers allow.
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.port.bind((worker.HOST, 0))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        shared = {"--port": self.port.getsockname()[1], "--processes": len(self.then), "--output": self.folder}
        for process, then in enumerate(self.then):
            options = {**shared, "--process": process, "--then": then}
            command = [sys.executable, worker.__file__, *(str(word) for option in options.items() for word in option)]
            with self._stderr(process).open("w") as stderr:
                streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": stderr}
                self.processes.append(subprocess.Popen(command, env=environment, **streams))
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
        self.port.close()

    def _stderr(self, process: int) -> Path:
        return self.folder / f"{process}.stderr"

    def errors(self, process: int) -> str:
        return self._stderr(process).read_text()

    def result(self, process: int) -> Path:
        return self.folder / f"{process}.npz"

    def wait_for_results(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not all(self.result(process).exists() for process in range(len(self.processes))):
            ended = [process for process, code in enumerate(self.codes()) if code]
            assert not ended, "\n".join(map(self.errors, ended))
            assert time.monotonic() < end, "\n".join(map(self.errors, range(len(self.processes))))
            time.sleep(0.05)

    def codes(self) -> list[int | None]:
        """The exit status of each process; None while it runs."""
        return [process.poll() for process in self.processes]

    def codes_after(self, seconds: float) -> list[int | None]:
        """The exit statuses as soon as all processes have ended, or when the time is over."""
        end = time.monotonic() + seconds
        while None in self.codes() and time.monotonic() < end:
            time.sleep(0.05)
        return self.codes()


@functools.cache
def expected() -> np.ndarray:
    """The network's output by the formula, which one process computes as well."""
    p = worker.problem()
    x, x_scale, x_zero_point, first, first_scale, first_zero_point, second, second_scale, second_zero_point = p.values()
    hidden = reference.quantized_linear_matmul(
        *(x, x_scale[:, None], x_zero_point[:, None], first, first_scale, first_zero_point),
        *(worker.HIDDEN_SCALE, worker.HIDDEN_ZERO_POINT, np.uint8),
    )
    output = reference.quantized_linear_matmul(
        *(hidden, worker.HIDDEN_SCALE, worker.HIDDEN_ZERO_POINT, second, second_scale, second_zero_point),
        *(worker.OUTPUT_SCALE, worker.OUTPUT_ZERO_POINT, np.int8),
    )
    for values in (hidden, output):
        assert np.unique(values).size > 100, "too few distinct values for a comparison"
    np.testing.assert_array_equal(worker.network(**worker.packed(p)), output)
    return output


@pytest.mark.gate
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.full)])
def test_same_bits(processes, tmp_path):
    with Group(tmp_path, ["end"] * processes) as group:
        group.wait_for_results()
        codes = group.codes_after(START_SECONDS)
    assert codes == [0] * processes, "\n".join(map(group.errors, range(processes)))
    output = expected()
    part = len(output) // worker.DEVICES_PER_PROCESS
    for process in range(processes):
        with np.load(group.result(process)) as rows:
            assert sorted(map(int, rows)) == list(range(0, len(output), part))
            for start, values in rows.items():
                np.testing.assert_array_equal(values, output[int(start) :][:part])
        program = (tmp_path / f"{process}.hlo").read_text()
        parameters, _ = program.splitlines()[0].split("->")
        for n, k in ((worker.HIDDEN // processes, worker.INPUTS), (worker.OUTPUTS, worker.HIDDEN // processes)):
            assert f"s8[{n},{k}]" in parameters, "the weights are not split"
        communication = collectives(program)
        assert {(collective.kind, *collective.types) for collective in communication} == {("all-reduce", "s32")}
        assert any(x.elements >= part * output.shape[1] for x in communication), "the second product is not summed"


@pytest.mark.gate
@one_in(2, "killed", [0, 1], others="full", ids=["the coordinator", "another"])
def test_all_end_when_one_is_killed(killed, tmp_path):
    """After the first result, while half of the others wait for it in a collective and half are idle."""
    processes = 4
    with Group(tmp_path, ["compute", "wait"] * (processes // 2)) as group:
        group.wait_for_results()
        assert group.codes() == [None] * processes
        group.processes[killed].kill()
        codes = group.codes_after(END_SECONDS)
    for process in set(range(processes)) - {killed}:
        assert codes[process] not in (None, 0), f"{process}: {codes}\n{group.errors(process)}"
        assert re.search(REASON, group.errors(process), re.IGNORECASE), group.errors(process)
