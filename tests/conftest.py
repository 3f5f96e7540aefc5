"""How the tests run: JAX's strict modes, devices enough for a mesh, and how much of the exhaustive sweeps."""

import collections
import gc
from collections.abc import Callable

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_traceback_filtering", "off")  # it takes longer than most of the calls that must raise

_COUNTED = "counted: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", action="store_true", help="run what the gate adds, too: the tests that are marked so")
    parser.addoption("--full", action="store_true", help="run the sweeps over all of their values, not a sample")
    parser.addoption("--no-skips", action="store_true", help="fail where a test would be skipped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``--gate``, what only the gate runs is left out."""
    if config.getoption("--gate") or config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("gate")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("gate")]


@pytest.fixture(scope="session")
def gate(request: pytest.FixtureRequest) -> bool:
    """Whether this is the gate, or more."""
    return request.config.getoption("--gate") or request.config.getoption("--full")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the sweeps run over all of their values."""
    return request.config.getoption("--full")


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Of what, and how many, a test has compared: summed over all tests, and said at the end of the run."""
    return lambda what, number: record_property(f"{_COUNTED}{what}", number)


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


def pytest_collection_finish() -> None:
    """What is imported by now stays; and what JAX leaves behind is looked for less often than after 700 objects."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    return failed_if_skipped(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """A module that skips as a whole, for want of a package, never gets as far as its tests."""
    return failed_if_skipped(collector.config, (yield))


def failed_if_skipped(config: pytest.Config, report):
    if report.skipped and config.getoption("--no-skips"):
        report.outcome = "failed"
    return report
