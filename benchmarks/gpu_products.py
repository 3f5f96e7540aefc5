"""What programs of products move to and from the memory of NVIDIA GPUs, over the bytes of their arguments and results.

    python -m benchmarks.gpu_products [GPU ...]

The programs are compiled for each GPU, which need not be present; needs jax-cuda13-pjrt and jax-cuda13-plugin.
"""

import argparse
import os

import jax
import jax.numpy as jnp

import jquant
from benchmarks import chips, traffic

SIZE, BLOCK = 4096, 32
# Without a GPU, XLA cannot measure which sizes of tiles are best, and has to be told some.
TILES = {"xla_gpu_override_gemm_autotuner": "block_m:128 block_n:128 block_k:64 num_stages:4 num_warps:8 num_ctas:1"}


def array(dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


A, SIGNED, FLOATS = (array(dtype, SIZE, SIZE) for dtype in (jnp.uint8, jnp.int8, jnp.float32))
ZERO_POINT, ZERO_POINTS = array(jnp.uint8), array(jnp.uint8, SIZE)
SCALE, SCALES = array(jnp.float32), array(jnp.float32, SIZE)
PACKED = jax.eval_shape(jquant.pack_matrix, SIGNED)
STORED = array(jnp.uint8, SIZE, SIZE // BLOCK, BLOCK // 2), array(jnp.float32, SIZE, SIZE // BLOCK)


def dequantized(a, a_scale, a_zero_point, b, b_scale):
    return jquant.matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, feature_level="EXTENDED")


def zero_points_by_row(a, b, a_zero_point):
    return jquant.matmul_integer(a, b, a_zero_point, feature_level="EXTENDED")


def requantized(a, a_scale, a_zero_point, b, b_scale):
    return jquant.quantized_linear_matmul(a, a_scale, a_zero_point, b, b_scale, None, a_scale, a_zero_point)


def with_dynamic_activations(x, b, b_scale):
    return jquant.matmul_integer_to_float(*jquant.dynamic_quantize_linear(x), b, b_scale)


def of_floats(contracted: tuple[int, int]):
    return lambda lhs, rhs: jquant.dot_general(lhs, rhs, (((contracted[0],), (contracted[1],)), ((), ())))


def packed_blocks(*, k_major: bool):
    scale = array(jnp.float32, SIZE // BLOCK, SIZE)
    weights = array(jnp.int4, SIZE, SIZE)
    return jax.eval_shape(lambda weights, scale: jquant.pack_matrix(weights, scale=scale, k_major=k_major), weights, scale)


def rows(count: int) -> jax.ShapeDtypeStruct:
    return array(jnp.float32, count, SIZE)


PROGRAMS = {
    "`matmul_integer`, packed weights": (jquant.matmul_integer, (A, PACKED, ZERO_POINT)),
    "the same to float32, scales by column": (dequantized, (A, SCALE, ZERO_POINT, PACKED, SCALES)),
    "the same to uint8, scales by column": (requantized, (A, SCALE, ZERO_POINT, PACKED, SCALES)),
    "to float32, weights as they are": (dequantized, (A, SCALE, ZERO_POINT, SIGNED, SCALES)),
    "to float32, scales by row and by column": (dequantized, (SIGNED, SCALES, None, PACKED, SCALES)),
    "to int32, zero points by row": (zero_points_by_row, (A, PACKED, ZERO_POINTS)),
    "`dynamic_quantize_linear` and the product": (with_dynamic_activations, (FLOATS, PACKED, SCALES)),
    "`dot_general`, weights (N, K)": (of_floats((1, 1)), (FLOATS, FLOATS)),
    "`dot_general`, weights (K, N)": (of_floats((1, 0)), (FLOATS, FLOATS)),
    "`matmul_n_bits`, 1 row": (jquant.matmul_n_bits, (rows(1), *STORED)),
    "`matmul_n_bits`, 8 rows": (jquant.matmul_n_bits, (rows(8), *STORED)),
    "`matmul_n_bits`, 1 row, packed `k_major`": (jquant.matmul_n_bits, (rows(1), packed_blocks(k_major=True))),
    "`matmul_n_bits`, 1 row, packed": (jquant.matmul_n_bits, (rows(1), packed_blocks(k_major=False))),
}


def ratio(gpu: str, name: str) -> float:
    function, arguments = PROGRAMS[name]
    options = {} if "n_bits" in name else TILES
    return traffic.read(chips.compile(gpu, function, *arguments, **options).as_text()).ratio


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_products", description="traffic of products on GPUs")
    parser.add_argument("gpus", nargs="*", default=chips.GPUS, metavar="GPU", help=", ".join(chips.GPUS))
    gpus = parser.parse_args().gpus
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    print("| | " + " | ".join(gpus) + " |\n|---|" + "--:|" * len(gpus))
    for name in PROGRAMS:
        print(f"| {name} | " + " | ".join(f"{ratio(gpu, name):.2f}" for gpu in gpus) + " |", flush=True)


if __name__ == "__main__":
    main()
