"""The generated pages of the site: README as the first, one for each operator, and references of the modules.

The page of an operator has its docstring, its section of operators.md, and its tables.
"""

import enum
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jquant
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.modes import FeatureLevel

_DOCUMENT = Path(__file__).with_name("operators.md").read_text()
_INTRODUCTION, *_FAMILIES = re.split(r"^## ", _DOCUMENT, flags=re.MULTILINE)
_IMPORTS = re.search(r"^```python\n(.*?)^```$", _INTRODUCTION, re.MULTILINE | re.DOTALL)[1]

_ADAPTERS = "[Adapters on frozen integers](../transform.md#adapters-on-frozen-integers) shows how these are used."
_ONNX = (
    "[ONNX models](../onnx.md) and [From JAX to ONNX](../onnx_export.md) show how these are used. "
    "What `compare` holds has [a page of its own](onnx_compare.md)."
)
_COMPARE = (
    "Comparisons with onnxruntime: of an exported model with its function, "
    "[from JAX to ONNX](../onnx_export.md#compare-the-model-with-the-function), and of a model that was read from a file."
)
MODULES = {  # each public module, by the name of its page; and the page's introduction, "" for the module's docstring
    "transform": ("jquant.transform", "[Quantize a function](../transform.md) shows how these are used."),
    "adapters": ("jquant.transform.adapters", _ADAPTERS),
    "observers": ("jquant.calibration", "Observers of ranges. [Calibration](../calibration.md) shows how they are used."),
    "kv_cache": ("jquant.kv_cache", "[Attention and its cache](../attention.md) shows how these are used."),
    "onnx": ("jquant.onnx", _ONNX),
    "onnx_compare": ("jquant.onnx.compare", _COMPARE),
    "checkpoints": ("jquant.checkpoints", "[Quantized checkpoints](../checkpoints.md) shows how these are used."),
    "host": ("jquant.host", "[Serving](../serving.md#a-host-without-jquant) shows how these are used."),
    "exact": ("jquant.exact", ""),
}


def index() -> str:
    """README with its links as they are on the site, where operators have pages. Files that are not there become text."""
    readme = Path(__file__).parents[1].joinpath("README.md").read_text()
    readme = re.sub(r"\[([^\]]*)\]\((?!docs/)[^)]*\)", r"\1", readme).replace("](docs/", "](")
    names = "|".join(name for _, texts in sections() for name in texts)
    return re.sub(rf"\]\(operators\.md#({names})\)", r"](operators/\1.md)", readme)


def sections() -> Iterator[tuple[str, dict[str, str]]]:
    """For each family of operators.md, its title, and the section of each operator by name."""
    for family in _FAMILIES:
        title, *parts = re.split(r"^### ", family, flags=re.MULTILINE)
        headed = (part.split("\n\n", 1) for part in parts)
        yield title.split("\n")[0], {name: text for heading, text in headed for name in heading.split(", ")}


def pages() -> dict[str, str]:
    """The pages of the operators, by name."""
    return {name: _page(name, text) for _, texts in sections() for name, text in texts.items()}


def types_page() -> str:
    """The page of types, errors and `feature_level`."""
    names = [name for name in dir(jquant) if name[0].isupper()]
    introduction = (
        "The types that the operators take and return besides arrays, and the errors that they raise, in `jquant`."
    )
    return _reference("Types, levels and errors", introduction, [*names, "feature_level"], jquant)


def module_page(name: str) -> str:
    """The page of a public module."""
    path, introduction = MODULES[name]
    module = importlib.import_module(path)
    return _reference(path, introduction or module.__doc__, _callables(module), module)


def onnx_operators() -> str:
    """The table of supported operators that onnx.md has between its markers."""
    importlib.import_module("jquant.onnx")
    by_domain: dict[str, list[str]] = {}
    for domain, operator in importlib.import_module("jquant.onnx.running.registry").operators():
        by_domain.setdefault(domain or "ai.onnx", []).append(f"`{operator}`")
    return "\n".join(["| domain | operators |", "|---|---|", *(f"| {k} | {', '.join(v)} |" for k, v in by_domain.items())])


