#!/usr/bin/env python3
"""Puts faults of one line into a clone of the repository, one at a time, and tells which files of tests notice them.

    .ci/mutations.py meet [--gate ...]                 which files run a line that has a fault, and how long a file takes
    .ci/mutations.py notice [--enough N] [--gate ...]  for each fault, the files that fail
    .ci/mutations.py table                             all results so far, as tests/mutations.md has them
    .ci/mutations.py check                             that each fault is still one place in jquant/

`notice` runs files in processes of their own, up to the first failure: those that a fault names, then those that met it,
the shortest ones first. It goes on to the next fault when N files (1) have failed. Other options are pytest's, and name the
selection of tests. Results are kept in the file that MUTATIONS names (mutations.json), so that a run may be interrupted. The
Python that runs this needs what the tests need; `meet` takes Python 3.12.
"""

import collections
import concurrent.futures
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = Path(os.environ.get("MUTATIONS", "mutations.json")).absolute()
LONGEST = 1200  # seconds that a file may take: a fault that hangs is noticed, too
HANGS, PASSES, NO_TESTS = "hangs", "passes", "no tests"
NOT_NOTICED = PASSES, NO_TESTS


class Fault(NamedTuple):
    """A line of `path` in jquant/ that is replaced, and the files of `tests` that are tried first."""

    what: str
    path: str
    tests: str
    right: str
    wrong: str


