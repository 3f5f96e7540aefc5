"""The titles that the int8 decoder of a language model writes, against onnxruntime, bit for bit."""

import numpy as np
import pytest
from support.documents import run_document
from support.example_programs import load_example
from support.sampling import one_in
from support.saturation import need_exact_products

for package in ("onnx", "traceforge_title_model", "tokenizers", "onnxruntime", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra: models)")

from jquant.onnx import ModelError  # noqa: E402

example = load_example("title_decoder")
titles = load_example("titles")


@pytest.fixture(scope="module")
def equal():
    return example.load_equal()


@pytest.fixture(scope="module")
def sessions():
    need_exact_products(np.uint8, np.int8)
    return [titles.onnxruntime_session(path, optimised=False) for path in (titles.ENCODER, titles.DECODER)]


@pytest.mark.gate
@one_in(3, "sentence", example.EXAMPLES, others="full")
def test_titles(equal, sessions, sentence):
    """All logits of every step, padded in jquant and unpadded in onnxruntime."""
    tokens, logits = example.write(example.our_step(equal, sentence))
    their_tokens, their_logits = example.write(example.onnxruntime_step(*sessions, sentence))
    assert tokens == their_tokens
    assert len(logits) > 2
    for ours, theirs in zip(logits, their_logits, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.gate
def test_all_lengths_are_one_program(equal, sessions):
    """One program serves all lengths, here with tokens that are no title."""
    sentence = titles.SENTENCES[5]
    ours, theirs = example.our_step(equal, sentence), example.onnxruntime_step(*sessions, sentence)
    tokens = [example.START, *range(100, 99 + example.TITLE)]
    ours(tokens[:5])
    programs = example.decode._cache_size()
    for length in (1, 2, 3, 8, 15, example.TITLE):
        np.testing.assert_array_equal(ours(tokens[:length]), theirs(tokens[:length]), strict=True)
    assert example.decode._cache_size() == programs


@pytest.mark.gate
def test_masks_keep_padding_out(equal, sessions):
    """Without masks, padding with another token changes the ranges, and with them the logits."""
    padded = titles.tokenize(titles.SENTENCES[:1])
    padded = {name: example.pad(x, example.SENTENCE) for name, x in padded.items()}
    padded["input_ids"][:, -3:] = 31_000
    model, length = equal.encoder, int(padded["attention_mask"].sum())
    expected = titles.run(sessions[0], titles.tokenize(titles.SENTENCES[:1]))
    with_mask = example.encode(equal, model.params, padded)
    without_mask = example.jax.jit(model)(model.params, padded)["last_hidden_state"]
    np.testing.assert_array_equal(with_mask[:, :length], expected, strict=True)
    assert np.mean(without_mask[:, :length] != expected) > 0.5


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 7)], r"where has shape \(1, 7\); no dynamically quantized activation has these as its leading dimensions"),
        ([(1, 32), (1, 7)], r"where has shape \(1, 7\); no"),
        ([(1, 32), (1, 32)], r"where has masks of shapes \[\(1, 32\), \(1, 32\)\]; the shapes must differ"),
    ],
)
def test_masks_that_fit_nothing(equal, shapes, message):
    padded = {name: example.pad(x, example.SENTENCE) for name, x in titles.tokenize(titles.SENTENCES[:1]).items()}
    masks = tuple(np.ones(shape, bool) for shape in shapes)
    with pytest.raises(ModelError, match=message):
        example.jax.eval_shape(lambda: equal.encoder(equal.encoder.params, padded, where=masks))


@pytest.mark.gate
def test_functions_of_jax(sessions):
    """Their last bits differ from onnxruntime's. The logits are near, and the title is the same."""
    model = example.load({})
    sentence = example.EXAMPLES[0]
    tokens, logits = example.write(example.our_step(model, sentence))
    their_tokens, their_logits = example.write(example.onnxruntime_step(*sessions, sentence))
    assert tokens == their_tokens
    cosines = [np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(logits, their_logits, strict=True)]
    assert min(cosines) > 0.99


def test_document():
    need_exact_products(np.uint8, np.int8)
    run_document("docs/evidence.md", "Its decoder, which writes titles")
