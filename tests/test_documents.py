"""The pages of the documentation: their code runs, generated pages are complete, and tables name every operator."""

import importlib
import inspect
import pydoc
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.documents import DOCS, OPERATORS, PACKAGE, ROOT, generated_pages, run_document
from support.sampling import one_in

import jquant

# The code of operators.md runs in its generated pages, the other pages in test_doctests.py, test_recipes.py and models.
ELSEWHERE = {"operators.md", "mesh.md", "calibration.md", "recipes.md", "language_models.md", "evidence.md"}
PAGES = [path.name for path in DOCS.glob("*.md") if path.name not in ELSEWHERE and "```python" in path.read_text()]
WRITTEN = {
    "tutorial.md": {"model.safetensors"},
    "checkpoints.md": {"float", "fp8", "model", "model.gguf"},
}
REQUIRES = {  # packages, and the extra that installs each
    "tutorial.md": {"sklearn": "examples"},
    "onnx.md": {"onnx": "onnx"},
    "onnx_export.md": {"onnx": "onnx"},
    "checkpoints.md": {"gguf": "checkpoints", "safetensors": "recipes"},
}

OPERATOR_PAGES = generated_pages.pages()
SHORT = "architecture.md", "operator_costs.md"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.gate) for name in sorted(PAGES)]
)
def test_page(name, tmp_path, monkeypatch):
    for package, extra in REQUIRES.get(name, {}).items():
        pytest.importorskip(package, reason=f"{package} is not installed (extra: {extra})")
    monkeypatch.chdir(tmp_path)
    run_document(f"docs/{name}")
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN.get(name, set())


@pytest.mark.gate
def test_step_of_a_language_model():
    """The rest of the page needs a model (models/test_language_model.py)."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    run_document("docs/language_models.md", "One program for all tokens")


@one_in(5, "name", sorted(OPERATOR_PAGES))
def test_operator_page(name, tmp_path):
    """The example calls the operator and runs by itself; the table has every tensor and data type of each level."""
    page = OPERATOR_PAGES[name]
    assert page.startswith(f"::: jquant.{name}\n")
    assert f"jquant.{name}(" in page
    (tmp_path / "page.md").write_text(page)
    run_document(str(tmp_path / "page.md"))
    descriptor = generated_pages.descriptor_of(name)
    tables = {} if descriptor is None else descriptor.levels or {None: descriptor.table}
    assert page.count("| tensor |") == len(tables)
    for level, rows in tables.items():
        table = page if level is None else page.split(f'=== "{level}"\n')[1].split("\n===")[0]
        for row in rows:
            types, shape = ", ".join(row.allowed_data_types(level)), f"`{row.sizes}`" if row.sizes else ""
            ranks = "any" if row.ranks is None else row.allowed_ranks()
            assert f"| {row.name} | {row.kind.lower()} | {ranks} | {shape} | {types} |" in table


def test_overview(tmp_path):
    """Of every operator, with a link to its page; its own examples run."""
    overview = generated_pages.overview()
    (tmp_path / "page.md").write_text(overview)
    run_document(str(tmp_path / "page.md"))
    assert [name for name in OPERATORS if f"[`{name}`](operators/{name}.md)" in overview] == OPERATORS
    assert "\n### " not in overview
    types = {name for name in dir(jquant) if name[0].isupper()}
    assert set(re.findall(r"^::: .*\.(\w+)$", generated_pages.types_page(), re.MULTILINE)) == types | {"feature_level"}


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_what_the_site_shows(name):
    """Doctest's directives are removed, sessions highlighted as such, and figures linked; nothing else changes."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
    markdown = (DOCS / name).read_text()
    shown = generated_pages.on_page_markdown(markdown, page)
    assert not re.findall(r"^```python\n>>> |<BLANKLINE>|# doctest:|^!\[", shown, re.MULTILINE)
    if name != "operators.md":  # whose sections have pages
        assert shown.count("```") == markdown.count("```")
        assert shown.count("\n") == markdown.count("\n")


