"""Features of this machine's processor, which decide the faster of two implementations that give the same bits."""

import functools
import platform

HAS_INT8_CONVOLUTION = platform.machine().lower() in ("x86_64", "amd64")
"""Whether XLA's own int8 convolution is known to be fast on this processor: it has been measured on x86-64 alone.

On 64-bit Arm, where it has been seen in an emulator only, it takes 0.9 to 1.2 times the instructions of a product with
patches, which decides nothing.
"""

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
