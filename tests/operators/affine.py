"""Types and granularities that the tests of `quantize_linear` and `dequantize_linear` share."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.cases import samples

FLOAT32 = np.float32
TYPES = [jnp.dtype(f"{sign}int{bits}") for bits in (2, 4, 8, 16) for sign in ("", "u")]
WIDE_TYPES = [np.dtype(np.int32), np.dtype(np.uint32)]
FLOATS = [jnp.dtype(name) for name in ("float32", "float16", "bfloat16")]
NARROW_FLOATS = [jnp.dtype(f"float8_{name}") for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]
NARROW_FLOATS += [jnp.dtype("float4_e2m1fn")]
EXTENDED = {"feature_level": "EXTENDED"}
SIZES = 4, 6, 5
FORMS = [  # the shapes of the scale and the zero point, and the arguments that say how they are distributed
    ((), (), {}),
    ((1, 6, 1), (4, 1, 5), {}),
    (SIZES, (1, 1, 1), {}),
    *(((SIZES[axis],), (SIZES[axis],), {"axis": axis}) for axis in range(3)),
    ((), (6,), {"axis": 1}),
    ((4, 6, 3), (4, 6, 3), {"axis": 2, "block_size": 2}),
    ((4, 6, 2), (), {"axis": 2, "block_size": 3}),
    ((4, 3, 5), (1, 3, 1), {"axis": 1, "block_size": 2}),
    ((1, 2, 1), (4, 2, 5), {"axis": 1, "block_size": 5}),
    ((2, 6, 5), (2, 6, 5), {"axis": 0, "block_size": 3}),
    ((1, 6, 5), (1, 6, 5), {"axis": 0, "block_size": 99}),
    ((), (4, 6, 5), {"axis": 1, "block_size": 1}),
]


def every_form(rng, dtype, scale_dtype):
    """A random scale and zero point, and the arguments, for each of `FORMS`."""
    for scale_sizes, zero_point_sizes, options in FORMS:
        scale = rng.uniform(0.1, 1, scale_sizes).astype(scale_dtype)
        draw = samples.narrow_floats if dtype in NARROW_FLOATS else samples.integers
        yield scale, draw(rng, dtype, *zero_point_sizes), options


def jitted(operator, x, forms, **options):
    """The results of the operator for every form, from one program."""

    @jax.jit
    def program(x, operands):
        return [
            operator(x, scale, zero_point, **form, **options)
            for (scale, zero_point), (*_, form) in zip(operands, forms, strict=True)
        ]

    return program(x, [(scale, zero_point) for scale, zero_point, _ in forms])
