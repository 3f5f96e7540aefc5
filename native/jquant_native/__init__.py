"""The compiled products and convolutions of jquant on CPUs, as functions for XLA.

jquant finds them; there is nothing to call here.
"""

import pathlib
import sys

__version__ = "0.1.0"

_SUFFIX = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
_PREFIX = "" if sys.platform == "win32" else "lib"

LIBRARY = pathlib.Path(__file__).parent / f"{_PREFIX}jquant_native.{_SUFFIX}"
"""The shared library, whose functions jquant registers with XLA."""
