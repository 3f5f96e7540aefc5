"""What griffe, which reads the docstrings for the site, does not know of how they are written."""

import inspect
import re
import textwrap

import griffe

import jquant

# "a, b: float32" describes two arguments.
_SEVERAL = re.compile(r"^  ((?:\w+, )+\w+): ((?:.*\n)(?:    .*\n|\n(?=    ))*)", re.MULTILINE)
_ENTRIES = griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if not obj.docstring:
            return
        has_several = _SEVERAL.search(f"{obj.docstring.value}\n")
        obj.docstring.value = translate(obj.docstring.value)
        if isinstance(obj, griffe.Function):
            _in_order(obj)
        for section in obj.docstring.parsed if has_several else ():
            if section.kind in _ENTRIES:
                section.value[:] = _together(section.value)


def translate(docstring: str) -> str:
    """Formulas as blocks, an entry for each argument, plain references, and links from one operator to another."""
    docstring = "\n\n".join(map(_block, docstring.split("\n\n")))
    docstring = _SEVERAL.sub(_entries, f"{docstring}\n").rstrip()
    docstring = docstring.replace("\nExample:\n", "\nExamples:\n")
    before, found, references = docstring.partition("\nReferences:\n")
    if found:
        docstring = f"{before}\n**References:** {references.replace('  ', '')}"
    functions = inspect.getmembers(jquant, inspect.isfunction)
    names = "|".join(name for name, function in functions if function.__module__.startswith("jquant.operators."))
    return re.sub(rf"(?<!`)`({names})`(?!`)", r"[`\1`](\1.md)", docstring)


def _in_order(function: griffe.Function) -> None:
    """The entries of the arguments in the order of the call; and what a signature without named ones does not show."""
    places = {parameter.name: place for place, parameter in enumerate(function.parameters)}
    before, found, after = function.docstring.value.partition("Args:\n")
    if found:
        arguments, blank, rest = after.partition("\n\n")
        entries = re.split(r"^(?=  \w+:)", arguments + "\n", flags=re.MULTILINE)
        entries.sort(key=lambda entry: places.get(entry.partition(":")[0].strip(), -1))
        function.docstring.value = f"{before}{found}{''.join(entries).rstrip()}{blank}{rest}"
    kinds = {parameter.kind for parameter in function.parameters}
    if kinds == {griffe.ParameterKind.positional_only}:
        first, blank, rest = function.docstring.value.partition("\n\n")
        function.docstring.value = f"{first}\n\nArguments are given by position, not by name.{blank}{rest}"


def _block(paragraph: str) -> str:
    """A paragraph of formulas and words about them as a block, each with its words, and one of code; others as they are."""
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    # A sentence about formulas ends with a full stop; formulas do not.
    if not paragraph.startswith(("``", "With ``")) or paragraph.endswith((".", ":", ",")):
        return paragraph
    text = re.sub(r"(?<!^With)[,;]? ((?:(?:and|where|with) )?``[^`]* = )", r"\n\1", " ".join(paragraph.split()))
    lines = text.replace("`", "").splitlines()
    return "```text\n{}\n```".format("\n".join(textwrap.fill(line, 104, subsequent_indent="    ") for line in lines))


def _entries(match: re.Match) -> str:
    names, text = match.groups()
    return "".join(f"  {name}: {text}" for name in names.split(", "))


def _together(entries: list) -> list:
    """One entry again for arguments that are described as one, in the place of the first, with what they have in common."""
    found = {}
    for entry in entries:
        first = found.setdefault(entry.description, entry)
        if first is not entry:
            first.name += f", {entry.name}"
            for what in ("annotation", "value"):
                if str(getattr(first, what)) != str(getattr(entry, what)):
                    setattr(first, what, None)
    return list(found.values())
