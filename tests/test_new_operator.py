"""Every operator is in each of the places that `CONTRIBUTING.md` names; what is missing is said in a sentence.

An operator is a function that a module of `jquant/operators` defines. Its tests do their part only once these find nothing.
"""

import ast
import collections
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import pytest
from misuse import calls, public_functions
from support.documents import PACKAGE, ROOT, generated_pages, roundings

import jquant
from jquant.cases import CASES


def defined_in(folder: str) -> dict[str, str]:
    """The public functions that the modules of a folder of the package define, and the module of each."""
    functions = {}
    for path in sorted((PACKAGE / folder).glob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                functions[statement.name] = path.stem
    return functions


OPERATORS = defined_in("operators")
_IN_PARTS = {"matmul_n_bits", "pack_matrix"}  # whose cases compute the formula with parts of jquant.reference, or themselves


def words(*folders: str) -> set[str]:
    """The names in the Python files of these folders of tests."""
    files = [path for folder in folders for path in (ROOT / "tests" / folder).glob("*.py")]
    return set(re.findall(r"\w+", " ".join(path.read_text() for path in files)))


def with_cases() -> set[str]:
    return {name.partition(",")[0] for name in CASES}


def with_sections() -> set[str]:
    return {name for _, texts in generated_pages.sections() for name in texts}


def with_float_results() -> set[str]:
    results = ((name, leaf) for name, case in CASES.items() for leaf in jax.tree.leaves(case.formula(*case.arguments())))
    return {name.partition(",")[0] for name, leaf in results if jnp.issubdtype(leaf.dtype, jnp.floating)}


def with_derivatives() -> set[str]:
    table = (ROOT / "docs/operators.md").read_text().split("Every operator supports ")[1].split("\n\n")[1]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def compared() -> set[str]:
    """Those that have no counterpart elsewhere, and those that tests of conformance compare with it."""
    alone = {name for name in OPERATORS if not generated_pages.elsewhere(name)}
    return alone | words("conformance", "importer")


def in_changelog() -> set[str]:
    """The list there shortens names that begin alike."""
    text = (ROOT / "CHANGELOG.md").read_text()
    ends = tuple(re.findall(r"`…(_\w+)`", text))
    return {name for name in OPERATORS if name in text or (ends and name.endswith(ends))}


def having_tests() -> set[str]:
    """Tests are in a file named after the operator's module; an operator and its inverse share both."""
    files = {path.stem.removeprefix("test_") for path in (ROOT / "tests/operators").glob("test_*.py")}
    return {name for name, module in OPERATORS.items() if module in files}


def require_none(sentences: list[str]) -> None:
    if sentences:
        pytest.fail("\n".join(sentences), pytrace=False)


Place = tuple[Callable[[], Iterable[str]], str]  # the operators that it has, and what is said of one that is missing
PLACES: dict[str, Place] = {
    "imports": (lambda: vars(jquant), "is not imported by jquant/__init__.py"),
    "__all__": (lambda: jquant.__all__, "is not in __all__ of jquant/__init__.py"),
    "reference": (lambda: {*defined_in("reference"), *_IN_PARTS}, "has no reference in jquant/reference"),
    "cases": (with_cases, "has no case in jquant/cases"),
    "tests": (having_tests, "has no tests of its own, which would be in tests/operators/test_{module}.py"),
    "misuse": (lambda: {call.name for call in calls()}, "has no call in a module of tests/misuse"),
    "conformance": (
        compared,
        "is compared with no counterpart in tests/conformance or tests/importer, which the references of its docstring name",
    ),
    "section": (with_sections, "has no section in docs/operators.md"),
    "rounding": (roundings, 'has no row in the table "How they round" of docs/exactness.md'),
    "changelog": (in_changelog, "is not in CHANGELOG.md"),
}


@pytest.mark.parametrize("place", PLACES)
def test_place(place):
    found, lack = PLACES[place]
    names = {*found()}
    missing = [f"{name} {lack.format(module=module)}" for name, module in OPERATORS.items() if name not in names]
    require_none(missing)


@pytest.mark.parametrize("place", ["cases", "section", "rounding"])
def test_place_has_nothing_else(place):
    found, lack = PLACES[place]
    has = lack.replace("has no", "has a")
    others = [f"{name} {has}, but jquant/operators has no such function" for name in found() if name not in OPERATORS]
    require_none(others)


def test_derivatives():
    """Results that are integers have derivative 0; the others are described."""
    table = "the table of derivatives in docs/operators.md"
    described, floats = with_derivatives(), with_float_results()
    missing = [f"{name} has float results, but no row in {table}" for name in sorted(floats - described)]
    others = [f"{name} has no float results, but a row in {table}" for name in sorted(described - floats)]
    require_none(missing + others)


def test_tests_have_operators():
    files = (ROOT / "tests/operators").glob("test_*.py")
    modules = {f"test_{module}.py" for module in OPERATORS.values()}
    others = [f"tests/operators/{file.name} is named after no module" for file in files if file.name not in modules]
    require_none(others)


def test_every_argument_of_every_function_is_swept():
    """Also of functions that are no operators, each of which has a call, too."""
    swept = collections.defaultdict(set)
    for call in calls():
        swept[call.name] |= set(call.arguments)
    functions = public_functions()
    missing = [f"{name} has no call in a module of tests/misuse" for name in sorted({*functions} - {*swept, *OPERATORS})]
    missing += [
        f"{name} has no call in tests/misuse that says what {parameter} may be"
        for name, arguments in swept.items()
        if name in functions
        for parameter in inspect.signature(functions[name]).parameters
        if parameter != "self" and parameter not in arguments
    ]
    others = [f"tests/misuse calls {name}, which is no public function" for name in swept if name not in functions]
    require_none(missing + others)


def test_examples():
    modules = {name: importlib.import_module(f"jquant.operators.{module}") for name, module in OPERATORS.items()}
    functions = {name: getattr(module, name) for name, module in modules.items()} | {"feature_level": jquant.feature_level}
    examples = {name: doctest.DocTestParser().get_examples(function.__doc__ or "") for name, function in functions.items()}
    missing = [f"{name} has no example in its docstring" for name in functions if not examples[name]]
    require_none(missing)
