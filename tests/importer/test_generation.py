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
