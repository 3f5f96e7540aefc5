"""Translates jquant's docstrings into the form that griffe, which reads them for the site, expects."""

import inspect
import re
import textwrap

import griffe

import jquant

# An entry such as "a, b: float32" describes two arguments.
_SEVERAL = re.compile(r"^  ((?:\w+, )+\w+): ((?:.*\n)(?:    .*\n|\n(?=    ))*)", re.MULTILINE)
_ENTRIES = griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if not obj.docstring:
            return
        has_several = _SEVERAL.search(f"{obj.docstring.value}\n")
        obj.docstring.value = translate(obj.docstring.value)
        if isinstance(obj, griffe.Function):
            _sort_arguments(obj)
        for section in obj.docstring.parsed if has_several else ():
            if section.kind in _ENTRIES:
                section.value[:] = _join_entries(section.value)


def translate(docstring: str) -> str:
    """Makes formulas blocks, gives each argument an entry, and links the operators that are mentioned."""
    docstring = "\n\n".join(map(_block, docstring.split("\n\n")))
    docstring = _SEVERAL.sub(_split_entry, f"{docstring}\n").rstrip()
    docstring = docstring.replace("\nExample:\n", "\nExamples:\n")
    before, heading, references = docstring.partition("\nReferences:\n")
    if heading:
        docstring = f"{before}\n**References:** {references.replace('  ', '')}"
    functions = inspect.getmembers(jquant, inspect.isfunction)
    names = "|".join(name for name, function in functions if function.__module__.startswith("jquant.operators."))
    return re.sub(rf"(?<!`)`({names})`(?!`)", r"[`\1`](\1.md)", docstring)


def _sort_arguments(function: griffe.Function) -> None:
    """Sorts the entries of the arguments by position, and says if all of them are positional-only."""
    places = {parameter.name: place for place, parameter in enumerate(function.parameters)}
    before, heading, after = function.docstring.value.partition("Args:\n")
    if heading:
        arguments, blank, rest = after.partition("\n\n")
        entries = re.split(r"^(?=  \w+:)", arguments + "\n", flags=re.MULTILINE)
        entries.sort(key=lambda entry: places.get(entry.partition(":")[0].strip(), -1))
        function.docstring.value = f"{before}{heading}{''.join(entries).rstrip()}{blank}{rest}"
    kinds = {parameter.kind for parameter in function.parameters}
    if kinds == {griffe.ParameterKind.positional_only}:
        first, blank, rest = function.docstring.value.partition("\n\n")
        function.docstring.value = f"{first}\n\nArguments are given by position, not by name.{blank}{rest}"


def _block(paragraph: str) -> str:
    """A paragraph of formulas, or of code, as a block; any other paragraph unchanged."""
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    # A sentence about formulas ends with a full stop; formulas do not.
    if not paragraph.startswith(("``", "With ``")) or paragraph.endswith((".", ":", ",")):
        return paragraph
    text = re.sub(r"(?<!^With)[,;]? ((?:(?:and|where|with) )?``[^`]* = )", r"\n\1", " ".join(paragraph.split()))
    lines = text.replace("`", "").splitlines()
    return "```text\n{}\n```".format("\n".join(textwrap.fill(line, 104, subsequent_indent="    ") for line in lines))


def _split_entry(match: re.Match) -> str:
    """An entry for each of several arguments that share one."""
    names, text = match.groups()
    return "".join(f"  {name}: {text}" for name in names.split(", "))


def _join_entries(entries: list) -> list:
    """Joins entries with the same description in the place of the first; an annotation or default stays if they share it."""
    joined = {}
    for entry in entries:
        first = joined.setdefault(entry.description, entry)
        if first is not entry:
            first.name += f", {entry.name}"
            for attribute in ("annotation", "value"):
                if str(getattr(first, attribute)) != str(getattr(entry, attribute)):
                    setattr(first, attribute, None)
    return list(joined.values())
