"""Selects rows of a benchmark by the names and patterns of its command line."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


def select(patterns: Iterable[str], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries whose names match one of the patterns, in their own order."""
    for pattern in patterns:
        if not fnmatch.filter(entries, pattern):
            raise SystemExit(f"{pattern!r} matches none of {', '.join(entries)}")
    return {name: entry for name, entry in entries.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)}
