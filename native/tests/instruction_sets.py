"""Prints the instruction sets that the library has loops for, and that this processor has: a name a line."""

import os
import subprocess
import sys

NAMES = ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "neon_i8mm", "neon_dot", "portable")

_PROGRAM = """
import ctypes, jquant_native
function = ctypes.CDLL(str(jquant_native.LIBRARY)).jquant_instruction_set
function.restype = ctypes.c_char_p
print((function() or b"").decode())
"""


def usable() -> list[str]:
    """Each is asked for in a process of its own, because the library chooses once."""

    def is_usable(name):
        environment = {**os.environ, "JQUANT_NATIVE_ISA": name}
        command = [sys.executable, "-c", _PROGRAM]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() == name

    return list(filter(is_usable, NAMES))


if __name__ == "__main__":
    print(*usable(), sep="\n")
