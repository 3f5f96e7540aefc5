"""The text that calibrates, and another that is measured: documentation which every Python brings."""

import platform
import re
from collections.abc import Sequence
from pydoc_data.topics import topics

# Some topics repeat parts of others. These share no text but notes such as "New in version 3.12."
CALIBRATION = "specialnames", "types", "formatstrings", "string-methods"
EVALUATION = "compound", "debugger", "execmodel"


def read(names: Sequence[str]) -> str:
    return "\n\n".join(topics[name] for name in names)


def described(names: Sequence[str]) -> str:
    return f"the topics {', '.join(names)} of pydoc_data.topics, Python {platform.python_version()}"


def sentences(names: Sequence[str]) -> list[str]:
    """The sentences of the paragraphs, each once, without the markup of titles and of examples."""
    paragraphs = re.split(r"\n\s*\n", read(names))
    prose = [" ".join(paragraph.split()) for paragraph in paragraphs if not re.search(r">>>|::=|={4}|-{4}|\*{4}", paragraph)]
    parts = [part for paragraph in prose for part in re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)]
    return list(dict.fromkeys(part for part in parts if re.fullmatch(r"[A-Z].*[.!?]", part)))