def elsewhere(name: str) -> list[tuple[str, str]]:
    """What an operator is called, by the references of its docstring: the specification, and the name there."""
    references = getattr(jquant, name).__doc__.partition("References:")[2]
    pattern = (
        r"(DirectML,|and)\s+`DML_(\w+)_OPERATOR_DESC`|(ONNX),\s+`(\w+)`|(onnxruntime),\s+`com\.microsoft\.(\w+)`|"
        r"(TensorFlow,|,)\s+`tf\.raw_ops\.(\w+)`"
    )
    found = []
    for match in re.finditer(pattern, references):
        specification, called = (group for group in match.groups() if group)
        found.append(({"and": "DirectML", ",": "TensorFlow"}.get(specification, specification.rstrip(",")), called))
    return found


def written_operators() -> str:
    """The list that operators.md has between its markers: what `jquant.onnx.export` writes as a node that says the same."""
    importlib.import_module("jquant.onnx.exporter")
    nodes = importlib.import_module("jquant.onnx.writing.table").nodes
    return ", ".join(f"`{name}`" for _, texts in sections() for name in texts if nodes(name))


def _callables(module: ModuleType) -> list[str]:
    """The public functions, then the public classes."""
    return sorted((name for name in module.__all__ if callable(getattr(module, name))), key=str.swapcase)


def _reference(title: str, introduction: str, names: list[str], module: ModuleType) -> str:
    parts = [f"# {title}", introduction]
    for name in names:
        value = getattr(module, name)
        parts.append(f"::: {value.__module__}.{name}\n    options: {{heading_level: 2, show_docstring_examples: true}}")
        if isinstance(value, type) and issubclass(value, enum.Enum):
            parts.append("Values: " + ", ".join(f'`"{member}"`' for member in value))
        if isinstance(value, type) and hasattr(value, "_fields"):
            parts.append("Fields: " + ", ".join(f"`{field}`" for field in value._fields))
    return "\n\n".join(parts)


def overview() -> str:
    """operators.md with a table of links in place of the sections that are pages."""

    def row(name: str) -> str:
        named = ", ".join(f"{specification}'s {called}" for specification, called in elsewhere(name))
        return f"| [`{name}`](operators/{name}.md) | {getattr(jquant, name).__doc__.splitlines()[0]} | {named} |\n"

    text = _DOCUMENT
    for family, (_, texts) in zip(_FAMILIES, sections(), strict=True):
        if texts:
            table = "| operator | what it does | elsewhere |\n|---|---|---|\n" + "".join(map(row, texts))
            text = text.replace(family, family[: family.index("### ")] + table + "\n")
    return text


def _page(name: str, example: str) -> str:
    example = re.sub(r"\]\((\w+\.md)", r"](../\1", example).replace("```python\n", f"```python\n{_IMPORTS}", 1)
    parts = [f"::: jquant.{name}", "## Example", example]
    descriptor = descriptor_of(name)
    if descriptor:
        since = ", from each feature level on" if descriptor.levels else ""
        title = f"## Data types, ranks and shapes\n\nThose of `{descriptor.operator}`{since}."
        parts += [title, *_tables(descriptor), _constraints(descriptor)]
    return "\n\n".join(parts)


def descriptor_of(name: str) -> Descriptor | None:
    module = vars(importlib.import_module(getattr(jquant, name).__module__))
    # The table of an operator with any number of inputs is a function of their number.
    return module["_descriptor"](0) if "_descriptor" in module else module.get("_DESCRIPTOR")


def _tables(descriptor: Descriptor) -> Iterator[str]:
    """A table for each feature level, in tabs, the newest DirectML level first; or the only table."""
    if descriptor.table:
        yield _table(descriptor.table, None)
    for level, rows in sorted(descriptor.levels.items(), key=lambda item: (item[0] == FeatureLevel.EXTENDED, -item[0])):
        table = _table(rows, level).replace("\n", "\n    ")
        yield f'=== "{level}"\n\n    {table}'


