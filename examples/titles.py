"""Shared by title_encoder.py and title_decoder.py: the model's files, the sentences, and calls of onnxruntime."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import traceforge_title_model
from tokenizers import Tokenizer
from tqdm import trange

FOLDER = traceforge_title_model.span_dir()
ENCODER, DECODER = FOLDER / "encoder.onnx", FOLDER / "decoder.onnx"
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
TOPICS = {
    "crashes": (
        "The program crashes with a segmentation fault when the configuration file is empty.",
        "Opening a very large file makes the editor freeze and then exit without a message.",
        "The server dies with an out of memory error after two days under load.",
        "Saving a project whose name contains an accent raises an exception.",
    ),
    "speed": (
        "Start-up takes eight seconds because every plugin is loaded at once.",
        "Cache the compiled regular expressions, so that parsing the log is three times faster.",
        "The query became slow after we removed the index on the customer table.",
        "Render only the rows that are visible, which makes scrolling smooth again.",
    ),
    "documentation": (
        "Explain in the manual how to install the package without network access.",
        "The example in the tutorial does not run with the current release.",
        "Fix two broken links and a spelling mistake in the readme.",
        "Describe every option of the command line with its default value.",
    ),
    "tests": (
        "The integration tests fail at random because they depend on the time of day.",
        "Run the test suite on Windows and on macOS as well.",
        "Add a regression test for the parser of dates in leap years.",
        "Replace the mocked database by a real one in a temporary folder.",
    ),
    "security": (
        "Passwords must never be written to the log file.",
        "Escape the user name before it is inserted into the page, which prevents cross-site scripting.",
        "Update the encryption library to the version without the published vulnerability.",
        "Sessions have to expire after thirty minutes without activity.",
    ),
}
SENTENCES = [sentence for sentences in TOPICS.values() for sentence in sentences]


def tokenize(sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """The encoder's inputs: token indices and mask in int64, padded to the longest sentence."""
    encodings = TOKENIZER.encode_batch(list(sentences))
    fields = {"input_ids": "ids", "attention_mask": "attention_mask"}
    return {name: np.array([getattr(encoding, field) for encoding in encodings]) for name, field in fields.items()}


def onnxruntime_session(model: Path | bytes, optimised: bool = True) -> onnxruntime.InferenceSession:
    """A session with as many threads as XLA, which do not spin between calls."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The only output of these models."""
    return session.run(None, inputs)[0]


def median_milliseconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median times of calls that take turns, so that whatever else the machine does affects all of them."""
    times = np.empty((rounds, len(calls)))
    for call in calls:
        call()
    for index in trange(rounds, desc="timing", unit="round"):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[index, place] = 1e3 * (time.perf_counter() - start)
    return np.median(times, axis=0).tolist()
