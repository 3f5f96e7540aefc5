"""Runs a program that simulates kernels in a process of its own, with a time-out: its threads wait for each other."""

import json
import os
import pathlib
import subprocess
import sys

import jax

SIMULATES_THE_KERNELS = jax.__version_info__ >= (0, 11)
TIMEOUT = 300  # seconds; it takes less than 60
# The number of XLA:CPU's threads: the simulator's would wait for each other for ever if they took all of them.
_THREADS = "64"


def run(program: str, *names: str) -> subprocess.Popen:
    """Starts the program, for the cases with these names."""
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu", "NPROC": _THREADS, "PJRT_NPROC": _THREADS}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    path = str(pathlib.Path(__file__).with_name(program))
    return subprocess.Popen([sys.executable, path, *names], env=os.environ | variables, **pipes)


def differences(program: str, *names: str) -> dict[str, list[str]]:
    """What the program reports for each case, by name."""
    with run(program, *names) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])
