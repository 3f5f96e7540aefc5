"""Files that appear whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` once all of it is on the disk.

    Until then, and if the process or the machine stops on the way, the old file is there as it was, and beside it a hidden
    one, ``.name.….tmp``, that nothing reads. An error removes that one, and names `path`.
    """
    target = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    if target.exists() and not target.is_file():  # nor a folder, a pipe or a device
        number = errno.EISDIR if target.is_dir() else errno.EINVAL
        raise OSError(number, os.strerror(number), os.fspath(path))
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == os.fspath(temporary):
            error.filename, error.filename2 = os.fspath(path), None
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Has the new name on the disk, too, where systems allow that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
