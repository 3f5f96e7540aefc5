"""Random inputs for a model."""

from collections.abc import Mapping

import numpy as np

from jquant.onnx import stablehlo
from jquant.onnx.graphs.values import jax_dtype
from jquant.onnx.model import Model

_IMAGE_SIZE = 64  # height and width, if a model takes images of any size


def random_inputs(model: Model, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Normal floats, 8-bit integers of all values, and for other integers 0 and 1, valid indices in most models.

    Args:
      sizes: the sizes of dimensions, as in `stablehlo.exported`. The others are 1, or 64 for the height and width of images.
    """
    rng = np.random.default_rng(0)
    inputs = {}
    for name, dimensions in stablehlo.dimensions(model).items():
        is_image = len(dimensions) == 4 and all(isinstance(size, str) for size in dimensions[2:])
        defaults = [1, 1, _IMAGE_SIZE, _IMAGE_SIZE] if is_image else [1] * len(dimensions)
        shape = [
            size if isinstance(size, int) else sizes.get(size, default)
            for size, default in zip(dimensions, defaults, strict=True)
        ]
        dtype = model.inputs[name].dtype
        assert dtype is not None
        jax_dtype(dtype, f"the input {name!r}")  # raises for a dtype that JAX does not have
        if dtype.kind in "iu" and dtype.itemsize == 1:
            limits = np.iinfo(dtype)
            inputs[name] = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        elif dtype.kind in "biu":
            inputs[name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            inputs[name] = rng.normal(size=shape).astype(dtype)
    return inputs
