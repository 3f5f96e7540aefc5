"""Demands of exported models the results of JAX, compiled."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import onnx

from jquant.onnx import export

from .running import run


def assert_same(function: Callable, arguments: Sequence, types: Sequence | None = None, **options) -> onnx.ModelProto:
    """Exports a function of arrays, and demands its results, with optimizations and without, for these arguments.

    Args:
      types: what is exported for; the arguments if None.
    """
    model = export(function, *(arguments if types is None else types), **options)
    require_same(model, function, arguments)
    return model


def require_same(model: onnx.ModelProto, function: Callable, arguments: Sequence) -> None:
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*arguments))]
    for optimized in (False, True):
        results = run(model, jax.tree.leaves(arguments), optimized=optimized)
        assert len(results) == len(expected)
        for result, x in zip(results, expected, strict=True):
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, x)


def nodes(model: onnx.ModelProto) -> list[str]:
    """The operators of the main graph."""
    return [node.op_type for node in model.graph.node]
