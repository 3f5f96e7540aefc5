"""A small language model in the folder and of the nodes that the model builder of onnxruntime-genai writes."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

VOCABULARY, WIDTH, HEADS, KEY_HEADS, LAYERS, BLOCK = 64, 64, 4, 2, 2, 32
SIZE = WIDTH // HEADS
MICROSOFT = "com.microsoft"


def save(folder: Path, dtype: type[np.floating]) -> None:
    """Writes model.onnx and genai_config.json, with random weights."""
    rng = np.random.default_rng(0)
    float_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, constants = [], []

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def add(operator: str, inputs: list[str], *outputs: str, domain: str = "", **attributes) -> str:
        nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def product(x: str, name: str, rows: int, columns: int) -> str:
        blocks = rows // BLOCK
        weights = constant(f"{name}.weight", rng.integers(0, 256, (columns, blocks, BLOCK // 2), np.uint8))
        scales = constant(f"{name}.scales", rng.uniform(0.02, 0.05, (columns, blocks)).astype(dtype))
        sizes = {"K": rows, "N": columns, "bits": 4, "block_size": BLOCK}
        return add("MatMulNBits", [x, weights, scales], name, domain=MICROSOFT, accuracy_level=1, **sizes)

    def norm(name: str) -> str:
        return constant(name, rng.uniform(0.5, 1.5, WIDTH).astype(dtype))

    angles = np.arange(128)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
    caches = [constant("cos_cache", np.cos(angles).astype(dtype)), constant("sin_cache", np.sin(angles).astype(dtype))]
    ends = add("ReduceSum", ["attention_mask", constant("one", np.array([1]))], "ends", keepdims=0)
    ends = add("Cast", [add("Sub", [ends, "one"], "ends_less_one")], "seqlens_k", to=onnx.TensorProto.INT32)
    shape = add("Shape", ["attention_mask"], "shape")
    total = add("Gather", [shape, constant("second", np.array(1))], "total", axis=0)
    total = add("Cast", [total], "total_sequence_length", to=onnx.TensorProto.INT32)
    table = constant("embedding", rng.standard_normal((VOCABULARY, WIDTH)).astype(dtype))
    x = total_of_layers = add("Gather", [table, "input_ids"], "embedded")
    x = add("SimplifiedLayerNormalization", [x, norm("norm")], "normalized", epsilon=1e-5, axis=-1)
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        qkv = product(x, f"{name}.qkv", WIDTH, (HEADS + 2 * KEY_HEADS) * SIZE)
        pasts, presents = (
            [f"{kind}.{layer}.{part}" for part in ("key", "value")] for kind in ("past_key_values", "present")
        )
        inputs = [qkv, "", "", *pasts, ends, total, *caches]
        heads = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1, "scale": SIZE**-0.5}
        x = add("GroupQueryAttention", inputs, f"{name}.attention", *presents, domain=MICROSOFT, **heads)
        x = product(x, f"{name}.o", WIDTH, WIDTH)
        for part in ("attention", "mlp"):
            outputs = f"{name}.{part}.norm", "", "", f"{name}.{part}.sum"
            inputs = [total_of_layers, x, norm(f"{name}.{part}.weight")]
            x = add("SkipSimplifiedLayerNormalization", inputs, *outputs, domain=MICROSOFT, epsilon=1e-5)
            total_of_layers = outputs[-1]
            if part == "attention":
                gate, up = (product(x, f"{name}.{each}", WIDTH, 2 * WIDTH) for each in ("gate", "up"))
                gate = add("Mul", [gate, add("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
                x = product(add("Mul", [gate, up], f"{name}.gated"), f"{name}.down", 2 * WIDTH, WIDTH)
    product(x, "logits", WIDTH, VOCABULARY)

    def declared(name: str, shape: list, element: int = float_type) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element, shape)

    tokens = [["batch_size", "sequence_length"], ["batch_size", "total_sequence_length"]]
    inputs = [declared(*each, onnx.TensorProto.INT64) for each in zip(("input_ids", "attention_mask"), tokens, strict=True)]
    outputs = [declared("logits", [*tokens[0], VOCABULARY])]
    for layer in range(LAYERS):
        for part in ("key", "value"):
            for values, name, length in ((inputs, "past_key_values", "past"), (outputs, "present", "total")):
                values.append(
                    declared(f"{name}.{layer}.{part}", ["batch_size", KEY_HEADS, f"{length}_sequence_length", SIZE])
                )
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=10), folder / "model.onnx")
    decoder = {"num_key_value_heads": KEY_HEADS, "head_size": SIZE}
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
