"""An int8 function whose second half runs only if the first half is not sure.

python examples/recipes/transform_cond.py
"""

import jax
import jax.numpy as jnp

from jquant import transform


def apply(params, x):
    x = jax.nn.relu(x @ params["first"])
    early = x @ params["early"]
    is_sure = jnp.mean(jnp.max(jax.nn.softmax(early), axis=-1)) > 0.6
    return jax.lax.cond(is_sure, lambda x: early, lambda x: jax.nn.relu(x @ params["second"]) @ params["late"], x)


def main() -> None:
    sizes = {"first": (64, 128), "early": (128, 10), "second": (128, 128), "late": (128, 10)}
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = {
        name: jax.random.normal(key, size) / size[0] ** 0.5 for key, (name, size) in zip(keys, sizes.items(), strict=True)
    }
    clear, vague = (factor * jax.random.normal(jax.random.key(1), (4, 20, 64)) for factor in (4, 1))

    recipe = transform.static_int8
    calibration = transform.calibrate(apply, params, [*clear, *vague], recipe)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, clear[0], calibration=calibration)

    print(transform.sites(apply, params, clear[0], recipe=recipe))
    try:
        transform.calibrate(apply, params, [*clear], recipe)
        raise AssertionError("a branch without a range was accepted")
    except transform.TransformError as error:
        print(error)
    for name, inputs in {"early": clear, "late": vague}.items():
        signal, other = (
            jax.lax.map(lambda x, f=f, p=p: f(p, x), inputs)
            for f, p in ((apply, params), (quantized_apply, quantized_params))
        )
        ratio = 10 * jnp.log10(jnp.sum(signal**2) / jnp.sum((other - signal) ** 2))
        assert ratio > 25
        print(f"{name}: {ratio:.0f} dB")


if __name__ == "__main__":
    main()
