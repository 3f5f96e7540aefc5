"""Raising errors about a checkpoint, and warning of one that contradicts itself: both name file and tensor."""

import inspect
import os
import warnings
from typing import NoReturn

from jquant.errors import CheckpointError


def refuse(path: str | os.PathLike[str], tensor: str | None, why: str) -> NoReturn:
    raise CheckpointError(f"{_where(path, tensor)}: {why}")


class Warnings:
    """Warns of each kind of contradiction once in a checkpoint, and names the first tensor that has it."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, kind: str, path: str | os.PathLike[str], tensor: str | None, why: str) -> None:
        if kind not in self._kinds:
            self._kinds.add(kind)
            warnings.warn(f"{_where(path, tensor)}: {why}", stacklevel=_frames_of_package() + 1)


def _frames_of_package() -> int:
    """How many frames there are from the caller's on until one that is not of this package: that of the user."""
    frame, count = inspect.currentframe(), -1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jquant.checkpoints"):
        frame, count = frame.f_back, count + 1
    return count


def _where(path: str | os.PathLike[str], tensor: str | None) -> str:
    return os.fspath(path) if tensor is None else f"{os.fspath(path)}: tensor {_short(tensor)}"


def _short(name: str) -> str:
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:197]}..."
