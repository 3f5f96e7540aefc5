"""The size of the processor's caches."""

import re
from pathlib import Path

_ASSUMED = 2**26  # if the system does not say
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def last_level() -> int:
    """The size of the largest cache in bytes, as Linux states it."""
    paths = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip()) for path in paths]
    return max((int(size[1]) * _UNITS[size[2]] for size in sizes if size), default=_ASSUMED)
