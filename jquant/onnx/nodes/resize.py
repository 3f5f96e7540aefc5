"""Resize and Upsample, with every rounding of onnxruntime.

Results that are integers are truncated, so that the last bit of a float decides.
"""

import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.graphs.values import sizes as as_sizes
from jquant.onnx.nodes.resize_coordinates import ResizedAxis, source_positions
from jquant.onnx.nodes.resize_interpolation import INTERPOLATIONS, Interpolation
from jquant.onnx.nodes.vectors import along_axis
from jquant.onnx.running import limits
from jquant.onnx.running.registry import converter


@converter("Upsample", since=7, until=8)
def upsample_to_8(x, *, mode, scales):
    return _resize(x, Interpolation(mode), scales=np.asarray(scales, np.float32))


@converter("Upsample", since=9, until=9, static=("scales",))
def upsample(x, scales, *, mode):
    return _resize(x, Interpolation(mode), scales=scales)


@converter("Resize", since=10, until=10, static=("scales",))
def resize_10(x, scales, *, mode):
    """ONNX does not say which pixel is nearest. onnxruntime takes the one before, or, where an image shrinks, after."""
    return _resize(x, Interpolation(mode, nearest_mode="simple"), scales=scales)


@converter("Resize", since=11, static=("roi", "scales", "sizes"))
def resize(
    x,
    roi=None,
    scales=None,
    sizes=None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode,
    cubic_coeff_a,
    exclude_outside,
    extrapolation_value,
    keep_aspect_ratio_policy="stretch",
    mode,
    nearest_mode,
):
    """Positions are computed in float32, as in onnxruntime, because rounding decides for those between two pixels."""
    interpolation = Interpolation(
        mode=mode,
        nearest_mode=nearest_mode,
        cubic_coeff_a=cubic_coeff_a,
        antialias=bool(antialias),
        exclude_outside=bool(exclude_outside),
    )
    return _resize(
        x,
        interpolation,
        scales=None if scales is None or not scales.size else scales,
        sizes=None if sizes is None or not sizes.size else as_sizes(sizes),
        axes=None if axes is None else [axis % x.ndim for axis in axes],
        keep_aspect_ratio_policy=keep_aspect_ratio_policy,
        coordinate_transformation_mode=coordinate_transformation_mode,
        roi=roi,
        extrapolation_value=extrapolation_value,
    )


def _resize(
    x,
    interpolation,
    *,
    scales=None,
    sizes=None,
    axes=None,
    keep_aspect_ratio_policy="stretch",
    coordinate_transformation_mode="asymmetric",
    roi=None,
    extrapolation_value=0.0,
):
    axes = list(range(x.ndim)) if axes is None else axes
    if interpolation.mode not in INTERPOLATIONS:
        raise ModelError(f"mode = {interpolation.mode!r} is not supported")
    if scales is not None:
        scales = [np.float32(scale) for scale in scales]
        sizes = [
            x.shape[axis] if scale == 1 else int(np.float32(x.shape[axis]) * scale)
            for axis, scale in zip(axes, scales, strict=True)
        ]
    elif sizes is not None:
        scales, sizes = _scales_and_sizes(x, axes, sizes, keep_aspect_ratio_policy)
    else:
        raise ModelError("neither scales nor sizes are given")
    if all(size == x.shape[axis] for axis, size in zip(axes, sizes, strict=True)):
        return x  # whatever the scales are
    shape = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    limits.check_shape(shape, x.dtype, x)
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    region = roi if crops and roi is not None else [0] * len(axes) + [1] * len(axes)
    resized, outside = {}, None
    for i, axis in enumerate(axes):
        size, scale = x.shape[axis], scales[i]
        if scale == 1:
            continue
        positions = source_positions(
            sizes[i],
            size=size,
            scale=scale,
            start=region[i],
            end=region[i + len(axes)],
            coordinate_transformation_mode=coordinate_transformation_mode,
        )
        resized[axis] = ResizedAxis(size=size, scale=scale, positions=positions)
        if crops:
            beyond = along_axis((positions < 0) | (positions > size - 1), axis, x.ndim)
            outside = beyond if outside is None else outside | beyond
    y = INTERPOLATIONS[interpolation.mode](x, resized, interpolation)
    return y if outside is None else jnp.where(outside, jnp.asarray(extrapolation_value, x.dtype), y)


def _scales_and_sizes(x, axes, sizes, keep_aspect_ratio_policy):
    """The scales for these sizes, and the sizes themselves, which change if the aspect ratio is to be kept."""
    scales = [
        np.float32(1) if size == x.shape[axis] else np.float32(size) / np.float32(x.shape[axis])
        for axis, size in zip(axes, sizes, strict=True)
    ]
    if keep_aspect_ratio_policy == "stretch":
        return scales, sizes
    scale = {"not_larger": min, "not_smaller": max}[keep_aspect_ratio_policy](scales)
    lengths = [float(scale * np.float32(x.shape[axis])) for axis in axes]
    return [scale] * len(axes), [int(length + 0.5) for length in lengths]
