"""Int8 parameters in an Orbax checkpoint and in a safetensors file, restored without the float parameters.

pip install ".[recipes]"
python examples/recipes/transform_saved.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from safetensors.numpy import load_file, save_file

import jquant
from jquant import transform


def apply(params, x):
    layers, head = params["layers"], params["head"]
    x, _ = jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer["kernel"] + layer["bias"]), None), x, layers)
    return x @ head["kernel"]


def initial(key: jax.Array):
    first, second = jax.random.split(key)
    layers = {"kernel": jax.random.normal(first, (3, 64, 64)) / 8, "bias": jnp.zeros((3, 1, 64))}
    return {"layers": layers, "head": {"kernel": jax.random.normal(second, (64, 10)) / 8}}


def is_packed(node) -> bool:
    return isinstance(node, jquant.PackedMatrix)


def to_safetensors(quantized_params) -> dict[str, np.ndarray]:
    """Arrays by name; packed weights as matrices, since their packed form may differ between versions."""
    leaves = jax.tree_util.tree_leaves_with_path(quantized_params, is_leaf=is_packed)
    named = {jax.tree_util.keystr(path, simple=True, separator=":"): leaf for path, leaf in leaves}
    return {name: np.array(leaf.unpack() if is_packed(leaf) else leaf, order="C") for name, leaf in named.items()}


def from_safetensors(arrays: dict[str, np.ndarray], target):
    def restored(path, leaf):
        array = jnp.asarray(arrays[jax.tree_util.keystr(path, simple=True, separator=":")])
        return jquant.pack_matrix(array) if is_packed(leaf) else array

    return jax.tree_util.tree_map_with_path(restored, target, is_leaf=is_packed)


def main() -> None:
    params, x = initial(jax.random.key(0)), jax.random.normal(jax.random.key(1), (32, 64))
    recipe = transform.static_int8
    calibration = transform.calibrate(apply, params, [x], recipe)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)

    with tempfile.TemporaryDirectory() as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder, "orbax"), quantized_params)
        save_file(to_safetensors(quantized_params), Path(folder, "int8.safetensors"))

        # Another program: it has the function and the types of its parameters, but no values and no ranges.
        types = jax.eval_shape(initial, jax.random.key(0))
        restored_apply, target = transform.quantize(apply, types, recipe, jax.ShapeDtypeStruct((1, 64), jnp.float32))
        with ocp.StandardCheckpointer() as checkpointer:
            from_orbax = checkpointer.restore(Path(folder, "orbax"), target)
        arrays = load_file(Path(folder, "int8.safetensors"))
        from_file = from_safetensors(arrays, target)

    y = jax.jit(quantized_apply)(quantized_params, x)
    for restored in (from_orbax, from_file):
        assert jax.tree.structure(restored) == jax.tree.structure(quantized_params)
        jax.tree.map(np.testing.assert_array_equal, restored, quantized_params)
        np.testing.assert_array_equal(jax.jit(restored_apply)(restored, x), y)
    for name, array in sorted(arrays.items()):
        print(f"{name:<31} {array.dtype!s:<7} {list(array.shape)}")
    print("bit-identical: the parameters and what the function computes with them")


if __name__ == "__main__":
    main()
