"""Runs a program that simulates kernels in a process of its own, with a time-out: its threads wait for each other."""

import json
import os
import pathlib
import subprocess
import sys

from benchmarks.device import simulator

TIMEOUT = 300  # seconds; it takes less than 60


def run(program: str, *names: str) -> subprocess.Popen:
    """Starts the program, for the cases with these names."""
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), **simulator.ENVIRONMENT}
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