def _table(rows: tuple[Tensor, ...], level: FeatureLevel | None) -> str:
    lines = ["| tensor | kind | ranks | shape | data types |", "|---|---|---|---|---|"]
    for row in rows:
        shape = f"`{row.sizes}`" if row.sizes else ""
        types = ", ".join(row.allowed_data_types(level))
        ranks = row.allowed_ranks() if row.ranks else "any"
        lines.append(f"| {row.name} | {row.kind.lower()} | {ranks} | {shape} | {types} |")
    return "\n".join(lines)


def _constraints(descriptor: Descriptor) -> str:
    constraints = [f"{' and '.join(pair)} have the same data type." for pair in descriptor.same_data_type]
    below = ", below `EXTENDED`" if FeatureLevel.EXTENDED in descriptor.levels else ""
    constraints += [f"{', '.join(group)} have the same rank{below}." for group in descriptor.same_rank]
    if descriptor.broadcast:
        where = " at `EXTENDED`" if descriptor.levels else ""
        constraints.append(f"{' and '.join(descriptor.broadcast)} may have a lower rank{where}, aligned as in NumPy.")
    if descriptor.one_element:
        constraints.append(f"{', '.join(descriptor.one_element)}: 1 element each.")
    if descriptor.per_channel:
        constraints.append(f"{', '.join(descriptor.per_channel)}: 1 element, or 1 for each channel.")
    constraints += [f"`{name}` is 1 or `{full}`." for name, full in descriptor.counts.items()]
    if descriptor.batch:
        constraints.append(f"A size of 1 broadcasts in {' and '.join(f'`{name}`' for name in descriptor.batch)}.")
    rows = next(iter(descriptor.levels.values())) if descriptor.levels else descriptor.table
    if any(row.sizes is None and row.kind != "Output" for row in rows):
        constraints.append("Tensors without a shape in the table have that of the output, and sizes of 1 broadcast.")
    return "\n".join(f"- {constraint}" for constraint in constraints)


def on_config(config):
    groups = {title: pages for entry in config.nav if isinstance(entry, dict) for title, pages in entry.items()}
    overview, *others = groups["Operators"]
    families = [{family: [{name: f"operators/{name}.md"} for name in texts]} for family, texts in sections() if texts]
    groups["Operators"][:] = [overview, *families, "operators/types.md", *others]
    groups["Modules"][:] = [f"operators/{name}.md" for name in MODULES]
    return config


def on_files(files, config):
    from mkdocs.structure.files import File

    modules = {name: module_page(name) for name in MODULES}
    files.append(File.generated(config, "index.md", content=index()))
    for name, content in (pages() | modules | {"types": types_page()}).items():
        files.append(File.generated(config, f"operators/{name}.md", content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Replaces operators.md by the overview, and adapts the repository's Markdown to the site."""
    if page.file.src_uri == "operators.md":
        markdown = overview()
    # Links to files that are not on the site become text.
    markdown = re.sub(r"\[([^\]]*)\]\((?:\.\./(?!\w+\.md)|examples/|\.\./README|\.\./CONTRIBUTING)[^)]*\)", r"\1", markdown)
    # Sessions are marked as such, and lose what is only for doctest.
    markdown = re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^<BLANKLINE>$|  # doctest: .*$", "", markdown, flags=re.MULTILINE)
    # A figure links to its file, since it may be too small to read on the page.
    return re.sub(r"^(!\[[^\]]*\]\((\w+\.png)\))$", r"[\1](\2)", markdown, flags=re.MULTILINE)


def with_list(page: str, marker: str, text: str) -> str:
    """A page with another list between its markers."""
    before, _, after = re.split(f"(?<=<!-- {marker} -->\n)(.*?)(?=<!-- /{marker} -->)", page, flags=re.DOTALL)
    return f"{before}\n{text}\n\n{after}"


if __name__ == "__main__":  # writes the lists of operators into onnx.md and operators.md
    for name, marker, text in (("onnx", "operators", onnx_operators()), ("operators", "written", written_operators())):
        page = Path(__file__).with_name(f"{name}.md")
        page.write_text(with_list(page.read_text(), marker, text))
