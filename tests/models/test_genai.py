"""Language models that the model builder of onnxruntime-genai has written, in the folder JQUANT_GENAI, beside onnxruntime.

`.ci/genai_models.py` writes them, in an environment of its own.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from support.example_programs import load_example

for package in ("onnx", "onnxruntime", "tokenizers"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")

pytestmark = pytest.mark.full

example = load_example("genai")
MODELS = [
    f"{name}-{dtype}-{block}" for name in ("llama", "qwen", "phi") for dtype in ("float32", "float16") for block in (32, 128)
]
PROMPTS = [17, 5, 99, 3, 250, 8, 41, 7], [200, 4, 31], [6, 5, 4, 3, 2], [77]
COUNT = 64


@pytest.fixture(scope="module")
def folder():
    if "JQUANT_GENAI" not in os.environ:
        pytest.skip("JQUANT_GENAI is not set: a folder in which .ci/genai_models.py has written models")
    return Path(os.environ["JQUANT_GENAI"])


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_written_tokens(folder, name, batch, count):
    """The same 64 tokens of each sequence, prompts of several lengths at once, by two programs."""
    prompts = PROMPTS[:batch]
    programs = example.step._cache_size()
    tokens, logits, _ = example.write(example.our_step(folder / name, batch, 96), prompts, COUNT)
    assert example.step._cache_size() == programs + 2
    their_tokens, their_logits, _ = example.write(example.their_step(folder / name, batch, 96), prompts, COUNT)
    assert logits.dtype == their_logits.dtype == name.split("-")[1]
    np.testing.assert_allclose(logits, their_logits, rtol=0, atol=1e-3 if logits.dtype == np.float16 else 2e-6)
    np.testing.assert_array_equal(tokens, their_tokens)
    count("tokens", tokens.size)
    count("logits", logits.size)
