"""Loads parameters of `saved_models` in a process that has shapes alone.

``python saved_model_worker.py FOLDER`` reads ``all.safetensors`` and ``few.safetensors`` there, and writes the digests of
the parameters of the first, and with those of the second the outputs.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np


def main(folder: Path) -> None:
    types, inputs = saved_models.types(), saved_models.inputs()
    _, loaded = transform.load(folder / "all.safetensors", saved_models.apply, types, *inputs)
    (folder / "digests.json").write_text(json.dumps(saved_models.digest(loaded)))
    few_apply, few = transform.load(folder / "few.safetensors", saved_models.apply_few, types, *inputs)
    np.savez(folder / "outputs.npz", **jax.jit(few_apply)(few, *inputs))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    from support import saved_models

    from jquant import transform

    main(Path(sys.argv[1]))
