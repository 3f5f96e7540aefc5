"""A plugin of pytest: what each file of tests costs, in seconds and in programs that XLA compiled for it.

    PYTHONPATH=.ci python -m pytest -p costs --costs FILE ...

At the end, the run's totals and its ten dearest files are appended to FILE, under the name in COSTS_STAGE. Seconds are those
of set-up, test and tear-down, summed over the workers; what a module compiles while it is imported is counted for none.
"""

import collections
import os
from collections.abc import Iterator

import jax
import pytest

_COMPILED = "/jax/core/compile/backend_compile_duration"
_PROGRAMS, _COMPILING = "costs: programs", "costs: seconds of compiling"
_DEAREST = 10

_compiled: list[float] = []  # the seconds of each program of the test that runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="append what the dearest files of tests cost")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        jax.monitoring.register_event_duration_secs_listener(_listen)
        if not hasattr(config, "workerinput"):  # in the process that has all reports
            config.pluginmanager.register(Costs(config.getoption("--costs")))


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

    def __init__(self, path: str):
        self.path = path
        self.files: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        costs = self.files[report.nodeid.partition("::")[0]]
        costs["seconds"] += report.duration
        if report.when == "teardown":
            costs["tests"] += 1
            costs.update({name: value for name, value in report.user_properties if name in (_PROGRAMS, _COMPILING)})

    def pytest_sessionfinish(self) -> None:
        total = collections.Counter()
        for costs in self.files.values():
            total.update(costs)
        dearest = sorted(self.files, key=lambda name: -self.files[name]["seconds"])[:_DEAREST]
        with open(self.path, "a") as file:
            file.write(f"\n{os.environ.get('COSTS_STAGE', '')}\n")
            file.write(f"{'seconds':>9} {'compiling':>9} {'programs':>8} {'tests':>6}\n")
            file.write(_line(total, f"all {len(self.files)} files"))
            file.writelines(_line(self.files[name], name) for name in dearest)


def _line(costs: collections.Counter, name: str) -> str:
    return f"{costs['seconds']:9.1f} {costs[_COMPILING]:9.1f} {costs[_PROGRAMS]:8} {costs['tests']:6}  {name}\n"
