"""Features of this machine's processor, which decide the faster of two implementations that give the same bits."""

import functools
import platform

HAS_INT8_CONVOLUTION = platform.machine().lower() in ("x86_64", "amd64")
"""Whether XLA has fast code for int8 convolutions on this processor. Only x86-64 has been tried."""

_CPUINFO = "/proc/cpuinfo"
_FIRST_PROCESSOR = 2**14  # characters, enough for the entry of the first processor


@functools.cache
def has_amx_int8() -> bool:
    """Whether this processor multiplies tiles of int8 (x86's AMX), according to Linux."""
    try:
        with open(_CPUINFO) as file:
            return "amx_int8" in file.read(_FIRST_PROCESSOR).split()
    except OSError:
        return False
