"""A plugin of pytest: what each file of tests costs, in seconds and in programs that XLA compiled for it.

    PYTHONPATH=.ci python -m pytest -p costs --costs=FILE [--budgets=.ci/programs.txt] ...

At the end, the run's totals and its ten dearest files are appended to FILE, under the name in COSTS_STAGE. Seconds are those
of set-up, test and tear-down, summed over the workers; what a module compiles while it is imported is counted for none.

With budgets, the run fails if a file of tests compiles more programs than 100, or than its line allows.
"""

import collections
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

_COMPILED = "/jax/core/compile/backend_compile_duration"
_PROGRAMS, _COMPILING = "costs: programs", "costs: seconds of compiling"
_DEAREST = 10
_BUDGET = 100

_compiled: list[float] = []  # the seconds of each program of the test that runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="append what the dearest files of tests cost")
    parser.addoption("--budgets", metavar="FILE", help="fail if a file of tests compiles more programs than this allows it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        jax.monitoring.register_event_duration_secs_listener(_listen)
        if not hasattr(config, "workerinput"):  # in the process that has all reports
            config.pluginmanager.register(Costs(config.getoption("--costs"), config.getoption("--budgets")))


def _listen(event: str, seconds: float, **_: object) -> None:
    if event == _COMPILED:
        _compiled.append(seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _compiled.clear()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> None:
    """Attaches what was compiled to the last of a test's reports, which is how a worker hands it on."""
    if call.when == "teardown":
        item.user_properties += [(_PROGRAMS, len(_compiled)), (_COMPILING, sum(_compiled))]


class Costs:
    """Sums the reports of all tests by file."""

    def __init__(self, path: str, budgets: str | None):
        self.path = path
        self.files: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.budgets = None if budgets is None else dict(_budgets(budgets))
        self.beyond: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        costs = self.files[report.nodeid.partition("::")[0]]
        costs["seconds"] += report.duration
        if report.when == "teardown":
            costs["tests"] += 1
            costs.update({name: value for name, value in report.user_properties if name in (_PROGRAMS, _COMPILING)})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._append()
        self.beyond = [f"{name}: {self.files[name][_PROGRAMS]}" for name in self.files if self._is_beyond(name)]
        if self.beyond and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _is_beyond(self, name: str) -> bool:
        return self.budgets is not None and self.files[name][_PROGRAMS] > self.budgets.get(name, _BUDGET)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.beyond:
            terminalreporter.section("files that compile more programs than their budget")
            terminalreporter.line("make them cheaper, as tests/README.md describes, or give them more in .ci/programs.txt")
        for line in self.beyond:
            terminalreporter.line(line)

    def _append(self) -> None:
        total = collections.Counter()
        for costs in self.files.values():
            total.update(costs)
        dearest = sorted(self.files, key=lambda name: -self.files[name]["seconds"])[:_DEAREST]
        with open(self.path, "a") as file:
            file.write(f"\n{os.environ.get('COSTS_STAGE', '')}\n")
            file.write(f"{'seconds':>9} {'compiling':>9} {'programs':>8} {'tests':>6}\n")
            file.write(_line(total, f"all {len(self.files)} files"))
            file.writelines(_line(self.files[name], name) for name in dearest)


def _budgets(path: str) -> Iterator[tuple[str, int]]:
    for line in Path(path).read_text().splitlines():
        if not line.startswith("#"):
            programs, name = line.split()
            yield name, int(programs)


def _line(costs: collections.Counter, name: str) -> str:
    return f"{costs['seconds']:9.1f} {costs[_COMPILING]:9.1f} {costs[_PROGRAMS]:8} {costs['tests']:6}  {name}\n"
