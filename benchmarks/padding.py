"""Measures what padding and neighbours change in the results of examples/serve.py's encoder, under each recipe.

    python -m benchmarks.padding [--sentences 100]

Each sentence of 40 words is encoded alone and as long as it is, alone in a bucket of four sentences of 64 words, and in that
bucket beside three others. Prints the largest difference of any element.
"""

import argparse
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jquant import transform

SERVE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "examples" / "serve.py")))
WORDS, BATCH, LENGTH = 40, 4, 64
RECIPES = {
    "none": None,
    "`dynamic_int8_rows`": transform.dynamic_int8_rows,
    "`dynamic_int8`": transform.dynamic_int8,
    "`static_int8`": transform.static_int8,
    "`weight_only_int8`": transform.weight_only_int8,
    "`int4_by_rows`": transform.int4_by_rows,
}


def sentences(number: int, length: int = WORDS) -> np.ndarray:
    return np.random.default_rng(number).integers(0, SERVE.WORDS, (1, length), np.int32)


def calibrated(params: Any) -> Any:
    """The ranges of sentences without padding."""
    batches = [(sentences(1000 + number), np.array([WORDS], np.int32)) for number in range(20)]
    return transform.calibrate(SERVE.encode, params, batches, recipe=transform.static_int8)


def encoder(recipe: Any, params: Any) -> tuple[Callable[..., jax.Array], Any]:
    if recipe is None:
        return SERVE.encode, params
    options = {"calibration": calibrated(params)} if recipe is transform.static_int8 else {}
    return transform.quantize(SERVE.encode, params, recipe, *SERVE.Bucket(1, WORDS).types, **options)


def in_bucket(first: np.ndarray, others: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    tokens, counts = np.zeros((BATCH, LENGTH), np.int32), np.ones(BATCH, np.int32)
    for row, each in enumerate([first, *others]):
        tokens[row, : each.size], counts[row] = each, each.size
    return tokens, counts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.padding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=100)
    arguments = parser.parse_args()
    params = SERVE.initial(jax.random.key(0))
    print("| recipe | neighbours in one bucket | bucket and no padding |\n|---|--:|--:|")
    for name, recipe in RECIPES.items():
        function, quantized = encoder(recipe, params)
        compiled, neighbours, padding = jax.jit(function), 0.0, 0.0
        for number in range(arguments.sentences):
            sentence, others = sentences(number), [sentences(100 * number + 1 + each, LENGTH) for each in range(3)]
            unpadded = compiled(quantized, sentence, np.array([WORDS], np.int32))[0]
            alone = compiled(quantized, *in_bucket(sentence, []))[0]
            beside = compiled(quantized, *in_bucket(sentence, others))[0]
            neighbours = max(neighbours, float(abs(beside - alone).max()))
            padding = max(padding, float(abs(alone - unpadded).max()))
        print(f"| {name} | {neighbours:.2g} | {padding:.2g} |", flush=True)


if __name__ == "__main__":
    main()
