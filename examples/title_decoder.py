"""Titles from an int8 encoder and decoder, loaded from their ONNX files: one compiled program for sentences of all lengths.

The package `traceforge-title-model` has FLAN-T5 small, fine-tuned to write titles. The graph of its decoder keeps no state
from one token to the next: it takes the tokens so far, and gives the logits after each of them. onnxruntime runs it at every
length. Here all inputs are padded to one length; `where=` keeps the padding out of the ranges by which activations are
quantized, and the attention mask excludes it, too. With onnxruntime's float32 functions, the logits are onnxruntime's, bit
for bit. Prints the titles, how many logits are equal, and how long a token takes.

    pip install ".[models]"
    python examples/title_decoder.py
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime_float32
from onnxruntime import InferenceSession
from titles import DECODER, ENCODER, SENTENCES, TOKENIZER, median_milliseconds, onnxruntime_session, run, tokenize
from tqdm import tqdm

import jquant

START, END = 0, 1  # tokens
SENTENCE, TITLE = 32, 16  # tokens at most; two different lengths, by which masks are matched to activations
EXAMPLES = SENTENCES[::4] + SENTENCES[3::8]

Step = Callable[[Sequence[int]], np.ndarray]  # from the tokens so far to the logits, (tokens, vocabulary)


class Titler(NamedTuple):
    """The models, which are static in compiled programs; both decoders have the same parameters."""

    encoder: jquant.onnx.Model
    first: jquant.onnx.Model  # the decoder, for the first step, which has one token
    later: jquant.onnx.Model  # the decoder, for later steps


def load(floats: dict[str, Callable], single_row: Callable | None = None) -> Titler:
    """Loads the models with these float functions, and with another matrix product for a single token if one is given."""
    encoder, later = (jquant.onnx.load(path, overrides=floats) for path in (ENCODER, DECODER))
    first = later if single_row is None else jquant.onnx.load(DECODER, overrides=floats | {"MatMul": single_row})
    return Titler(encoder, first, later)


@functools.cache
def load_equal() -> Titler:
    """The models with onnxruntime's float functions: it adds in another order if a matrix has a single row."""
    return load(onnxruntime_float32.FUNCTIONS, onnxruntime_float32.matmul_single_row)


@functools.partial(jax.jit, static_argnums=0)
def encode(titler: Titler, params: dict, inputs: dict) -> jax.Array:
    """The hidden states of padded sentences, of shape (sentences, length, width)."""
    return titler.encoder(params, inputs, where=inputs["attention_mask"] != 0)["last_hidden_state"]


@functools.partial(jax.jit, static_argnums=0)
def decode(titler: Titler, params: dict, inputs: dict, count: int) -> jax.Array:
    """The logits after each token, (1, tokens, vocabulary); the first `count` tokens are not padding."""
    where = jnp.arange(TITLE)[None] < count, inputs["encoder_attention_mask"] != 0
    first, later = (lambda model=model: model(params, inputs, where=where)["logits"] for model in titler[1:])
    return later() if titler.first is titler.later else jax.lax.cond(count == 1, first, later)


def pad(tokens: np.ndarray, length: int) -> np.ndarray:
    return np.pad(np.asarray(tokens, np.int32), [(0, 0), (0, length - np.shape(tokens)[1])])


def our_step(titler: Titler, sentence: str) -> Step:
    """jquant's step, padded."""
    padded = {name: pad(x, SENTENCE) for name, x in tokenize([sentence]).items()}
    inputs = {
        "encoder_hidden_states": encode(titler, titler.encoder.params, padded),
        "encoder_attention_mask": padded["attention_mask"],
    }

    def step(tokens: Sequence[int]) -> np.ndarray:
        logits = decode(titler, titler.later.params, inputs | {"input_ids": pad([tokens], TITLE)}, len(tokens))
        return np.asarray(logits)[0, : len(tokens)]

    return step


def onnxruntime_step(encoder: InferenceSession, decoder: InferenceSession, sentence: str) -> Step:
    """onnxruntime's step, without padding."""
    sentence_inputs = tokenize([sentence])
    inputs = {
        "encoder_hidden_states": run(encoder, sentence_inputs),
        "encoder_attention_mask": sentence_inputs["attention_mask"],
    }
    return lambda tokens: run(decoder, inputs | {"input_ids": np.array([tokens])})[0]


def write(step: Step) -> tuple[list[int], list[np.ndarray]]:
    """The tokens of a title, by greedy decoding, and the logits of every step."""
    tokens, logits = [START], []
    while tokens[-1] != END and len(tokens) <= TITLE:
        logits.append(step(tokens))
        tokens.append(int(logits[-1][-1].argmax()))
    return tokens, logits


def main() -> None:
    parser = argparse.ArgumentParser(description="Titles from an int8 language model, compared with onnxruntime.")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the timing")
    rounds = parser.parse_args().rounds

    equal, own = load_equal(), load({})
    plain, optimised = ([onnxruntime_session(path, on) for path in (ENCODER, DECODER)] for on in (False, True))
    same_bits = same_tokens = own_tokens = count = 0
    titles = []
    for sentence in tqdm(EXAMPLES, desc="writing titles", unit="title"):
        tokens, logits = write(our_step(equal, sentence))
        their_tokens, their_logits = write(onnxruntime_step(*plain, sentence))
        same_tokens += tokens == their_tokens
        own_tokens += write(our_step(own, sentence))[0] == their_tokens
        same_bits += sum(int(np.sum(a == b)) for a, b in zip(logits, their_logits, strict=False))
        count += sum(x.size for x in their_logits)
        titles.append(TOKENIZER.decode(tokens))
    for sentence, title in zip(EXAMPLES, titles, strict=True):
        print(f"{sentence}\n    {title}")
    print(f"equal to onnxruntime's: {same_bits:,} of {count:,} logits, {same_tokens} of {len(EXAMPLES)} titles")
    print(f"with JAX's float32 functions, {own_tokens} of {len(EXAMPLES)} titles")
    print(f"compiled programs of the decoder: {decode._cache_size()}, one for each set of functions")

    tokens = list(range(START, TITLE))
    steps = {
        "jquant, JAX's functions": our_step(own, EXAMPLES[0]),
        "jquant, onnxruntime's functions": our_step(equal, EXAMPLES[0]),
        "onnxruntime, optimised": onnxruntime_step(*optimised, EXAMPLES[0]),
    }
    for length in (1, TITLE):
        times = median_milliseconds([functools.partial(step, tokens[:length]) for step in steps.values()], rounds)
        print(f"a step of {length} tokens: " + ", ".join(f"{n} {t:.2f} ms" for n, t in zip(steps, times, strict=True)))


if __name__ == "__main__":
    main()
