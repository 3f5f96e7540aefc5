"""The selections of tests that `conftest.py` makes: the gate's stages together have all that it selects."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).parent


class Item:
    """What `conftest.py` reads of a test: functions of one case, and of 40."""

    def __init__(self, path: Path, function: str, case: int | None, *marks: str):
        self.path, self.nodeid = path, f"{path}::{function}" + ("" if case is None else f"[{case}]")
        self.marks = {*marks}
        self.callspec = SimpleNamespace(marks=[])

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


def items() -> list[Item]:
    files = "operators/test_a.py", "operators/test_b.py", "kernels/native/test_c.py", "test_d.py", "transform/test_e.py"
    made = [
        Item(TESTS / file, f"test_{number}", case)
        for file in files[:4]
        for number in range(10)
        for case in (range(40) if number % 2 else [None])
    ]
    return [*made, Item(TESTS / files[4], "test_0", None), Item(TESTS / files[0], "test_slow", None, "gate")]


@pytest.fixture
def selected(pytestconfig: pytest.Config):
    """A function that returns the names of the selected tests for options of pytest."""
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))

    def select(one_in: str = "1", **options: bool) -> set[str]:
        given = {"--one-in": conftest.every(one_in)} | {f"--{name.replace('_', '-')}": on for name, on in options.items()}
        config = SimpleNamespace(
            getoption=lambda name: given.get(name, False),
            hook=SimpleNamespace(pytest_deselected=lambda items: None),
        )
        chosen = items()
        conftest.pytest_collection_modifyitems(config, chosen)
        return {item.nodeid.removeprefix(f"{TESTS}/") for item in chosen}

    return select


def test_the_suite_and_what_is_left_of_the_gate(selected):
    suite, gate, left = selected(), selected(gate=True), selected(gate=True, without_suite=True)
    assert suite < gate < selected(full=True)
    assert suite | left == gate
    in_both = {name for name in suite & left if not name.startswith(("kernels/native", "test_d"))}
    assert in_both == {"transform/test_e.py::test_0"}  # the only one of its file
    assert {name.partition("[")[0] for name in gate} == {name.partition("[")[0] for name in selected(full=True)}


def test_halves(selected):
    whole, first, second = selected(gate=True), selected("2", gate=True), selected("2:1", gate=True)
    assert first | second == whole
    assert first & second == {"transform/test_e.py::test_0"}
    assert selected("3") < selected()
