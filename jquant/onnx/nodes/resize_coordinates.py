"""Which position in the original image an element of a resized image comes from, along one dimension."""

import dataclasses

import numpy as np

from jquant.errors import ModelError


@dataclasses.dataclass(frozen=True)
class ResizedAxis:
    """How one dimension is resized.

    Attributes:
      size: the size of the original image.
      scale: the size of the result divided by that of the original, as given or as rounded.
      positions: for each element of the result, its position in the original image, float32.
    """

    size: int
    scale: np.float32
    positions: np.ndarray

    @classmethod
    def unchanged(cls, size):
        return cls(size=size, scale=np.float32(1), positions=np.arange(size, dtype=np.float32))


def source_positions(count, *, size, scale, start, end, coordinate_transformation_mode):
    """The positions in the original image of the elements of the result, rounded to float32 where onnxruntime does.

    Args:
      count, size: the size of the result, and that of the original image.
      start, end: the region of interest, as fractions of the original image; used by "tf_crop_and_resize".
    """
    half, last = np.float32(0.5), np.float32(size - 1)
    indices = np.arange(count, dtype=np.float32)
    mode = coordinate_transformation_mode
    if mode == "asymmetric":
        return indices / scale
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and count > 1):
        return (indices + half) / scale - half
    if mode == "tf_half_pixel_for_nn":
        return (indices + half) / scale
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(count) / (scale * np.float32(size))
        offset = np.float32(size) / 2 * (1 - adjustment)
        return (offset + (indices.astype(np.float64) + 0.5) / scale - 0.5).astype(np.float32)
    if mode == "align_corners" and count != 1:
        return indices * last / np.float32(count - 1)
    if mode in ("pytorch_half_pixel", "align_corners"):
        return np.zeros(count, np.float32)
    if mode == "tf_crop_and_resize":
        start, end = np.float32(start), np.float32(end)
        if count <= 1:
            return np.full(count, 0.5 * np.float64(start + end) * last, np.float32)
        return start * last + indices * (end - start) * last / np.float32(count - 1)
    raise ModelError(f"coordinate_transformation_mode = {mode!r} is not supported")