def test_navigation():
    """The navigation has every page once."""
    written = re.findall(r"^ +- (?:.*: )?(\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(written) == sorted(["index.md", *(path.name for path in DOCS.glob("*.md"))])
    config = SimpleNamespace(nav=[{"Operators": ["operators.md", "formats.md"]}, {"Modules": []}])
    operators, modules = generated_pages.on_config(config).nav
    assert modules["Modules"] == [f"operators/{name}.md" for name in generated_pages.MODULES]
    first, *families, types, last = operators["Operators"]
    assert (first, types, last) == ("operators.md", "operators/types.md", "formats.md")
    assert sorted(name for family in families for pages in family.values() for page in pages for name in page) == OPERATORS


def test_old_addresses():
    """Pages that were lead to pages that are, which the strict build of the site requires as well."""
    pairs = re.findall(r"^ {8}(\w+\.md): (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pairs) >= 12
    for old, new in pairs:
        assert not (DOCS / old).exists(), f"{old} is a page, and mkdocs.yml redirects it"
        assert (DOCS / new).exists(), f"mkdocs.yml redirects {old} to {new}, which is no page"


def test_first_page():
    """README's links lead to pages of the site, and what is not on it is text."""
    page = generated_pages.index()
    links = re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", page)
    assert {name for name, _ in links} >= {"tutorial.md", "speed.md", "transform.md", "exactness.md", "mesh.md"}
    for name, anchor in links:
        if name.startswith("operators/"):
            assert name.removeprefix("operators/").removesuffix(".md") in OPERATOR_PAGES
            continue
        text = (DOCS / name).read_text()
        headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        assert not anchor or anchor[1:] in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


def test_the_length_of_readme():
    """It is the first page of the site, and of the package: a screen or two."""
    assert len((ROOT / "README.md").read_bytes()) <= 6_656


def test_supported_operators_of_onnx():
    """`python docs/generated_pages.py` writes the list."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    list_in_page = (DOCS / "onnx.md").read_text().split("<!-- operators -->")[1].split("<!-- /operators -->")[0]
    stale = "the list of docs/onnx.md is stale; `python docs/generated_pages.py` writes it"
    assert list_in_page.strip() == generated_pages.onnx_operators(), stale


def test_layers():
    """The table of architecture.md has the layers of the contract, in their order."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == [layer.split(" | ") for layer in contract["layers"]]


@pytest.mark.parametrize("folder", ["onnx", "transform"])
def test_maps(folder: str):
    """The map of a folder names everything at its own level, which is at most 20 entries, and nothing that is not there."""
    root, page = PACKAGE / folder, (DOCS / "inside.md").read_text().split(f"\n## {folder}\n")[1].split("\n## ")[0]
    entries = {path.name for path in root.iterdir() if path.name not in ("__init__.py", "__pycache__")}
    named = set(re.findall(r"`([\w/*]+(?:\.py|/))`", page))
    assert len(entries) < 20
    assert not {name for name in entries if not any(each.split("/")[0] == name for each in named)}
    assert not [name for name in named if not name.startswith(("jquant/", "tests/")) and not [*root.glob(name)]]
    rows = re.findall(r"^\| \d+ \| `(\S+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(rows) >= 10
    for module, name in rows:
        assert re.search(rf"^(def|class) {name}\b", (root / module).read_text(), re.MULTILINE), (module, name)


def test_figure_of_the_architecture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra: examples)")
    shutil.copy(DOCS / "architecture.py", tmp_path)
    runpy.run_path(str(tmp_path / "architecture.py"))
    assert (tmp_path / "architecture.png").exists()


@pytest.mark.parametrize("name", OPERATORS)
def test_references(name):
    """The docstring refers to the document that errors name, and the overview has it."""
    operator = vars(importlib.import_module(getattr(jquant, name).__module__)).get("_OPERATOR")
    document = getattr(operator, "document", "") if operator == name else ""
    named = generated_pages.elsewhere(name)
    assert document.removeprefix("DML_") in {"", *(called for _, called in named)}
    references = getattr(jquant, name).__doc__.partition("References:")[2]
    referred = re.findall(r"(?:com\.microsoft\.|tf\.raw_ops\.|ONNX,\s+`)(\w+)(?<!Grad)`", references)
    assert [called for specification, called in named if specification != "DirectML"] == referred


@pytest.mark.parametrize("module", [jquant, jquant.calibration, jquant.transform], ids=lambda module: module.__name__)
def test_help_lists_what_is_public(module):
    """Through `__all__`, without which `help` omits what other modules define."""
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    public = [name for name, value in vars(module).items() if name[0] != "_" and inspect.isfunction(value)]
    assert {*public} <= {*module.__all__} <= {*dir(module)}
    assert len(public) > 4
    for name in public:
        assert f"\n    {name}(" in text


COMMANDS = [
    r"pip install \.",
    r"pip install \./native",
    r"python -m jquant",  # test_main.py
    r"python -m pytest (?:--full -k \w+ )?(?P<paths>tests.*)",
    r"python -m pytest -n 2",
    r'python3 -m venv \.venv && \. \.venv/bin/activate && pip install -e "\.\[(?P<extra>\w+)\]" && pre-commit install',
    r"\.ci/run",
    r'pip install "jax\[tpu\]" && JAX_PLATFORMS=cpu python -m benchmarks\.collectives .+',  # compiles for minutes: by hand
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_commands():
    """The gate runs every line of a shell block, except the benchmark; the extras and files that they name exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = (*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md")
    for line in "".join(block for page in pages for block in blocks(page, "(?:ba)?sh")).splitlines():
        (match,) = filter(None, (re.fullmatch(pattern, line) for pattern in COMMANDS))
        assert match.groupdict().get("extra") in {None, *extras}
        assert all((ROOT / path).exists() for path in (match.groupdict().get("paths") or "").split())


def test_every_python_block_runs():
    """Blocks are examples with their output, except excerpts of tested programs in one page."""
    for page in DOCS.glob("*.md"):
        for block in blocks(page, "python"):
            assert block.startswith(">>> ") or page.name == "recipes.md", (page.name, block)
