"""Random models of products by integer weights that nodes widen, and their results in float64."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant  # noqa: E402

VERSIONS = 13, 19, 21, 25
FORMS = "Cast", "Cast Mul", "Cast Sub Mul", "DequantizeLinear", "DequantizeLinear with zero point"
GRANULARITIES = "tensor", "column", "block"
DTYPES = "int8", "uint8", "int4", "uint4"
ORDERS = "as they are", "transposed integers", "transposed floats", "transB"
PRODUCTS = "MatMul of a vector", "MatMul of 2", "MatMul of 3", "Gemm", "Gemm with C"
SOURCES = "initializer", "Constant"
BLOCK = 16
SIZES = (5, 3), (16, 20), (33, 1), (48, 6)  # K and N: less than a block, one, and several, the last of which is not whole


class Case(NamedTuple):
    """How the weights of one product are widened."""

    form: str
    granularity: str
    dtype: str
    order: str
    product: str
    source: str


def cases(version: int) -> Iterator[Case]:
    """All that an operator set can say."""
    for case in map(Case._make, itertools.product(FORMS, GRANULARITIES, DTYPES, ORDERS, PRODUCTS, SOURCES)):
        has_scale = case.form != "Cast" or case.granularity == "tensor"
        is_known = has_scale and (version >= 21 or not case.dtype.endswith("4"))
        if case.granularity == "block":
            is_known = is_known and version >= 21 and case.form.startswith("DequantizeLinear")
        if is_known and (case.order != "transB" or case.product.startswith("Gemm")):
            yield case


class Product(NamedTuple):
    """A product of a model, and what it computes.

    Attributes:
      a, result: the names of its operand and of its result.
      rows: the operand.
      weights: float64, of shape (K, N).
      packed: the integers with their scales and zero points.
      addend, factor: C, and alpha.
    """

    a: str
    result: str
    rows: np.ndarray
    weights: np.ndarray
    packed: jquant.PackedBlockMatrix
    addend: np.ndarray
    factor: float

    def check(self, result: np.ndarray) -> None:
        """Within the bound that `jquant.matmul_n_bits` promises, and the roundings of what follows it."""
        rows = self.rows.astype(np.float64)
        expected = self.factor * (rows @ self.weights) + self.addend
        magnitude = abs(self.factor) * (np.abs(rows) @ np.abs(self.weights))
        bound = (rows.shape[-1] + 2) * 2.0**-23 * magnitude
        info = jnp.finfo(result.dtype)
        rounding = 2 * float(info.eps) * (np.abs(expected) + np.abs(self.addend) + bound)
        bound = bound + rounding + 2 * float(info.smallest_subnormal)
        assert result.shape == expected.shape
        assert result.dtype == self.rows.dtype
        assert np.all(np.abs(result.astype(np.float64) - expected) <= bound)


class Network:
    """A model of many products, each with weights of its own."""

    def __init__(self, version: int, dtype=np.float32, seed: int = 0):
        self.products: list[Product] = []
        self._nodes: list = []
        self._initializers: list = []
        self._version, self._dtype = version, np.dtype(dtype)
        self._rng = np.random.default_rng(seed)

    def model(self):
        make = onnx.helper.make_tensor_value_info
        element = onnx.helper.np_dtype_to_tensor_dtype(self._dtype)
        inputs = [make(each.a, element, each.rows.shape) for each in self.products]
        outputs = [make(each.result, element, [None] * each.rows.ndim) for each in self.products]
        graph = onnx.helper.make_graph(self._nodes, "products", inputs, outputs, self._initializers)
        opset = [onnx.helper.make_opsetid("", self._version)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10 if self._version < 25 else 12)
        onnx.checker.check_model(model)
        return model

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {each.a: each.rows for each in self.products}

    def add(self, case: Case) -> Product:
        """Adds a product of random sizes and numbers."""
        rng, number, dtype = self._rng, len(self.products), jnp.dtype(case.dtype)
        k, n = SIZES[rng.integers(len(SIZES))]
        block = BLOCK if case.granularity == "block" else k
        blocks = -(-k // block)
        limits = jnp.iinfo(dtype)
        integers = rng.integers(limits.min, limits.max, (k, n), endpoint=True)
        shape = (1, 1) if case.granularity == "tensor" else (blocks, n)
        scale = np.ones(shape) if case.form == "Cast" else rng.uniform(-0.1, 0.1, shape).astype(self._dtype)
        has_zero_point = case.form in ("Cast Sub Mul", "DequantizeLinear with zero point")
        zero_point = rng.integers(limits.min, limits.max, shape, endpoint=True) if has_zero_point else np.zeros(shape, int)

        def in_rows(x):
            return np.repeat(np.broadcast_to(x, (blocks, n)), block, 0)[:k]

        weights = (integers - in_rows(zero_point)) * in_rows(scale).astype(np.float64)
        packed = jquant.pack_matrix(
            integers.astype(dtype),
            np.broadcast_to(zero_point, (blocks, n)).astype(dtype) if np.any(zero_point) else None,
            scale=np.broadcast_to(scale, (blocks, n)).astype(self._dtype),
            block_size=block,
        )
        self._number, self._case = number, case
        name = self._widened(integers.astype(dtype), scale.astype(self._dtype), zero_point if has_zero_point else None)
        leading = {"MatMul of a vector": (), "MatMul of 3": (2, 3)}.get(case.product, (int(rng.choice([1, 4, 7])),))
        rows = rng.normal(size=(*leading, k)).astype(self._dtype)
        addend, factor = np.zeros(n), 1.0
        operands, attributes = [f"a{number}", name], {}
        if case.product.startswith("Gemm"):
            attributes["transB"] = int(case.order == "transB")
        if case.product == "Gemm with C":
            factor, addend = 0.5, rng.normal(size=n).astype(self._dtype)
            operands.append(self._constant("c", addend))
            attributes["alpha"] = factor
        self._node(case.product.split()[0], *operands, output=f"y{number}", **attributes)
        product = Product(f"a{number}", f"y{number}", rows, weights, packed, addend.astype(np.float64), factor)
        self.products.append(product)
        return product

    def _widened(self, integers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None) -> str:
        """The name of the weights as the product reads them, in float."""
        case = self._case
        before, after = case.order == "transposed integers", case.order == "transposed floats"
        is_turned = case.order in ("transB", "transposed floats")
        stored = integers.T if before or is_turned else integers
        axis = 1 if is_turned else 0  # of K, where they are widened
        if is_turned:
            scale, zero_point = scale.T, None if zero_point is None else zero_point.T
        name = self._constant("w", stored)
        name = self._node("Transpose", name) if before else name
        if case.form.startswith("Cast"):
            name = self._node("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(self._dtype))
            if zero_point is not None:
                name = self._node("Sub", name, self._constant("z", self._shaped(zero_point.astype(self._dtype), is_turned)))
            if case.form != "Cast":
                factor = self._constant("s", self._shaped(scale, is_turned))
                name = self._node("Mul", *((name, factor) if case.source == "Constant" else (factor, name)))
        else:
            attributes = {"tensor": {}, "column": {"axis": 1 - axis}, "block": {"axis": axis, "block_size": BLOCK}}
            arrays = [scale, *([] if zero_point is None else [zero_point.astype(integers.dtype)])]
            if case.granularity != "block":
                arrays = [x.reshape(() if case.granularity == "tensor" else -1) for x in arrays]
            parameters = [self._constant(end, x) for end, x in zip("sz", arrays, strict=False)]
            name = self._node("DequantizeLinear", name, *parameters, **attributes[case.granularity])
        return self._node("Transpose", name, perm=[1, 0]) if after else name

    def _shaped(self, x: np.ndarray, is_turned: bool) -> np.ndarray:
        """A number, or a vector where that broadcasts."""
        return x.reshape(()) if x.size == 1 else x if is_turned else x.reshape(-1)

    def _constant(self, end: str, array: np.ndarray) -> str:
        name = f"{end}{self._number}"
        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)
        if self._case.source == "Constant":
            self._nodes.append(onnx.helper.make_node("Constant", [], [name], value=tensor))
        else:
            self._initializers.append(tensor)
        return name

    def _node(self, operator: str, *operands: str, output: str = "", **attributes) -> str:
        output = output or f"{operator}{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(operator, operands, [output], **attributes))
        return output
