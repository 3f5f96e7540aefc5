"""Packed weights in an Orbax checkpoint, restored on another mesh: saved with N split, restored with K split.

pip install ".[recipes]"
python examples/recipes/orbax_checkpoint.py
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jquant


def sharded(packed: jquant.PackedMatrix, mesh: Mesh, spec: P) -> jquant.PackedMatrix:
    """A target: sizes, dtypes and shardings, and the logical dtype, which is no array and so in no checkpoint."""
    shardings = packed.sharding_for(NamedSharding(mesh, spec))
    return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), packed, shardings)


def save(path: Path, model) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, model, custom_metadata={"structure": str(jax.tree.structure(model))})


def restore(path: Path, target):
    """Restores a target of the checkpoint's structure. Orbax alone would cast other dtypes, and drop arrays."""
    with ocp.StandardCheckpointer() as checkpointer:
        saved, wanted = checkpointer.metadata(path).custom_metadata["structure"], str(jax.tree.structure(target))
        if saved != wanted:
            raise ValueError(f"the checkpoint has {saved}, not {wanted}")
        return checkpointer.restore(path, target)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    wide, tall = (jax.make_mesh(shape, ("x", "y"), (AxisType.Auto,) * 2) for shape in ((2, 4), (4, 2)))
    rng = np.random.default_rng(0)
    x, weight = rng.integers(0, 256, (8, 512), np.uint8), rng.integers(0, 256, (512, 16), np.uint8)
    zero_point = rng.integers(0, 256, 16, np.uint8)
    packed = jquant.pack_matrix(weight, zero_point, block_size=64)  # K can be split in 8
    model = {"layer": jax.device_put(packed, packed.sharding_for(NamedSharding(wide, P(None, "y"))))}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step_1")
        save(path, model)
        abstract = jax.eval_shape(lambda b, z: jquant.pack_matrix(b, z, block_size=64), weight, zero_point)
        layer = restore(path, {"layer": sharded(abstract, tall, P("x", None))})["layer"]
        with ocp.StandardCheckpointer() as checkpointer:
            untyped = checkpointer.restore(path)["layer"]

    jax.tree.map(np.testing.assert_array_equal, layer, packed)
    product = jax.jit(jquant.matmul_integer)(jax.device_put(x, NamedSharding(tall, P(None, "x"))), layer)
    np.testing.assert_array_equal(product, jquant.matmul_integer(x, weight, None, zero_point))
    print(f"{layer}: data split by {model['layer'].data.sharding.spec} when saved, by {layer.data.sharding.spec} now")
    print("bit-identical: the packed weights and a product with them")
    again = jquant.PackedMatrix(**untyped, dtype=np.dtype(np.uint8))
    jax.tree.map(np.testing.assert_array_equal, again, packed)
    print(f"without a target, a dict of {sorted(untyped)}; the reader must know the dtype")


if __name__ == "__main__":
    main()