FAULTS = [
    Fault(
        "a product without its seal",
        "arithmetic/exact.py",
        "arithmetic/test_exact.py test_inside_a_caller.py",
        "return seal(elementwise(lax.mul, a, b))",
        "return elementwise(lax.mul, a, b)",
    ),
    Fault(
        "ties away from zero",
        "arithmetic/rounding.py",
        "operators/test_quantize_linear.py",
        "return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)",
        "return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)",
    ),
    Fault(
        "a quotient by the reciprocal",
        "arithmetic/exact.py",
        "arithmetic/test_exact.py",
        "lax.div(numerator, _not_constant(divisor))",
        "lax.mul(numerator, lax.div(lax.full_like(divisor, 1), _not_constant(divisor)))",
    ),
    Fault(
        "scales multiplied one after the other in the epilogue",
        "kernels/epilogue.py",
        "operators/test_matmul_integer_to_float.py",
        "exact.product(product.astype(jnp.float32), exact.product(self.a_scale, self.b_scale))",
        "exact.product(exact.product(product.astype(jnp.float32), self.a_scale), self.b_scale)",
    ),
    Fault(
        "CLIP_GRAD passes the gradient on at Min",
        "formulas/clip.py",
        "operators/test_clip_gradient1.py operators/test_clip_gradient.py operators/test_clip.py",
        "return ~((x <= min) | (x >= max))",
        "return ~((x < min) | (x >= max))",
    ),
    Fault(
        "the maximum of a softmax without its mask",
        "formulas/softmax.py",
        "test_kv_cache_rows.py test_kv_cache.py",
        "highest = jnp.where(where, x, -jnp.inf).max(-1, keepdims=True)",
        "highest = x.max(-1, keepdims=True)",
    ),
    Fault(
        "a window of the cache that is longer by one",
        "kv_cache/attend.py",
        "test_kv_cache.py test_kv_cache_rows.py",
        "seen &= others > own - within(",
        "seen &= others >= own - within(",
    ),
    Fault(
        "a row of zeros in the cache with the scale 1",
        "formulas/symmetric.py",
        "test_kv_cache_rows.py test_kv_cache.py",
        "jnp.where(largest < scale, np.float32(0), scale)",
        "jnp.where(largest < scale, np.float32(1), scale)",
    ),
    Fault(
        "a wrong word in a message",
        "arguments/ranges.py",
        "operators/test_quantize.py operators/test_dequantize.py",
        "without axis it must have 1 element",
        "with axis it must have 1 element",
    ),
    Fault(
        "a bitcast of floats that XLA may move",
        "lowering/bitcast.py",
        "test_constants.py arithmetic/test_narrow_floats.py",
        "return lax.bitcast_convert_type(_unmoved_float(x), dtype)",
        "return lax.bitcast_convert_type(x, dtype)",
    ),
    Fault(
        "GPTQ's permutation inverted",
        "transform/weights/gptq.py",
        "transform/test_gptq.py",
        "return results[jnp.argsort(order)], succeeded",
        "return results[order], succeeded",
    ),
    Fault(
        "the straight-through derivative 0 at its lower bound",
        "operators/quantize_and_dequantize.py",
        "operators/test_quantize_and_dequantize.py conformance/test_tensorflow_straight_through.py",
        "jnp.where((x >= low) & (x <= high), surrogate, x)",
        "jnp.where((x > low) & (x <= high), surrogate, x)",
    ),
    Fault(
        "symmetric scales of the whole range where it is narrow",
        "formulas/scale_and_zero_point.py",
        "operators/test_scale_and_zero_point.py",
        "smallest, largest = int(limits.min) + narrow_range, int(limits.max)",
        "smallest, largest = int(limits.min), int(limits.max)",
    ),
    Fault(
        "the form for one device in a partitioned program",
        "lowering/partitioned.py",
        "test_meshes.py",
        "otherwise if is_explicit(context) or is_partitioned(context) else unpartitioned",
        "otherwise if is_explicit(context) else unpartitioned",
    ),
    Fault(
        "127 for 128 in the zero point of unsigned weights that have none",
        "kernels/zero_point.py",
        "operators/test_matmul_integer.py operators/test_pack_matrix.py",
        "return jnp.full((1,) * rank, -128, jnp.int32) if zero_point is None",
        "return jnp.full((1,) * rank, -127, jnp.int32) if zero_point is None",
    ),
    Fault(
        "integers that every reader computes again",
        "lowering/materialize.py",
        "compiled/test_repetition.py",
        "return by_platform.elementwise(by_platform.unchanged, x, cpu=_shared_on_cpu, one_cpu=_shared_in_one_dimension)",
        "return x",
    ),
    Fault(
        "`fmod` for `mod`",
        "onnx/nodes/elementwise.py",
        "importer/test_elementwise.py",
        "return xp.mod(a, b)",
        "return xp.fmod(a, b)",
    ),
    Fault(
        "padding with 0 in place of the zero point",
        "kernels/convolution/matmul.py",
        "operators/test_convolution_integer.py",
        "np.int8(0) if input_zero_point is None else input_zero_point.astype(jnp.int8).reshape(())",
        "np.int8(0)",
    ),
    Fault(
        "elements beyond K in a TPU kernel's last block",
        "kernels/pallas/tpu.py",
        "kernels/test_mosaic_tpu.py",
        "inside = lax.broadcasted_iota(jnp.int32, a.shape, 1) < size",
        "inside = lax.broadcasted_iota(jnp.int32, a.shape, 1) <= size",
    ),
    Fault(
        "weights that are the same whatever their constants are",
        "transform/program/weight_graph.py",
        "transform/test_sizes_in_weights.py",
        'return f"c{_digest(value)}"',
        'return "c"',
    ),
    Fault(
        "the order of dimensions dropped from a reshape in ONNX",
        "onnx/writing/primitives/shapes.py",
        "exporter/test_parameters_of_primitives.py",
        'x = transpose(builder, x, equation.params["dimensions"])',
        "pass",
    ),
    Fault(
        "a moving average that moves away",
        "calibration/min_max.py",
        "calibration/test_min_max.py",
        "step = exact.product(exact.difference(new, old), jnp.float32(averaging_constant))",
        "step = exact.product(exact.difference(old, new), jnp.float32(averaging_constant))",
    ),
    Fault(
        "GPTQ files' zero points without the 1 that is added",
        "checkpoints/packed_uint32.py",
        "checkpoints/test_gptq.py",
        "return words.view(np.uint32) + np.uint32((2**32 - 1) // (2**bits - 1))",
        "return words.view(np.uint32)",
    ),
    Fault(
        "mixed precision that pays twice for what sites share",
        "transform/choosing/frontier.py",
        "transform/test_mixed_precision.py",
        "price = sum(sizes[need] for need in choice.needs - stored)",
        "price = sum(sizes[need] for need in choice.needs)",
    ),
]


