"""Configures all tests: JAX's strict modes, 8 CPU devices, and the tests of the suite, of the gate and of the full run."""

import collections
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from support.saturation import NOT_COMPARED

from jquant.kernels import implementations
from jquant.modes import Implementation

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_traceback_filtering", "off")  # which takes longer than most of the calls that must raise

_COUNTED = "counted: "
_MOST_MAPPINGS = 30_000  # Linux ends a process that has 65,530, and XLA:CPU makes nine for each program that it compiles
# One in so many cases: no whole numbers, with which a sample could meet one value of an inner parameter alone.
_SUITE_SPREAD, _GATE_SPREAD = 17.944, 11.090
_SUITE_FUNCTIONS = 2.618  # one in so many functions of these files runs in the suite
_SPREAD_IN = (  # folders and modules in which most cases compile or trace programs of their own
    *("arguments", "arithmetic", "calibration", "calls", "compiled", "conformance", "exporter", "importer", "kernels"),
    *("models", "operators", "transform", "test_constants.py", "test_debugging.py", "test_inside_a_caller.py"),
    *("test_kv_cache.py", "test_meshes.py", "test_placement.py", "test_transformations.py"),
)
_tests_run = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", action="store_true", help="also run the tests that are marked gate")
    parser.addoption("--full", action="store_true", help="run all tests, and the sweeps over all of their values")
    parser.addoption("--no-skips", action="store_true", help="fail tests that would be skipped")
    parser.addoption(
        "--one-in", type=every, default=slice(None), metavar="N[:FIRST]", help="run one in N of the tests of each file"
    )
    parser.addoption("--without-suite", action="store_true", help="leave out the cases that the suite has a spread of")


def every(text: str) -> slice:
    """One in N, from the test of the number FIRST on, 0 if it is not given."""
    step, _, first = text.partition(":")
    return slice(int(first or 0), None, int(step))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests marked ``gate`` without ``--gate`` or ``--full``, and tests marked ``full`` without ``--full``.

    Of the others, it deselects what ``--without-suite`` and ``--one-in`` name, but one test of each file at least.
    """
    full = config.getoption("--full")
    in_suite = set() if full else spread_cases(items)
    marks = [] if full else ["full"] if config.getoption("--gate") else ["full", "gate"]
    files = collections.defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, marks)):
            files[item.path].append(item)
    if config.getoption("--without-suite"):
        in_suite = {item for item in in_suite if not item.get_closest_marker("gate")}
        files = {path: [item for item in tests if item not in in_suite] or tests[:1] for path, tests in files.items()}
    one_in = config.getoption("--one-in")
    selected = {item for tests in files.values() for item in tests[one_in] or tests[:1]}
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = [item for item in items if item in selected]


def spread_cases(items: list[pytest.Item]) -> set[pytest.Item]:
    """Marks the cases of a function that are not in its spread for the suite: `gate` a second spread, `full` the others.

    Its first case is in the spread, so that the gate has each function. The suite has a spread of the functions, in which is
    the first one of each file. Cases that have marks of their own were chosen by the test.

    Returns:
      The cases that are in the spread for the suite, but for those that need jquant-native, which not everybody has.
    """
    spreads = _SUITE_SPREAD, _GATE_SPREAD, _SUITE_FUNCTIONS
    suite, gate, of_functions = ({int(number * spread) for number in range(len(items))} for spread in spreads)
    selected = suite | gate
    cases, functions, in_suite = collections.Counter(), collections.defaultdict(dict), set()
    folder = Path(__file__).parent
    paths = {folder / name for name in _SPREAD_IN}
    is_spread = functools.cache(lambda path: not paths.isdisjoint([path, *path.parents]))
    for item in items:
        is_chosen = {"suite", "gate", "full"} & {mark.name for mark in getattr(getattr(item, "callspec", None), "marks", ())}
        if is_chosen or not is_spread(item.path):
            continue
        function = item.nodeid.partition("[")[0]
        number = functions[item.path].setdefault(function, len(functions[item.path]))
        case = cases[function]
        if case not in selected:
            item.add_marker(pytest.mark.full)
        elif case not in suite or not (number in of_functions or item.get_closest_marker("suite")):
            item.add_marker(pytest.mark.gate)
        elif not item.path.is_relative_to(folder / "kernels" / "native"):
            in_suite.add(item)
        cases[function] += 1
    return in_suite


@pytest.fixture(scope="session")
def gate(request: pytest.FixtureRequest) -> bool:
    """Whether this is the gate or the full run."""
    return request.config.getoption("--gate") or request.config.getoption("--full")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether this is the full run, in which sweeps have all of their values."""
    return request.config.getoption("--full")


@pytest.fixture(scope="module")
def as_users_have_it() -> Iterator[None]:
    """JAX's default promotion of ranks and dtypes, for code that the strict modes would reject."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def xla_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's products in programs for a CPU that a test lowers, whether jquant-native is installed or not."""
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", Implementation.XLA)


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Counts what a test has compared: a function of a name and a number, summed over all tests and printed at the end."""
    return lambda what, number: record_property(f"{_COUNTED}{what}", number)


def pytest_runtest_teardown() -> None:
    """Forgets all compiled programs now and then, before they are more than a process may have."""
    global _tests_run
    _tests_run += 1
    if _tests_run % 10 == 0 and _mappings() > _MOST_MAPPINGS:
        jax.clear_caches()


def _mappings() -> int:
    """How many regions of memory this process has mapped; 0 where the system does not tell."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """With ``--full``, counts the elements that a test compares with `np.testing.assert_array_equal`, except signs."""
    if not item.config.getoption("--full"):
        return (yield)
    compared, compare = 0, np.testing.assert_array_equal

    def counted(actual, desired, *args, **options):
        nonlocal compared
        compare(actual, desired, *args, **options)
        desired = np.asarray(desired)
        compared += 0 if desired.dtype == bool else max(np.size(actual), desired.size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.testing, "assert_array_equal", counted)
        result = yield
    if compared:
        item.user_properties.append((f"{_COUNTED}{item.nodeid.partition('[')[0]}, elements", compared))
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals = collections.Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for what, number in report.user_properties if report.when == "call" else ():
            if what.startswith(_COUNTED):
                totals[what.removeprefix(_COUNTED)] += number
    if totals:
        terminalreporter.section("counts")
    for what, number in sorted(totals.items()):
        terminalreporter.line(f"{what}: {number:,}")
    skipped = (report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    if reasons := collections.Counter(reason.partition(NOT_COMPARED)[2] for reason in skipped if NOT_COMPARED in reason):
        terminalreporter.section("not compared")
    for reason, tests in reasons.items():
        terminalreporter.line(f"{tests:,} skipped: {reason}")


def pytest_collection_finish() -> None:
    """Collects garbage less often than after 700 allocations, and never looks at what is imported by now."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    return failed_if_skipped(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """A module that skips itself because a package is missing does so while it is collected."""
    return failed_if_skipped(collector.config, (yield))


def failed_if_skipped(config: pytest.Config, report):
    if report.skipped and config.getoption("--no-skips") and NOT_COMPARED not in str(report.longrepr):
        report.outcome = "failed"
    return report
