"""Selects rows of a benchmark by the names and patterns of its command line."""

import fnmatch
import itertools
from collections.abc import Iterable, Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


def select(patterns: Iterable[str], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries whose names, or tags if they have some, match one of the patterns, in their own order."""
    labels = {name: (name, *getattr(entry, "tags", ())) for name, entry in entries.items()}
    for pattern in patterns:
        if not fnmatch.filter(itertools.chain(*labels.values()), pattern):
            raise SystemExit(f"{pattern!r} matches none of {', '.join(entries)}")
    return {
        name: entry
        for name, entry in entries.items()
        if any(fnmatch.fnmatchcase(label, each) for label in labels[name] for each in patterns)
    }
