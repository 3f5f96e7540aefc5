"""Programs of this folder, run in processes of their own."""

import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def start(program: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, str(FOLDER / program), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen) -> str:
    """What a process prints until it ends, which it must without an error."""
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, f"exit status {process.returncode}:\n{output}{errors}"
    return output


def run(program: str, *arguments: str) -> str:
    return printed(start(program, *arguments))
