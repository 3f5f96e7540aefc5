"""Weights of a checkpoint in the place of those that a float model was quantized to."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant import transform
from jquant.checkpoints import QuantizedWeight

K, N, LAYERS = 64, 24, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, K)).astype(np.float32)


def weight(dtype: str, block_size: int, *, zero_point=False, minimum=False, permutation=False) -> QuantizedWeight:
    blocks = -(-K // block_size)
    limits = jnp.iinfo(dtype)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    draw = lambda *shape: RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)  # noqa: E731
    return QuantizedWeight(
        values=draw(K, N),
        scale=RNG.uniform(0.01, 0.1, (blocks, N)).astype(np.float16),
        zero_point=draw(blocks, N) if zero_point else None,
        minimum=RNG.normal(size=(blocks, N)).astype(np.float32) if minimum else None,
        permutation=RNG.permutation(K).astype(np.int32) if permutation else None,
        block_size=block_size,
    )


WEIGHTS = {
    "GPTQ": weight("uint4", 32, zero_point=True),
    "GPTQ in the order of activations": weight("uint4", 16, zero_point=True, permutation=True),
    "Q4_0": weight("int4", 32),
    "Q4_1": weight("uint4", 32, minimum=True),
    "Q8_0": weight("int8", 32),
    "blocks of 24": weight("int4", 24),
}


def stored(weight: QuantizedWeight) -> dict:
    packed = weight.pack()
    return {"values": packed.matrix} | ({} if packed.permutation is None else {"permutation": packed.permutation})


def with_sites(target, **sites):
    return {**target, "sites": sites}


@pytest.mark.parametrize("recipe", ["weight_only_int4", "int4_by_rows"])
@one_in(3, "name", WEIGHTS)
def test_a_product(name, recipe):
    """The composition of the operators that the checkpoint's weights are for, jitted and eagerly."""
    types = {"w": jax.ShapeDtypeStruct((K, N), jnp.float32)}
    quantized_apply, target = transform.quantize(lambda p, x: x @ p["w"], types, getattr(transform, recipe), X)
    site = stored(WEIGHTS[name])
    x = X if "permutation" not in site else X[:, site["permutation"]]
    if recipe == "weight_only_int4":
        expected = jquant.matmul_n_bits(x, site["values"])
    else:
        values, scale, _ = jquant.dynamic_quantize_linear(
            X, axis=1, symmetric=True, output_dtype="INT8", feature_level="EXTENDED"
        )
        values = values if "permutation" not in site else values[:, site["permutation"]]
        expected = jquant.block_scaled_matmul(values, scale, None, site["values"])
    params = with_sites(target, w=site)
    np.testing.assert_array_equal(jax.jit(quantized_apply)(params, X), expected, strict=True)
    np.testing.assert_array_equal(quantized_apply(params, X), expected, strict=True)


@one_in(3, "name", WEIGHTS)
def test_layers_and_a_table(name):
    """Stacked over a loop; and rows that are looked up are those that the checkpoint dequantizes."""

    def apply(params, indices):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w.T, None), params["table"][indices], params["layers"])
        return x

    indices = np.int32([3, 0, 23])
    types = {"table": (N, K), "layers": (LAYERS, K, N)}
    types = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in types.items()}
    rules = [("layers#2", None), *transform.weight_only_int4.rules]
    quantized_apply, target = transform.quantize(apply, types, transform.Recipe(rules), indices)
    site = stored(WEIGHTS[name])
    layers = jax.tree.map(lambda *each: jnp.stack(each), *[site] * LAYERS)
    floats = jnp.stack([jnp.asarray(WEIGHTS[name].dequantize(), jnp.float32)] * LAYERS)
    params = {**with_sites(target, table=site, layers=layers), "float": {"layers": floats}}
    x = jquant.exact.narrow(look_up(WEIGHTS[name])[indices], np.float32)
    for _ in range(LAYERS):
        rows = x if "permutation" not in site else x[:, site["permutation"]]
        x = jnp.tanh(jquant.matmul_n_bits(rows, site["values"])) @ floats[0].T
    np.testing.assert_array_equal(jax.jit(quantized_apply)(params, indices), x)


def look_up(weight: QuantizedWeight) -> jax.Array:
    """The rows of the table whose transpose is the weight, in float32."""
    scale = np.asarray(weight.scale, np.float32)
    wide = QuantizedWeight(weight.values, scale, weight.zero_point, weight.minimum, weight.permutation, weight.block_size)
    return jnp.asarray(wide.dequantize()).T


def test_refused_weights():
    types = {"w": jax.ShapeDtypeStruct((K, N), jnp.float32)}
    apply = lambda p, x: x @ p["w"]  # noqa: E731
    in_blocks, target = transform.quantize(apply, types, transform.weight_only_int4, X)
    in_columns, _ = transform.quantize(apply, types, transform.dynamic_int8, X)
    packed = jquant.pack_matrix(np.ones((K, N), np.int8))
    narrow = jquant.pack_matrix(np.ones((K, N - 8), np.int8), scale=np.ones((2, N - 8), np.float32))
    for function, site, message in (
        (in_blocks, {"values": packed}, r"values is PackedMatrix\(int8\[64,24\]\); it must be a PackedBlockMatrix"),
        (in_blocks, {"values": narrow}, r"of shape \(64, 16\); it must have shape \(64, 24\)"),
        (in_blocks, packed, "the weights of w: they must be a dict with values"),
        (in_columns, {"values": packed}, "they must be a dict with scale and values"),
        (in_columns, {**stored(WEIGHTS["Q4_0"]), "scale": np.ones(N)}, "it must be a PackedMatrix"),
        (in_columns, {"values": packed, "scale": np.ones(N), "permutation": np.arange(K)}, "a dict with scale and values"),
    ):
        with pytest.raises(transform.TransformError, match=message):
            function(with_sites(target, w=site), X)
