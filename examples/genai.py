"""Writes text with a language model that the model builder of onnxruntime-genai has written, as a function of JAX.

The compiled step gets the cache of keys and values, and gives it back in the same memory. It and the attention mask keep
their length, so that one program serves all tokens after the prompt. Prints the text, and how long it takes, beside
onnxruntime with the same file and a cache in place.

    pip install ".[models]" ./native
    python -m onnxruntime_genai.models.builder -m HuggingFaceTB/SmolLM2-135M-Instruct -o smollm2 -p int4 -e cpu -c cache
    python examples/genai.py smollm2 --prompt "Quantization is"
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

import jquant

Step = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from tokens, and the ends of the sequences, to the next logits


def empty_cache(folder: Path, declared: dict, batch: int, length: int) -> dict[str, np.ndarray]:
    """Zeros for each of the declared inputs that hold keys or values; `declared` has their dtypes by name."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    shape = batch, config["num_key_value_heads"], length, config["head_size"]
    return {name: np.zeros(shape, dtype) for name, dtype in declared.items() if name.startswith("past")}


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def step(model, params: dict, tokens: jax.Array, ends: jax.Array, cache: dict) -> tuple[jax.Array, dict]:
    """The logits after the last token of each sequence, and the cache.

    `tokens`, (batch, tokens), has padding at its end; `ends` is how many tokens each sequence then has in the cache.
    """
    length = next(iter(cache.values())).shape[2]
    mask = (jnp.arange(length)[None] < ends[:, None]).astype(jnp.int32)
    results = model(params, {"input_ids": tokens, "attention_mask": mask, **cache})
    last = jnp.minimum(ends, tokens.shape[1]) - 1
    logits = jnp.take_along_axis(results.pop("logits"), last[:, None, None], 1)[:, 0]
    return logits, {name.replace("present", "past_key_values"): array for name, array in results.items()}


def our_step(folder: Path, batch: int, length: int, n_bits: str = "float") -> Step:
    model = jquant.onnx.load(folder / "model.onnx", n_bits=n_bits)
    declared = {name: value.dtype for name, value in model.inputs.items()}
    cache = jax.tree.map(jnp.asarray, empty_cache(folder, declared, batch, length))

    def compute(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
        nonlocal cache
        logits, cache = step(model, model.params, tokens.astype(np.int32), ends.astype(np.int32), cache)
        return np.asarray(logits)

    return compute


def their_step(folder: Path, batch: int, length: int) -> Step:
    """onnxruntime, which takes a prompt for the first one only if the mask has its length."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int64)": np.int64}
    declared = {value.name: dtypes[value.type] for value in session.get_inputs()}
    arrays = empty_cache(folder, declared, batch, length)
    cache = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}

    def compute(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", tokens.astype(np.int64))
        width = max(tokens.shape[1], ends.max())
        binding.bind_cpu_input("attention_mask", (np.arange(width) < ends[:, None]).astype(np.int64))
        for name, array in cache.items():
            binding.bind_ortvalue_input(name, array)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), array)
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1].numpy()
        return logits[np.arange(len(ends)), np.minimum(ends, tokens.shape[1]) - 1]

    return compute


def write(compute: Step, prompts: Sequence[Sequence[int]], count: int) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """The likeliest next tokens of each sequence, (batch, count), all logits, and the seconds that each step took."""
    ends = np.array([len(prompt) for prompt in prompts])
    tokens = np.array([[*prompt, *[0] * (ends.max() - len(prompt))] for prompt in prompts])
    logits, seconds = [], []
    for _ in range(count):
        started = time.perf_counter()
        logits.append(compute(tokens, ends))
        seconds.append(time.perf_counter() - started)
        tokens, ends = logits[-1].argmax(-1)[:, None], ends + 1
    return np.stack(logits, 1).argmax(-1), np.stack(logits, 1), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what the model builder has written")
    parser.add_argument("--prompt", default="Quantization is")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    prompt = tokenizer.encode(options.prompt).ids
    length = len(prompt) + options.tokens
    in_int8 = functools.partial(our_step, n_bits="int8")  # of files whose `accuracy_level` allows it
    for name, make in {"jquant": our_step, "jquant, int8 rows": in_int8, "onnxruntime": their_step}.items():
        compute = make(options.folder, 1, length)
        write(compute, [prompt], 3)  # compiles, and warms up; the cache is then written again from the start
        tokens, _, seconds = write(compute, [prompt], options.tokens)
        speed = f"prompt in {1e3 * seconds[0]:.1f} ms, then {1 / np.median(seconds[1:]):.1f} tokens a second"
        print(f"{name}, {speed}:\n{tokenizer.decode([*prompt, *tokens[0]])}\n")


if __name__ == "__main__":
    main()
