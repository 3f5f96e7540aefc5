"""An int8 layer in a safetensors file: written from NumPy, read back, packed again.

pip install ".[recipes]"
python examples/recipes/safetensors_model.py
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

import jquant


def main() -> None:
    rng = np.random.default_rng(0)
    layer = {
        "weight": rng.integers(0, 256, (256, 64), np.uint8),
        "weight_scale": rng.uniform(1e-3, 1e-1, (1, 64)).astype(np.float32),
        "weight_zero_point": rng.integers(0, 256, (1, 64), np.uint8),
        "input_scale": np.float32(0.02).reshape(1, 1),
        "input_zero_point": np.uint8(128).reshape(1, 1),
        "output_scale": np.float32(0.5).reshape(1, 1),
        "output_zero_point": np.uint8(3).reshape(1, 1),
    }
    packed = jquant.pack_matrix(layer["weight"], layer["weight_zero_point"])

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "layer.safetensors")
        save_file(layer | {"weight": np.asarray(packed.unpack())}, file)  # the matrix, not its packed form
        restored = load_file(file)
    packed_again = jquant.pack_matrix(restored["weight"], restored["weight_zero_point"])

    for name, value in layer.items():
        np.testing.assert_array_equal(restored[name], value, strict=True)
        print(f"{name:<17} {value.dtype!s:<7} {list(value.shape)}")
    jax.tree.map(np.testing.assert_array_equal, packed_again, packed)
    x = rng.integers(0, 256, (8, 256), np.uint8)
    before, after = (
        jquant.quantized_linear_matmul(
            x,
            values["input_scale"],
            values["input_zero_point"],
            weight,
            values["weight_scale"],
            None,
            values["output_scale"],
            values["output_zero_point"],
        )
        for values, weight in ((layer, packed), (restored, packed_again))
    )
    np.testing.assert_array_equal(before, after)
    print("bit-identical: the packed weights and a product with them")


if __name__ == "__main__":
    main()
