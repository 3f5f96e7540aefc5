"""The marker of tests that need jquant-native, the compiled products on CPUs."""

import pytest

from jquant.kernels.native import shared_library

_OBSTACLE = shared_library.load().obstacle

requires_native = pytest.mark.skipif(_OBSTACLE is not None, reason=_OBSTACLE or "jquant-native can be used")
