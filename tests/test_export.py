"""Every operator exported for three platforms, serialised, and called by another process."""

import itertools
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export
from support.comparison import assert_equal

import jquant
from jquant import cases
from jquant.checkpoints import QuantizedWeight

PLATFORMS = ("cpu", "cuda", "tpu")
COUNTS = (cases.ROWS, 3)
# Calls every program on each of its inputs; imports jquant only for programs whose arguments or results have its types.
PROCESS = """
import pathlib
import pickle
import sys
import jax
from jax import export

for needs in ("jax", "jquant"):
    __import__(needs)
    for path in pathlib.Path(sys.argv[1], needs).glob("*.program"):
        program = export.deserialize(path.read_bytes())
        for inputs in path.parent.glob(f"{path.stem}.*.inputs"):
            arguments, options = jax.tree.unflatten(program.in_tree, pickle.loads(inputs.read_bytes()))
            results = jax.device_get(jax.tree.leaves(program.call(*arguments, **options)))
            inputs.with_suffix(".results").write_bytes(pickle.dumps(results))
    print("jquant" in sys.modules)
"""


def exported(case: cases.Case, *, symbolic: bool) -> bytes:
    """The case as a serialised program, of fixed sizes or of a symbolic number of rows."""
    (rows,) = export.symbolic_shape("b") if symbolic else (cases.ROWS,)

    def shape(index, x):
        return jax.ShapeDtypeStruct((rows, *x.shape[1:]) if index in case.rows else x.shape, x.dtype)

    arguments = case.arguments()
    shapes = [jax.tree.map(lambda x, index=index: shape(index, x), value) for index, value in enumerate(arguments)]
    program = export.export(jax.jit(case.function), platforms=PLATFORMS)(*shapes)
    data = program.serialize()
    restored = export.deserialize(data)
    assert restored.platforms == PLATFORMS
    assert (restored.in_tree, restored.out_tree) == (program.in_tree, program.out_tree)
    return bytes(data)


def test_weights_of_checkpoints():
    """They can be arguments and results of an exported program."""
    values, scale = np.zeros((4, 2), np.int8), np.ones((2, 2), np.float32)
    weight = QuantizedWeight(values, scale, None, None, np.arange(4, dtype=np.int32), 2)
    weights = {"weight": weight, "packed": weight.pack()}
    program = export.deserialize(export.export(jax.jit(lambda weights: weights))(weights).serialize())
    assert (program.in_tree, program.out_tree) == (jax.tree.structure(((weights,), {})), jax.tree.structure(weights))
    jax.tree.map(np.testing.assert_array_equal, program.call(weights), weights)


@pytest.mark.gate
def test_in_another_process(tmp_path, full):
    """With fixed sizes, and with a symbolic number of rows called with two numbers; the full run has all cases."""
    chosen = dict(itertools.islice(cases.CASES.items(), 0, None, 1 if full else 6))
    expected = {}
    for needs in ("jax", "jquant"):
        (tmp_path / needs).mkdir()
    for name, case in chosen.items():
        results = case.formula(*case.arguments())
        folder = tmp_path / ("jquant" if has_jquant_type((case.arguments(), results)) else "jax")
        for sizes, counts in (("fixed", COUNTS[:1]), ("symbolic", COUNTS)):
            (folder / f"{name} {sizes}.program").write_bytes(exported(case, symbolic=sizes == "symbolic"))
            for count in counts:
                arguments = case.first(count, case.arguments())
                stem = f"{name} {sizes}.{count}"
                (folder / f"{stem}.inputs").write_bytes(pickle.dumps(jax.tree.leaves(arguments)))
                expected[folder / f"{stem}.results"] = jax.tree.leaves(case.formula(*arguments))
    result = subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path)], capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "True"]
    assert len(expected) == (len(COUNTS) + 1) * len(chosen)
    for path, leaves in expected.items():
        for number, (actual, leaf) in enumerate(zip(pickle.loads(path.read_bytes()), leaves, strict=True)):
            assert_equal(actual, leaf, f"result {number} of {path.name}")


def has_jquant_type(tree) -> bool:
    """Whether some node of the tree is of a type that jquant defines, and that the other process has to import."""

    def is_jquant_type(node):
        return type(node).__module__.partition(".")[0] == "jquant"

    return any(map(is_jquant_type, jax.tree.leaves(tree, is_leaf=is_jquant_type)))


@pytest.mark.gate
def test_symbolic_space():
    """Images of any size that the windows fit into."""
    h, w = export.symbolic_shape("h, w", constraints=("h >= 3", "w >= 2"))
    filters = np.arange(24, dtype=np.int8).reshape(2, 2, 3, 2) - 12

    def function(x):
        windows = {"strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilations": (1, 1)}
        return (
            jquant.convolution_integer(x, filters, 3, **windows),
            jquant.quantized_linear_average_pool(x, 0.5, 3, 0.25, 7, window_sizes=(3, 2), **windows),
            jquant.quantized_linear_global_average_pool(x, 0.5, 3, 0.25, 7),
        )

    program = export.export(jax.jit(function))(jax.ShapeDtypeStruct((1, 2, h, w), np.uint8))
    for sizes in ((5, 4), (3, 7), (8, 2)):
        x = np.random.default_rng(0).integers(0, 256, (1, 2, *sizes), np.uint8)
        assert_equal(program.call(x), function(x))
