"""Features of this machine's processor, which decide the faster of two implementations that give the same bits."""

import functools
import platform

HAS_INT8_CONVOLUTION = platform.machine().lower() in ("x86_64", "amd64", "aarch64")
"""Whether XLA has code of its own for int8 convolutions on this processor, which replaces its generic loop.

Measured on x86-64. For 64-bit Arm on Linux, it is in the programs that XLA compiles in an emulator, where it takes about as
many instructions as a product with patches, and less memory. On Apple's processors, `arm64`, nobody has looked.
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
