"""Arrays that the tests of calling conventions share."""

import numpy as np

from jquant.cases import samples

_RNG = np.random.default_rng(0)
A, B = samples.integers(_RNG, np.uint8, 4, 3), samples.integers(_RNG, np.int8, 3, 5)
IMAGE, FILTERS = samples.integers(_RNG, np.uint8, 2, 3, 6, 5), samples.integers(_RNG, np.int8, 4, 3, 2, 2)
X = _RNG.normal(size=(4, 3)).astype(np.float32)
ACCUMULATORS = samples.integers(_RNG, np.int32, 4, 3)
