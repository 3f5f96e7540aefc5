"""Language models as onnxruntime-genai writes them: tokens, logits and programs of decoding loops, against onnxruntime."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.example_programs import load_example

for package in ("onnx", "onnxruntime", "tokenizers"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")

import jquant.onnx  # noqa: E402

from . import decoder_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

example = load_example("genai")
PROMPTS = [5, 9, 17, 3, 8], [4, 7], [1, 2, 3, 4, 5, 6, 7], [63]
LENGTH = 40


@pytest.fixture(scope="module", params=[np.float32, np.float16])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder")
    decoder_model.save(path, request.param)
    return path


@pytest.mark.parametrize("batch", [1, 4])
def test_written_tokens(folder, batch):
    """Prompts of several lengths at once, padded; a program for the prompts, and one for all tokens after them."""
    prompts, count = PROMPTS[:batch], 24
    programs = example.step._cache_size()
    tokens, logits, _ = example.write(example.our_step(folder, batch, LENGTH), prompts, count)
    assert example.step._cache_size() == programs + 2
    their_tokens, their_logits, _ = example.write(example.their_step(folder, batch, LENGTH), prompts, count)
    np.testing.assert_array_equal(tokens, their_tokens)
    assert len(np.unique(tokens)) > 5
    tolerance = 1e-2 if logits.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(logits, their_logits, rtol=tolerance, atol=tolerance * np.abs(their_logits).max())


def test_sequences_do_not_depend_on_the_others(folder):
    tokens, _, _ = example.write(example.our_step(folder, 4, LENGTH), PROMPTS, 16)
    for prompt, expected in zip(PROMPTS[:2], tokens, strict=False):
        alone, _, _ = example.write(example.our_step(folder, 1, LENGTH), [prompt], 16)
        np.testing.assert_array_equal(alone[0], expected)


@pytest.mark.parametrize("batch", [1, 4])
def test_memory_of_a_step(folder, batch):
    """A step writes into the cache that it is given, and holds no copy of it.

    But XLA:CPU widens one layer of float16, and that of jax 0.10 copies a layer of one sequence.
    """
    model = jquant.onnx.load(folder / "model.onnx")
    declared = {name: value.dtype for name, value in model.inputs.items()}
    cache = jax.tree.map(jnp.asarray, example.empty_cache(folder, declared, batch, 4096))
    tokens, ends = np.zeros((batch, 1), np.int32), np.full(batch, 7, np.int32)
    memory = example.step.lower(model, model.params, tokens, ends, cache).compile().memory_analysis()
    layer = sum(array.nbytes for array in cache.values()) / decoder_model.LAYERS
    assert memory.alias_size_in_bytes == decoder_model.LAYERS * layer
    is_float16 = next(iter(cache.values())).dtype == jnp.float16
    is_copied = batch == 1 and jax.__version_info__ < (0, 11)
    assert memory.temp_size_in_bytes < layer * (3.5 if is_copied else 2.5 if is_float16 else 0.5)


def test_over_a_mesh(folder):
    """Sequences and their caches split over four devices."""
    model = jquant.onnx.load(folder / "model.onnx")
    declared = {name: value.dtype for name, value in model.inputs.items()}
    cache = example.empty_cache(folder, declared, 4, LENGTH)
    ends = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    tokens = np.array([[*prompt, *[0] * (ends.max() - len(prompt))] for prompt in PROMPTS], np.int32)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    split = jax.NamedSharding(mesh, jax.P("batch"))
    alone = example.step(model, model.params, tokens, ends, jax.tree.map(jnp.asarray, cache))
    logits, caches = example.step(model, model.params, *jax.device_put((tokens, ends, cache), split))
    assert all(array.sharding.is_equivalent_to(split, array.ndim) for array in caches.values())
    tolerance = 1e-2 if logits.dtype == jnp.float16 else 1e-5
    for one, other in zip(jax.tree.leaves((logits, caches)), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_open_sizes(folder):
    """One exported program for every number of sequences and every length of the cache."""
    model = jquant.onnx.load(folder / "model.onnx")
    batch, length = jax.export.symbolic_shape("batch, length")
    declared = {name: value.dtype for name, value in model.inputs.items()}
    cache = example.empty_cache(folder, declared, 4, LENGTH)
    shapes = {
        name: jax.ShapeDtypeStruct((batch, array.shape[1], length, array.shape[3]), array.dtype)
        for name, array in cache.items()
    }
    shapes |= {
        "input_ids": jax.ShapeDtypeStruct((batch, 1), jnp.int32),
        "attention_mask": jax.ShapeDtypeStruct((batch, length), jnp.int32),
    }
    program = jax.export.export(jax.jit(model))(model.params, shapes)
    inputs = {
        "input_ids": np.array([[3], [9], [4], [5]], np.int32),
        "attention_mask": np.eye(4, LENGTH, dtype=np.int32),
        **cache,
    }
    expected = jax.jit(model)(model.params, inputs)
    for name, array in program.call(model.params, inputs).items():
        tolerance = 1e-2 if array.dtype == jnp.float16 else 1e-5
        np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=tolerance)
