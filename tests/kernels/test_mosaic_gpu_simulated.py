"""The Hopper kernel in Pallas' GPU simulator, races included: bit for bit what NumPy says.

The simulator runs threads that wait for each other, so it runs in a process of its own, with a time-out.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading

import jax
import pytest

from .mosaic_gpu_cases import CASES

PROGRAM = str(pathlib.Path(__file__).with_name("mosaic_gpu_cases.py"))
TIMEOUT = 300  # seconds; it takes less than 30
pytestmark = pytest.mark.gate
SIMULATES_THE_KERNEL = jax.__version_info__ >= (0, 11)


def run(*names: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, PROGRAM, *names], env=environment, **pipes)


@pytest.fixture(scope="module")
def differences() -> dict[str, list[str]]:
    with run(*(case.name for case in CASES)) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


if SIMULATES_THE_KERNEL:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_simulated_kernel(differences, case):
        assert differences[case.name] == []

else:

    def test_simulator_of_this_version_does_not_know_transposed_references():
        """Which the kernel multiplies with. The exception leaves the simulator's other threads waiting."""
        with run(CASES[0].name) as process:
            end = threading.Timer(TIMEOUT, process.kill)
            end.start()
            try:
                assert any("'TransposeTransform' object has no attribute 'indices'" in line for line in process.stderr)
            finally:
                end.cancel()
                process.kill()
