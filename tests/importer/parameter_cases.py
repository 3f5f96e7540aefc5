"""Nodes with quantized weights or activations, and their parameters in shapes that are not the usual ones."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """A node that every engine takes.

    Attributes:
      operands: the first one is the traced input; the others are initializers. None for one that is left out.
      parameters: the positions of those whose shape changes.
      first: the position at which the node reads the first of them; the others follow in order.
    """

    operator: str
    operands: tuple[np.ndarray | None, ...]
    parameters: tuple[int, ...]
    microsoft: bool = False
    first: int = 0
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.operator} {self.label}".strip()


def cases() -> list[Case]:
    rng = np.random.default_rng(0)

    def unsigned(*sizes):
        return rng.integers(0, 128, sizes).astype(np.uint8)  # small, so that no kernel saturates

    def signed(*sizes):
        return rng.integers(-60, 60, sizes).astype(np.int8)

    def floats(*sizes):
        return rng.uniform(0.01, 0.02, sizes).astype(np.float32)

    def values(*sizes):
        return rng.standard_normal(sizes).astype(np.float32)

    def bias(*sizes):
        return rng.integers(-99, 99, sizes).astype(np.int32)

    k, n, blocks = 64, 8, 4
    found = []
    for bits, label in ((4, "of 4 bits"), (8, "of 8 bits")):
        packed, points = unsigned(n, blocks, 16 * bits // 8), unsigned(n, blocks * bits // 8)
        sizes = {"K": k, "N": n, "bits": bits, "block_size": 16}
        operands = values(3, k), packed, floats(n, blocks), points, None, values(n)
        found.append(Case("MatMulNBits", operands, (1, 2, 3, 5), microsoft=True, attributes=sizes, label=label))
    operands = values(3, k), unsigned(n, blocks, 8), floats(n, blocks), values(n, blocks)
    sizes = {"K": k, "N": n, "bits": 4, "block_size": 16}
    found.append(Case("MatMulNBits", operands, (3,), microsoft=True, attributes=sizes, label="with float zero points"))
    order = np.repeat(rng.permutation(blocks), 16).astype(np.int32)
    operands = values(3, k), unsigned(n, blocks, 8), floats(n, blocks), None, order
    found.append(Case("MatMulNBits", operands, (4,), microsoft=True, attributes=sizes, label="with g_idx"))
    one = floats(), unsigned()
    found += [
        Case("MatMulInteger", (unsigned(3, 5), signed(5, 4), unsigned(), signed(4)), (2, 3)),
        Case("MatMulInteger", (unsigned(3, 5), signed(5, 4), unsigned(), signed()), (2, 3), label="per tensor"),
        Case("MatMulInteger", (unsigned(2, 3, 5), signed(2, 5, 4), unsigned(), signed(2, 1, 4)), (3,), label="in batches"),
        Case("QLinearMatMul", (unsigned(3, 5), *one, signed(5, 4), floats(4), signed(4), *one), (1, 2, 4, 5, 6, 7)),
        Case("QLinearMatMul", (unsigned(3, 5), *one, signed(5, 4), floats(), signed(), *one), (4, 5), label="per tensor"),
        Case(
            "QLinearMatMul",
            (unsigned(2, 3, 5), *one, signed(2, 5, 4), floats(2, 1, 4), signed(2, 1, 4), *one),
            (4, 5),
            label="in batches",
        ),
        Case(
            "DynamicQuantizeMatMul", (values(3, 5), signed(5, 4), floats(4), signed(4), values(4)), (2, 3, 4), microsoft=True
        ),
        Case(
            "DynamicQuantizeMatMul",
            (values(3, 5), signed(5, 4), floats(), signed()),
            (2, 3),
            microsoft=True,
            label="per tensor",
        ),
        Case(
            "MatMulIntegerToFloat",
            (unsigned(3, 5), signed(5, 4), floats(), floats(4), unsigned(), signed(4), values(4)),
            (2, 3, 4, 5, 6),
            microsoft=True,
        ),
        Case(
            "QGemm",
            (unsigned(3, 5), *one, signed(5, 4), floats(4), signed(4), bias(3, 4), *one),
            (1, 2, 4, 5, 6, 7, 8),
            microsoft=True,
        ),
        Case(
            "QGemm",
            (unsigned(3, 5), *one, signed(4, 5), floats(4), signed(4), bias(4)),
            (4, 5, 6),
            microsoft=True,
            attributes={"transB": 1},
            label="transposed",
        ),
        Case("ConvInteger", (unsigned(1, 2, 4, 4), unsigned(3, 2, 2, 2), unsigned(), unsigned()), (2, 3)),
        Case(
            "QLinearConv",
            (unsigned(1, 2, 4, 4), *one, signed(3, 2, 2, 2), floats(3), np.zeros(3, np.int8), *one, bias(3)),
            (1, 2, 4, 5, 6, 7, 8),
        ),
        Case(
            "QLinearConv",
            (unsigned(1, 4, 4, 2), *one, signed(3, 2, 2, 2), floats(3), np.zeros(3, np.int8), *one, bias(3)),
            (1, 2, 4, 5, 6, 7, 8),
            microsoft=True,
            attributes={"channels_last": 1},
            label="with the channels last",
        ),
        Case("QuantizeLinear", (values(3, 4), floats(4), unsigned(4)), (1, 2), attributes={"axis": 1}),
        Case("QuantizeLinear", (values(3, 4), floats(), unsigned()), (1, 2), label="per tensor"),
        Case(
            "QuantizeLinear",
            (values(3, 4), floats(3, 2), unsigned(3, 2)),
            (1, 2),
            attributes={"axis": 1, "block_size": 2},
            label="in blocks",
        ),
        Case("DequantizeLinear", (unsigned(3, 4), floats(4), unsigned(4)), (1, 2), attributes={"axis": 1}),
        Case("DequantizeLinear", (unsigned(3, 4), floats(), unsigned()), (1, 2), label="per tensor"),
        Case(
            "DequantizeLinear",
            (unsigned(3, 4), floats(3, 2), unsigned(3, 2)),
            (1, 2),
            attributes={"axis": 1, "block_size": 2},
            label="in blocks",
        ),
        Case("QuantizeLinear", (values(3, 4), floats(4), unsigned(4)), (1, 2), True, attributes={"axis": 1}, label="(ms)"),
        Case("QLinearAdd", (unsigned(3, 4), *one, unsigned(3, 4), *one, *one), (1, 2, 4, 5, 6, 7), microsoft=True),
        Case("QLinearMul", (unsigned(3, 4), *one, unsigned(3, 4), *one, *one), (1, 2, 4, 5, 6, 7), microsoft=True),
        Case("QLinearSigmoid", (unsigned(3, 4), *one, *one), (1, 2, 3, 4), microsoft=True),
        Case("QLinearLeakyRelu", (unsigned(3, 4), *one, *one), (1, 2, 3, 4), microsoft=True),
        Case("QLinearSoftmax", (unsigned(3, 4), *one, *one), (1, 2, 3, 4), microsoft=True, attributes={"opset": 13}),
        Case(
            "QLinearAveragePool", (unsigned(1, 2, 4, 4), *one, *one), (1, 2, 3, 4), True, attributes={"kernel_shape": [2, 2]}
        ),
        Case("QLinearGlobalAveragePool", (unsigned(1, 2, 4, 4), *one, *one), (1, 2, 3, 4), microsoft=True),
        Case(
            "GatherBlockQuantized",
            (np.int64([1, 0]), unsigned(5, 16), floats(5, 2), unsigned(5, 1)),
            (2, 3),
            microsoft=True,
            first=1,
            attributes={"block_size": 16},
        ),
        Case("QLinearConcat", (unsigned(2, 3), *one, *one, unsigned(2, 3), *one), (1, 2, 3, 4, 6, 7), True, 2, {"axis": 0}),
        Case(
            "QLinearWhere",
            (np.bool_([[True, False]]), unsigned(3, 2), *one, unsigned(3, 2), *one, *one),
            (2, 3, 5, 6, 7, 8),
            microsoft=True,
        ),
        Case(
            "QAttention",
            (unsigned(1, 2, 8), signed(8, 24), values(24), floats(), floats(24), None, unsigned(), signed(24)),
            (1, 2, 3, 4, 6, 7),
            microsoft=True,
            attributes={"num_heads": 2},
        ),
        Case(
            "DynamicQuantizeLSTM",
            (
                values(2, 1, 3),
                signed(1, 3, 8),
                signed(1, 2, 8),
                values(1, 16),
                None,
                values(1, 1, 2),
                values(1, 1, 2),
                None,
                floats(1, 8),
                np.zeros((1, 8), np.int8),
                floats(1, 8),
                np.zeros((1, 8), np.int8),
            ),
            (1, 2, 3, 8, 9, 10, 11),
            microsoft=True,
            attributes={"hidden_size": 2},
        ),
        Case("Conv", (values(1, 2, 4, 4), values(3, 2, 2, 2), values(3)), (1, 2)),
        Case("ConvTranspose", (values(1, 2, 4, 4), values(2, 3, 2, 2), values(3)), (1, 2)),
        Case("Gemm", (values(3, 5), values(5, 4), values(4)), (1, 2)),
        Case("BatchNormalization", (values(2, 3, 4), floats(3), values(3), values(3), floats(3)), (1, 2, 3, 4)),
        Case("InstanceNormalization", (values(2, 3, 4), values(3), values(3)), (1, 2)),
        Case("GroupNormalization", (values(2, 4, 4), values(4), values(4)), (1, 2), attributes={"num_groups": 2}),
        Case("LayerNormalization", (values(2, 3, 4), values(4), values(4)), (1, 2)),
        Case(
            "LSTM",
            (values(2, 1, 3), values(1, 8, 3), values(1, 8, 2), values(1, 16)),
            (1, 2, 3),
            attributes={"hidden_size": 2},
        ),
        Case(
            "GRU",
            (values(2, 1, 3), values(1, 6, 3), values(1, 6, 2), values(1, 12)),
            (1, 2, 3),
            attributes={"hidden_size": 2},
        ),
        Case(
            "RNN",
            (values(2, 1, 3), values(1, 2, 3), values(1, 2, 2), values(1, 4)),
            (1, 2, 3),
            attributes={"hidden_size": 2},
        ),
        Case("SkipLayerNormalization", (values(1, 3, 4), values(1, 3, 4), values(4), values(4), values(4)), (2, 3, 4), True),
        Case("BiasGelu", (values(3, 4), values(4)), (1,), microsoft=True),
        Case("FastGelu", (values(3, 4), values(4)), (1,), microsoft=True),
        Case(
            "FusedConv", (values(1, 2, 4, 4), values(3, 2, 2, 2), values(3)), (1, 2), True, attributes={"activation": "Relu"}
        ),
        Case("FusedGemm", (values(3, 5), values(5, 4), values(4)), (1, 2), True, attributes={"activation": "Relu"}),
        Case("PRelu", (values(2, 3, 4), values(3, 1)), (1,)),
    ]
    return found


def arrangements(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """`x` in other shapes: of the same size, and of others."""
    if x.ndim > 1:
        yield "transposed", np.ascontiguousarray(x.T)
        yield "flat", x.reshape(-1)
    if x.ndim > 2:
        yield "with two dimensions merged", x.reshape(x.shape[0], -1)
    yield "with a first dimension", x[None]
    yield "with a last dimension", x[..., None]
    if x.ndim <= 1:
        yield "with two first dimensions", x[None, None]
    if x.ndim == 1:
        yield "in two rows", x.reshape(2, -1) if x.size % 2 == 0 else x[:, None, None]
    if x.size > 1:
        yield "with one less", x[:-1]
        yield "its first alone", x.reshape(-1)[:1]
        yield "its first without dimensions", x.reshape(-1)[0]
    yield "with one more", np.concatenate([x, x[-1:]]) if x.ndim else np.stack([x, x])
