"""Writes small language models with random weights by the model builder of onnxruntime-genai, for the tests of models.

    python .ci/genai_models.py FOLDER

Needs onnxruntime-genai, transformers and torch. The models are a Llama, a Qwen and a Phi with weights of 4 bits in blocks of
32 and 128, for CPUs, which have float32, and for CUDA, which has float16.
"""

import subprocess
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
CONFIGURATIONS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen": transformers.Qwen2Config(**SIZES),
    "phi": transformers.Phi3Config(**SIZES, original_max_position_embeddings=256),
}
PROVIDERS = {"float32": "cpu", "float16": "cuda"}


def main(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"t{token}": token for token in range(256)}, unk_token="t0"))
    special = {"unk_token": "t0", "eos_token": "t1", "bos_token": "t2", "pad_token": "t1"}
    for name, configuration in CONFIGURATIONS.items():
        torch.manual_seed(0)
        source = folder / "weights" / name
        transformers.AutoModelForCausalLM.from_config(configuration).save_pretrained(source)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(source)
        for dtype, provider in PROVIDERS.items():
            for block_size in (32, 128):
                options = {"block_size": block_size, "accuracy_level": 1}  # which does not round activations to int8
                command = ["-m", "onnxruntime_genai.models.builder", "-i", str(source), "-p", "int4", "-e", provider]
                command += ["-o", str(folder / f"{name}-{dtype}-{block_size}"), "-c", str(folder / "cache")]
                command += ["--extra_options", *(f"{key}={value}" for key, value in options.items())]
                subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
