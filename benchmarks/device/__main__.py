"""Checks and measures jquant on the accelerator of this machine, in at most eight minutes: see ``.ci/device``."""

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import jquant.__main__ as installed
from benchmarks import environment
from benchmarks.device import bits, timings
from benchmarks.device.interpreted import interpreted
from jquant import self_check
from jquant.modes import Implementation

SECONDS = 480
KERNELS = {"tpu": Implementation.MOSAIC_TPU, "gpu": Implementation.MOSAIC_GPU}
NO_DEVICE = "jax finds no TPU and no GPU here, only {!r}: install jax[tpu] or jax[cuda13], or pass --rehearse for a CPU"


class Run:
    """The parts that have run, in a JSON that is written again after each."""

    def __init__(self, path: Path, *, is_rehearsal: bool) -> None:
        self.path, self.started = path, time.monotonic()
        self.report: dict[str, Any] = {"rehearsal": is_rehearsal, "environment": environment.describe([]), "parts": []}

    def is_over(self) -> bool:
        return time.monotonic() - self.started > SECONDS

    def part(self, name: str, results: Callable[[], list[dict]]) -> None:
        """Runs a part; an error ends it alone. Each result that is wrong has `different`, or an `error`."""
        started, part = time.monotonic(), {"part": name, "results": []}
        try:
            part["results"] = results()
        except Exception as error:
            part["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        part["seconds"] = round(time.monotonic() - started, 1)
        self.report["parts"].append(part)
        self.report["failed"] = self.failed()
        self.path.write_text(json.dumps(self.report, indent=1, default=str) + "\n")
        wrong = len(list(_wrong(part)))
        print(f"{name}: {len(part['results'])} results, {wrong} wrong, {part['seconds']} s", flush=True)

    def each(self, items: list, result: Callable[[Any], dict]) -> list[dict]:
        """The result of each item; errors are results, too, and so is that there was no time left."""
        return [self._result(item, result) for item in items]

    def _result(self, item: Any, result: Callable[[Any], dict]) -> dict:
        described = {"item": str(item)}
        if self.is_over():
            return described | {"error": f"not run: {SECONDS} s were over"}
        try:
            return described | result(item)
        except NotImplementedError as error:  # as the kernel for Hopper GPUs declines others
            return described | {"declined": str(error)}
        except Exception as error:
            return described | {"error": f"{type(error).__name__}: {error}"}

    def failed(self) -> list[str]:
        return [what for part in self.report["parts"] for what in _wrong(part)]


def _wrong(part: dict) -> Iterator[str]:
    if "error" in part:
        yield f"{part['part']}: {part['error']}"
    for result in part["results"]:
        if result.get("different") or "error" in result:
            yield f"{part['part']}, {result['item']}: {result.get('error') or 'bits differ'}"


def checked() -> list[dict]:
    """The self-check's identities and operators; its products are those of `bits`, at more shapes."""
    totals: dict[str, dict] = {}
    for comparisons in (self_check.identities, self_check.operators):
        for name, actual, expected in comparisons():
            total = totals.setdefault(name, {"item": name, "elements": 0, "different": 0})
            total["elements"] += expected.size
            total["different"] += self_check.differing(actual, expected)
    return list(totals.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/device", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("device.json"))
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, at small shapes, the TPU kernel interpreted")
    options = parser.parse_args()
    platform = jax.default_backend()
    if platform not in KERNELS and not options.rehearse:
        print(NO_DEVICE.format(platform), file=sys.stderr)
        return 2
    kernel = KERNELS.get(platform, Implementation.MOSAIC_TPU)
    is_small = options.rehearse
    for name, value in installed.installation():
        print(f"{name:<12} {value}")
    with contextlib.ExitStack() as stack:
        if is_small:
            stack.enter_context(interpreted(kernel))
        run = Run(options.output, is_rehearsal=is_small)
        run.part(f"bits, {kernel}", lambda: run.each(bits.cases(is_small), lambda case: bits.compared(case, kernel)))
        fused = Implementation.XLA
        run.part("bits, xla", lambda: run.each(bits.cases(is_small), lambda case: bits.compared(case, fused)))
        chosen = timings.cases(is_small)
        run.part("timings", lambda: run.each(chosen, lambda case: timings.measured(case, kernel, is_small)))
        run.part("self-check", checked)
    print(f"{options.output}: " + ("; ".join(run.failed()) or "all bits are equal"))
    return 1 if run.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
