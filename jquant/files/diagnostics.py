"""Errors and warnings about a checkpoint, which name the file and the tensor."""

import inspect
import os
import warnings
from typing import NoReturn

from jquant.errors import CheckpointError


def refuse(path: str | os.PathLike[str], tensor: str | None, reason: str) -> NoReturn:
    """Raises a `CheckpointError` about a file, or about one tensor in it."""
    raise CheckpointError(f"{_location(path, tensor)}: {reason}")


class Warnings:
    """Warns of each kind of contradiction once in a checkpoint, and names the first tensor that has it."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, kind: str, path: str | os.PathLike[str], tensor: str | None, reason: str) -> None:
        if kind not in self._kinds:
            self._kinds.add(kind)
            warnings.warn(f"{_location(path, tensor)}: {reason}", stacklevel=_package_frames() + 1)


def _package_frames() -> int:
    """The number of frames from the caller's to the last of jquant; the next one is the user's."""
    frame, count = inspect.currentframe(), -1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jquant."):
        frame, count = frame.f_back, count + 1
    return count


def _location(path: str | os.PathLike[str], tensor: str | None) -> str:
    return os.fspath(path) if tensor is None else f"{os.fspath(path)}: tensor {_shortened(tensor)}"


def _shortened(name: str) -> str:
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:197]}..."
