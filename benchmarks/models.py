"""Measures int8 models as a whole beside the engines that they were made for, and says where our time goes.

    python -m benchmarks.models [--rounds 100] [--models NAME ...] [--output FILE.md]

Prints the tables, and writes them to FILE: by default to benchmarks/results/models-PLATFORM-jax-VERSION.md.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import environment, report
from benchmarks.measure import measure, quartiles

PROFILED_CALLS = 20
HEADER = "| | median, ms | quartiles, ms | times the time of the engine |\n|---|--:|--:|--:|"


class Case(NamedTuple):
    """A model on one input."""

    title: str
    program: Callable[..., Any]  # jitted
    operands: tuple
    engine: Callable[[], Any]


class Model(NamedTuple):
    """
    Attributes:
      engine: what it is called, and the package whose version counts.
      cases: prepares everything that is not timed.
      kinds: of an operation in our program, by what its name in JAX contains; the first that fits.
    """

    engine: str
    package: str
    cases: Callable[[], Iterator[Case]]
    kinds: dict[str, str]


def title_encoder() -> Iterator[Case]:
    from examples import title_encoder as example

    path = example.model_folder() / "encoder.onnx"
    encoder = example.load_encoder(example.onnx.load(path).graph)
    session = example.onnxruntime_session(path)
    tokens, mask = example.tokenize([sentence for group in example.SENTENCES.values() for sentence in group])
    for count in (1, len(tokens)):
        feed = {"input_ids": tokens[:count], "attention_mask": mask[:count]}
        title = f"{count} sentence{'s' * (count > 1)} of {tokens.shape[1]} tokens"
        operands = encoder, *jax.device_put(tuple(feed.values()))
        yield Case(title, example.encode, operands, lambda feed=feed: session.run(None, feed))


MODELS = {
    "FLAN-T5 small, encoder": Model(
        "onnxruntime",
        "onnxruntime",
        title_encoder,
        {
            "matmul_integer": "products of integers",
            "dynamic_quantize_linear": "dynamic quantization",
            "dot_general": "products of floats (attention)",
            "softmax": "softmax",
            "": "other float arithmetic",
        },
    ),
}
