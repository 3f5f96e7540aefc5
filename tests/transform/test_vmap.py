"""`jax.vmap` of a quantized function, and the quantized form of a function under `jax.vmap`."""

import jax
import numpy as np
from support.draw import Draw, calibrated
from support.networks import SCHEMES, recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import Activations


@one_in(3, "scheme", [name for name in SCHEMES if not name.startswith("weights")], others="full")
def test_ranges_of_examples(scheme):
    """`vmap` of the quantized function has a range for each example, and the quantized form of a `vmap` one for all."""
    draw = Draw(0)
    params, quantization = {"w": draw.weights(16, 16)}, recipe(SCHEMES[scheme])
    x = draw.input(3, 7, 16) * np.float32([1, 10, 100])[:, None, None]
    apply = lambda params, x: jax.nn.relu(x @ params["w"])  # noqa: E731
    calibration = {"w": calibrated(-9, 20)}
    one, one_params = transform.quantize(apply, params, quantization, x[0], calibration=calibration)
    one_by_one = np.stack([one(one_params, example) for example in x])
    at_once = one(one_params, x.reshape(21, 16)).reshape(x.shape)
    np.testing.assert_array_equal(jax.vmap(one, (None, 0))(one_params, x), one_by_one, strict=True)
    mapped, mapped_params = transform.quantize(jax.vmap(apply, (None, 0)), params, quantization, x, calibration=calibration)
    output = mapped(mapped_params, x)
    np.testing.assert_array_equal(output, at_once, strict=True)
    assert (not np.array_equal(one_by_one, output)) == (SCHEMES[scheme].activations == Activations.DYNAMIC)
