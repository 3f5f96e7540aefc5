"""Int8 parameters in a file of `transform.save` and in an Orbax checkpoint, restored without the float parameters.

pip install ".[recipes]"
python examples/recipes/transform_saved.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import jquant.checkpoints
from jquant import transform


def apply(params, x):
    layers, head = params["layers"], params["head"]
    x, _ = jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer["kernel"] + layer["bias"]), None), x, layers)
    return x @ head["kernel"]


def initial(key: jax.Array):
    first, second = jax.random.split(key)
    layers = {"kernel": jax.random.normal(first, (3, 64, 64)) / 8, "bias": jnp.zeros((3, 1, 64))}
    return {"layers": layers, "head": {"kernel": jax.random.normal(second, (64, 10)) / 8}}


def main() -> None:
    params, x = initial(jax.random.key(0)), jax.random.normal(jax.random.key(1), (32, 64))
    recipe = transform.static_int8
    calibration = transform.calibrate(apply, params, [x], recipe)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)

    with tempfile.TemporaryDirectory() as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder, "orbax"), quantized_params)
        transform.save(Path(folder, "int8.safetensors"), quantized_apply, quantized_params, calibration=calibration)

        # Another program: it has the function and the types of its parameters, but no values and no ranges.
        types = jax.eval_shape(initial, jax.random.key(0))
        one_row = jax.ShapeDtypeStruct((1, 64), jnp.float32)
        loaded_apply, loaded = transform.load(Path(folder, "int8.safetensors"), apply, types, one_row)
        restored_apply, target = transform.quantize(apply, types, recipe, one_row)
        with ocp.StandardCheckpointer() as checkpointer:
            from_orbax = checkpointer.restore(Path(folder, "orbax"), target)
        arrays = jquant.checkpoints.load(Path(folder, "int8.safetensors")).read()

    y = jax.jit(quantized_apply)(quantized_params, x)
    for function, restored in ((restored_apply, from_orbax), (loaded_apply, loaded)):
        assert jax.tree.structure(restored) == jax.tree.structure(quantized_params)
        jax.tree.map(np.testing.assert_array_equal, restored, quantized_params)
        np.testing.assert_array_equal(jax.jit(function)(restored, x), y)
    for name, array in sorted(arrays.items()):
        print(f"{name:<31} {array.dtype!s:<7} {list(array.shape)}")
    print("bit-identical: the parameters and what the function computes with them")


if __name__ == "__main__":
    main()