def main(command: str = "", *arguments: str) -> int:
    results = Results()
    if command == "meet":
        meet(results, *arguments)
    elif command == "notice":
        enough, arguments = (int(arguments[1]), arguments[2:]) if arguments[:1] == ("--enough",) else (1, arguments)
        notice(results, enough, *arguments)
    elif command == "table":
        print(table(results))
    elif command == "check":
        print(f"{len([*map(lines, FAULTS)])} faults: each is one place in jquant/")
    else:
        print(__doc__)
        return 2
    return 0


class Results:
    """What is known: in `meets`, the seconds of each file that meets a fault; in `outcomes`, whether files notice it."""

    def __init__(self) -> None:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.meets: dict[str, dict[str, float]] = known.get("meets", {})
        self.outcomes: dict[str, dict[str, dict[str, str]]] = known.get("outcomes", {})  # by selection, fault and file
        self._lock = threading.Lock()

    def add(self, selection: str, fault: str, file: str, outcome: str) -> None:
        with self._lock:
            self.outcomes.setdefault(selection, {}).setdefault(fault, {})[file] = outcome
            self.write()

    def write(self) -> None:
        RESULTS.write_text(json.dumps({"meets": self.meets, "outcomes": self.outcomes}, indent=1, sort_keys=True))


def meet(results: Results, *arguments: str) -> None:
    """Runs the tests once, without faults, and notes the files that run the lines."""
    with clone() as folder, tempfile.NamedTemporaryFile() as file:
        environment = {"PYTHONPATH": str(Path(__file__).parent)}
        pytest(folder, "-p", "mutations", f"--meets={file.name}", *arguments, **environment)
        results.meets = json.loads(Path(file.name).read_text())
    results.write()


def notice(results: Results, enough: int, *arguments: str) -> None:
    """Tries every fault, as many at a time as there are processors."""
    selection = " ".join(arguments) or "suite"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tries = {pool.submit(try_fault, results, fault, enough, selection, arguments): fault for fault in FAULTS}
        for number, future in enumerate(concurrent.futures.as_completed(tries), 1):
            noticed = ", ".join(future.result()) or "NOTHING"
            print(f"{number:3} of {len(FAULTS)}  {tries[future].what}: {noticed}", flush=True)


def try_fault(results: Results, fault: Fault, enough: int, selection: str, arguments: tuple[str, ...]) -> list[str]:
    """The files that notice the fault."""
    known = results.outcomes.get(selection, {}).get(fault.what, {})
    noticed = [file for file, outcome in known.items() if outcome not in NOT_NOTICED]
    seconds = results.meets.get(fault.what, {})
    first = [f"tests/{file}" for file in fault.tests.split()]
    files = [file for file in [*first, *sorted(seconds.keys() - {*first}, key=seconds.__getitem__)] if file not in known]
    with clone(fault) as folder:
        for file in files if len(noticed) < enough else ():
            outcome = outcome_of(folder, file, arguments)
            results.add(selection, fault.what, file, outcome)
            noticed += [] if outcome in NOT_NOTICED else [file]
            if len(noticed) >= enough:
                break
    return noticed


