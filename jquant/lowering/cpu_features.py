"""Features of this machine's processor, which decide the faster of two forms of a product that give the same bits."""

import functools
import platform

HAS_INT8_CONVOLUTION = platform.machine().lower() in ("x86_64", "amd64")
"""Whether XLA has fast code for int8 convolutions on it. It has not been tried on others."""

_CPUINFO = "/proc/cpuinfo"
_FIRST_PROCESSOR = 2**14  # characters, enough for the first of all processors


@functools.cache
def has_amx_int8() -> bool:
    """Whether it multiplies tiles of int8 (x86's AMX), according to Linux."""
    try:
        with open(_CPUINFO) as file:
            return "amx_int8" in file.read(_FIRST_PROCESSOR).split()
    except OSError:
        return False
