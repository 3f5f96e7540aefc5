"""Runs exported models in onnxruntime."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from jquant.cases import CASES, blocks, convolutions, products, weight_only
from jquant.onnx import onnxruntime_session
from jquant.onnx.exporter import export

_PRODUCTS = products, blocks, weight_only, convolutions
# Every operator that has cases is either a product, whose exports are in test_integer_products.py, or in test_operators.py.
PRODUCTS = [*dict.fromkeys(name.split(",")[0] for family in _PRODUCTS for name in family.CASES)]
OPERATORS = [*dict.fromkeys(operator for name in CASES if (operator := name.split(",")[0]) not in PRODUCTS)]


def run(model: onnx.ModelProto, inputs: Sequence, *, optimized: bool) -> list[np.ndarray]:
    """The outputs for inputs by position, after a check of the model."""
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime_session.session(model.SerializeToString(), optimized=optimized)
    feeds = {value.name: np.asarray(x) for value, x in zip(model.graph.input, inputs, strict=True)}
    outputs = onnxruntime_session.run(session, feeds)
    return [outputs[value.name] for value in model.graph.output]


def run_reference(model: onnx.ModelProto, inputs: Sequence) -> list[np.ndarray]:
    """The same in the reference evaluator of the onnx package."""
    feeds = {value.name: np.asarray(x) for value, x in zip(model.graph.input, inputs, strict=True)}
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in ReferenceEvaluator(model).run(None, feeds)]


def assert_exported(function: Callable, *inputs, tolerance: float = 0.0, reference: bool = False) -> list[str]:
    """Asserts that the exported function returns what JAX returns, with onnxruntime's optimisations off and on.

    Functions that `in_type` decorates are computed one operation at a time, so that each rounds once; compilers leave
    roundings out. Floats are equal but for a relative and absolute `tolerance`; 0: equal.

    Args:
      reference: whether ONNX's own evaluator is asked as well.

    Returns:
      The types of the model's nodes.
    """
    model = export(function, *inputs)
    computed = function if getattr(function, "in_steps", False) else jax.jit(function)
    expected = jax.tree_util.tree_leaves_with_path(computed(*map(jnp.asarray, inputs)))
    results = [run(model, inputs, optimized=optimized) for optimized in (False, True)]
    if reference:
        feeds = {value.name: x for value, x in zip(model.graph.input, inputs, strict=True)}
        results.append(ReferenceEvaluator(model).run(None, feeds))
    for outputs in results:
        for (path, wanted), found in zip(expected, outputs, strict=True):
            name = jax.tree_util.keystr(path)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
            if tolerance and found.dtype.kind == "f":
                np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
            else:
                np.testing.assert_array_equal(found, wanted, err_msg=name)
    return [node.op_type for node in model.graph.node]


def in_type(dtype: str) -> Callable:
    """A decorator for functions of arrays in a type of floats, or a narrow one, which get and return them in float32.

    onnxruntime's arrays are NumPy's, which has no such types.
    """

    def decorate(function: Callable) -> Callable:
        def widened(*arrays):
            results = function(*(array.astype(dtype) for array in arrays))
            return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == dtype else x, results)

        widened.in_steps = True
        return function if dtype in (*INTEGERS, "bool") else widened

    return decorate


FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers in all of a type's range, or normal ones, in float32 for narrow floats."""
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        x = generator.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
        flat = x.reshape(-1)
        flat[: min(4, x.size)] = (0, 1, limits.min, limits.max)[: x.size]
        return x
    return generator.normal(size=shape).astype(np.float32)


def sample(values: Sequence, *ordinary, marker: str = "full") -> list:
    """Parameters of a test, of which the ordinary suite takes a few."""
    return [value if value in ordinary else _marked(value, marker) for value in values]


def _marked(value, marker: str):
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=getattr(pytest.mark, marker))
