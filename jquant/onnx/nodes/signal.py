"""Fourier transforms and related operators. Window functions have bodies in ONNX's schema, and need no converters."""

import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter


@converter("DFT", since=17, until=19, static=("dft_length",))
def dft_to_19(input, dft_length=None, *, axis, inverse, onesided):
    return _transform(input, dft_length, axis, inverse, onesided)


@converter("DFT", since=20, static=("dft_length", "axis"))
def dft(input, dft_length=None, axis=None, *, inverse, onesided):
    return _transform(input, dft_length, -2 if axis is None else int(axis.item()), inverse, onesided)


def _transform(x, dft_length, axis, inverse, onesided):
    """The last dimension holds the real part, or the real and imaginary parts. A one-sided inverse is real."""
    axis %= x.ndim
    if axis == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise ModelError("its last dimension must hold the real and imaginary parts, and cannot be transformed")
    length = None if dft_length is None else sizes(dft_length)[0]
    dtype = x.dtype
    values = _complex(x)
    if inverse and onesided:
        return jnp.fft.irfft(values, length, axis)[..., None].astype(dtype)
    spectrum = (jnp.fft.ifft if inverse else jnp.fft.fft)(values, length, axis)
    if onesided:
        spectrum = lax.slice_in_dim(spectrum, 0, spectrum.shape[axis] // 2 + 1, axis=axis)
    return _real_and_imaginary(spectrum, dtype)


@converter("STFT", since=17, static=("frame_step", "frame_length"))
def stft(signal, frame_step, window=None, frame_length=None, *, onesided):
    """Incomplete frames are left out."""
    lengths = sizes(frame_length) if frame_length is not None else () if window is None else window.shape
    if not lengths:
        raise ModelError("it has neither a window nor frame_length")
    (step,), (length,) = sizes(frame_step), lengths
    if step < 1 or length < 1:
        raise ModelError(f"frame_step is {step} and frame_length is {length}; both must be at least 1")
    count = max(0, (signal.shape[1] - length) // step + 1)
    values = _complex(signal if signal.ndim == 3 else signal[..., None])
    frames = values[:, np.arange(count)[:, None] * step + np.arange(length)]
    if window is not None:
        frames = frames * window.astype(frames.real.dtype)
    spectra = jnp.fft.fft(frames, axis=2)
    return _real_and_imaginary(spectra[..., : length // 2 + 1] if onesided else spectra, signal.dtype)


def _complex(x):
    wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
    return lax.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(wide[..., 0]))


def _real_and_imaginary(values, dtype):
    return jnp.stack([values.real, values.imag], -1).astype(dtype)


@converter(
    "MelWeightMatrix",
    since=17,
    static=("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"),
)
def mel_weight_matrix(num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz, *, output_datatype):
    """Triangular filters between edges that are equally spaced in mel and rounded down to bins of the transform."""
    bins, length, rate = (int(each.item()) for each in (num_mel_bins, dft_length, sample_rate))
    low, high = (2595 * np.log10(1 + each.astype(np.float64) / 700) for each in (lower_edge_hertz, upper_edge_hertz))
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    edges = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins))
    for column, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if centre == left:
            weights[centre, column] = 1
        else:
            rising = np.arange(left, centre + 1)
            weights[rising, column] = (rising - left) / (centre - left)
        if right > centre:
            falling = np.arange(centre, right)
            weights[falling, column] = (right - falling) / (right - centre)
    return weights.astype(onnx.helper.tensor_dtype_to_np_dtype(output_datatype))
