"""What the processor of this machine has: of two forms of a product, with the same bits, it decides which is the faster."""

import functools
import platform

CONVOLVES_INT8 = platform.machine().lower() in ("x86_64", "amd64")
"""Whether XLA has fast code for convolutions of int8 on it. On others, it has not been tried."""

_CPUINFO = "/proc/cpuinfo"
_FIRST_PROCESSOR = 2**14  # characters, which hold the first of all processors


@functools.cache
def multiplies_tiles_of_int8() -> bool:
    """Whether it multiplies tiles of int8 (x86's AMX), as far as Linux says so."""
    try:
        with open(_CPUINFO) as file:
            return "amx_int8" in file.read(_FIRST_PROCESSOR).split()
    except OSError:
        return False
