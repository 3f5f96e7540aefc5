"""A GGUF file in llama.cpp."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np

THREADS = os.cpu_count()  # as of XLA
_NO_LOG = llama_cpp.llama_log_callback(lambda level, text, data: None)  # which must live as long as llama.cpp
llama_cpp.llama_log_set(_NO_LOG, None)


class Engine:
    """llama.cpp, with room for `length` tokens."""

    def __init__(self, file: Path, length: int) -> None:
        options = {"n_ctx": length, "n_batch": length, "n_threads": THREADS, "n_threads_batch": THREADS}
        self.model = llama_cpp.Llama(str(file), **options, logits_all=True, verbose=False)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """After each of the tokens."""
        self.model.reset()
        self.model.eval(tokens.tolist())
        return np.array(self.model.scores[: len(tokens)])

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The likeliest token after each of these, which are read one by one."""
        self.model.reset()
        likeliest = []
        for token in tokens:
            self.model.eval([token])
            likeliest.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
        return likeliest

    def milliseconds(self, count: int) -> float:
        """The time of a token, of `count` that it writes."""
        self.model.reset()
        self.model.eval([1])
        start = time.perf_counter()
        for _ in range(count):
            self.model.eval([int(self.model.scores[self.model.n_tokens - 1].argmax())])
        return 1e3 * (time.perf_counter() - start) / count
