"""Compares and measures products on this machine's GPU or TPU, in at most eight minutes.

    python -m benchmarks.device [--output FILE.json] [--minutes 8] [--rehearse]

The parts are twenty products by the Pallas kernel for the device and the same twenty by XLA, whose bits are compared with
NumPy's; twelve timings over those of XLA's own product of int8; and the self-check, ``python -m jquant``. Each is a process
of its own, since only one may have a TPU, and since what a kernel does wrong may end it, or never end. A part that fails or
takes too long does not stop the others; what it had until then counts. All results, times and errors are written to a JSON
file, by default device-PLATFORM-DEVICE-jax-VERSION.json.

--rehearse runs everything on a CPU: both Pallas kernels, interpreted, at small shapes; the start of the self-check. It shows
that this program works, and nothing about a device; its file says so.

Exits with 0 if all went well; with 1 if a bit differs or a part failed; with 2 if there is no GPU or TPU. What a kernel
declines, with its reason, is no failure.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environment
from benchmarks.device import parts, simulator
from jquant.modes import Implementation

_MINUTES = 8.0
# The share of the time that is left which a part may take, in the order in which they run: what matters most comes first.
# A kernel is compiled in seconds, whereas XLA tries several ways of computing each product, and the self-check has hundreds.
_SHARES = {**dict.fromkeys(Implementation, 0.35), "timings": 0.5, "self-check": 1.0}
_BAD = ("differs", "failed")


def run_part(part: str, limit: float, *, rehearse: bool) -> dict:
    """Runs a part in a process of its own for `limit` seconds at most, and returns its results."""
    variables = {}
    if rehearse:
        variables = simulator.ENVIRONMENT if part == Implementation.MOSAIC_GPU else {"JAX_PLATFORMS": "cpu"}
    start, error = time.monotonic(), None
    with tempfile.TemporaryDirectory() as folder:
        results, printed = Path(folder, "results"), Path(folder, "printed")
        results.touch()
        command = [sys.executable, "-m", "benchmarks.device", "--part", part, "--output", str(results)]
        with printed.open("w") as file:
            try:
                process = subprocess.run(
                    [*command, *["--rehearse"] * rehearse],
                    env=os.environ | variables,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=limit,
                )
                if process.returncode:
                    lines = printed.read_text(errors="replace").strip().splitlines()
                    error = "\n".join([f"ended with {process.returncode}", *lines[-20:]])
            except subprocess.TimeoutExpired:
                error = f"was stopped after {limit:.0f} s; results until then count"
        found = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
    counts = collections.Counter(result["outcome"] for result in found)
    succeeded = "declined" if set(counts) == {"declined"} else "passed"
    outcome = "failed" if error or not found or counts["failed"] else "differs" if counts["differs"] else succeeded
    summary = {"part": part, "outcome": outcome, "seconds": round(time.monotonic() - start, 1), "counts": dict(counts)}
    return {**summary, "error": error, "results": found}


def line(part: dict) -> str:
    """One line about a part."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in part["counts"].items())
    errors = [part["error"], *(result.get("error") for result in part["results"])]
    first = next((f"; {error.splitlines()[0][:150]}" for error in errors if error), "")
    return f"{part['part']:<12} {part['outcome']:<8} {part['seconds']:6.1f} s  {counts}{first}"


def names_of_parts(platform: str, *, rehearse: bool) -> list[str]:
    kernels = list(parts.KERNELS.values()) if rehearse else [parts.KERNELS[platform]]
    return [*kernels, Implementation.XLA, "timings", "self-check"]


def absent(part: dict) -> str | None:
    """Why the device is no accelerator that we have kernels for; None if it is one."""
    advice = "The header of .ci/device says how to install JAX for one; --rehearse runs everything on a CPU."
    if part["outcome"] == "failed":
        return f"JAX finds no device here: it {part['error']}\n{advice}"
    (description,) = part["results"]
    if description["platform"] in parts.KERNELS:
        return None
    variable = os.environ.get("JAX_PLATFORMS")
    because = f" (JAX_PLATFORMS={variable})" if variable else ""
    return f"There is no GPU or TPU here: JAX finds only {description['device']!r}{because}. {advice}"


def run_all(output: Path | None, minutes: float, *, rehearse: bool) -> int:
    end = time.monotonic() + 60 * minutes
    device = run_part("device", 60 * minutes, rehearse=rehearse)
    reason = None if rehearse and device["outcome"] == "passed" else absent(device)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    (description,) = device["results"]
    print(line(device), f"{description['device']}, jax {description['versions']['jax']}", flush=True)
    prefix = "device-rehearsal" if rehearse else "device"
    output = output or Path(f"{prefix}-{environment.file_name(description)}.json")
    report = {"rehearsal": rehearse, "device": description, "outcome": "unfinished", "parts": []}
    for name in names_of_parts(description["platform"], rehearse=rehearse):
        limit = max(1.0, (end - time.monotonic()) * (1 if rehearse else _SHARES[name]))
        report["parts"].append(run_part(name, limit, rehearse=rehearse))
        print(line(report["parts"][-1]), flush=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
    outcomes = [part["outcome"] for part in report["parts"]]
    report["outcome"] = next((bad for bad in _BAD if bad in outcomes), "passed")
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['outcome']}{', in a rehearsal on a CPU' if rehearse else ''}: {output}")
    return 1 if report["outcome"] in _BAD else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="the most that all parts take together")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with interpreted kernels and small shapes")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # for the process of a part, which writes lines to the output
    arguments = parser.parse_args()
    if arguments.part is None:
        return run_all(arguments.output, arguments.minutes, rehearse=arguments.rehearse)
    with arguments.output.open("a") as file:

        def report(result: dict) -> None:
            file.write(json.dumps(result) + "\n")
            file.flush()

        parts.run(arguments.part, report, rehearse=arguments.rehearse)
    return 0


if __name__ == "__main__":
    sys.exit(main())
