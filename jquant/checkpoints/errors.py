"""The error raised when a checkpoint cannot be read."""

import os
from typing import NoReturn


class CheckpointError(ValueError):
    """A broken file, an unsupported format, or a weight that has no packed form. The message names file and tensor."""


def refuse(path: str | os.PathLike[str], tensor: str | None, why: str) -> NoReturn:
    where = f"{os.fspath(path)}" if tensor is None else f"{os.fspath(path)}: tensor {_short(tensor)}"
    raise CheckpointError(f"{where}: {why}")


def _short(name: str) -> str:
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:197]}..."