def outcome_of(folder: Path, file: str, arguments: tuple[str, ...]) -> str:
    began = time.monotonic()
    try:
        status, output = pytest(folder, "-x", "-n", "0", file, *arguments, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return HANGS
    if status in (0, 5):
        return NO_TESTS if status else PASSES
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"{failed[0].split(' - ')[0] if failed else f'ends with {status}'} ({time.monotonic() - began:.0f} s)"


def pytest(folder: Path, *arguments: str, timeout: float | None = None, **environment: str) -> tuple[int, str]:
    """Runs pytest in a clone; its status and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    return ended.returncode, ended.stdout


@contextlib.contextmanager
def clone(fault: Fault | None = None) -> Iterator[Path]:
    """A copy of the last commit, with a fault in it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
        if fault is not None:
            path = Path(folder, "jquant", fault.path)
            path.write_text(path.read_text().replace(fault.right, fault.wrong))
        yield Path(folder)


def lines(fault: Fault) -> range:
    """The numbers of the lines that the fault is in, which must be one place."""
    before, *after = (ROOT / "jquant" / fault.path).read_text().split(fault.right)
    if len(after) != 1:
        raise SystemExit(f"{fault.what}: {fault.right!r} is {len(after)} times in {fault.path}")
    first = before.count("\n") + 1
    return range(first, first + fault.right.count("\n") + 1)


def noticed_by(outcomes: dict[str, str]) -> str:
    """The files that notice a fault, or those that were tried in vain."""
    noticed = [file for file, outcome in outcomes.items() if outcome not in NOT_NOTICED]
    names = ", ".join(f"`{file.removeprefix('tests/')}`" for file in noticed or outcomes)
    return names if noticed else f"**not** by {names}"


def table(results: Results) -> str:
    """Each fault with the files that noticed it, by selection."""
    selections = sorted(results.outcomes, key=len, reverse=True)
    rows = [f"| fault | {' | '.join(selections)} |", "| --- |" + " --- |" * len(selections)]
    for fault in FAULTS:
        outcomes = [results.outcomes[selection].get(fault.what, {}) for selection in selections]
        rows.append(f"| {' | '.join([fault.what, *map(noticed_by, outcomes)])} |")
    return "\n".join(rows)


# A plugin of pytest: which files run which of the lines. Python's monitoring tells of a line once, then forgets it.
_MEETS, _SECONDS = "mutations: meets", "mutations: seconds"
_met: set[str] = set()


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--meets", metavar="FILE", help="write which files of tests run a line that has a fault")


def pytest_configure(config: Any) -> None:
    if not config.getoption("--meets"):
        return
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _monitor()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Meets(config.getoption("--meets")))


def _monitor() -> None:
    monitoring, tool = sys.monitoring, sys.monitoring.COVERAGE_ID
    faults = collections.defaultdict(list)
    for fault in FAULTS:
        for number in lines(fault):
            faults[fault.path, number].append(fault.what)
    paths = {path for path, _ in faults}

    @functools.cache
    def path_of(file: str) -> str:
        return file.rpartition(f"{os.sep}jquant{os.sep}")[2]

    def on_start(code: Any, _: int) -> Any:
        if path_of(code.co_filename) in paths:
            monitoring.set_local_events(tool, code, monitoring.events.LINE)
        return monitoring.DISABLE

    def on_line(code: Any, number: int) -> Any:
        _met.update(faults.get((path_of(code.co_filename), number), ()))
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "mutations")
    monitoring.register_callback(tool, monitoring.events.PY_START, on_start)
    monitoring.register_callback(tool, monitoring.events.LINE, on_line)
    monitoring.set_events(tool, monitoring.events.PY_START)


def pytest_runtest_setup(item: Any) -> None:
    """Forgets what was traced for another file, so that this one traces it, too."""
    if item.config.getoption("--meets") and getattr(item.session, "_file_of_mutations", None) != item.path:
        import jax

        item.session._file_of_mutations = item.path
        jax.clear_caches()
        sys.monitoring.restart_events()


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    if item.config.getoption("--meets") and call.when == "teardown":
        item.user_properties.append((_MEETS, sorted(_met)))
        _met.clear()


class Meets:
    """Collects the reports of all tests by file."""

    def __init__(self, path: str):
        self.path = path
        self.seconds: collections.Counter[str] = collections.Counter()
        self.files: dict[str, set[str]] = collections.defaultdict(set)

    def pytest_runtest_logreport(self, report: Any) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        if report.when == "teardown":
            for fault in dict(report.user_properties).get(_MEETS, ()):
                self.files[fault].add(file)

    def pytest_sessionfinish(self) -> None:
        meets = {fault: {file: round(self.seconds[file], 1) for file in files} for fault, files in self.files.items()}
        Path(self.path).write_text(json.dumps(meets))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
