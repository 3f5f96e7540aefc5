"""Every case of the operators that are no products, as a model in onnxruntime and in ONNX's own reference evaluator.

`python tests/exporter/test_operators.py` prints how many elements were compared, and the cases that are left out.
"""

import collections
import doctest
import itertools
import re
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from exporter.running import OPERATORS, run, run_reference  # noqa: E402

import jquant  # noqa: E402
from jquant.cases import CASES, VARIANTS, samples  # noqa: E402
from jquant.errors import ModelError  # noqa: E402
from jquant.onnx.exporter import export  # noqa: E402

NAMES = [name for name in CASES | VARIANTS if name.split(",")[0] in OPERATORS]
_OFTEN = [name for name in NAMES if name in CASES]

_NO_FLOATS_OF_4_BITS = "onnxruntime converts no FLOAT4E2M1"
_NAN = "infinity divided by infinity is NaN, which QuantizeLinear makes the smallest integer of a signed type, not 0"
_SIGN = "onnxruntime's Where returns 0 for -0"
_LIMITED_LATE = "the reference evaluator converts to integers before it limits them, so that large numbers wrap"
_SMALLEST_POWER = "the reference evaluator converts 2**-127 to FLOAT8E8M0 as 2**-126"
_GATHER = "the reference evaluator's GatherElements cannot take an index that is smaller than the data"

# Cases that fail in onnxruntime, and in the reference evaluator, as patterns, with the reasons. Both are exact.
LEFT_OUT: dict[str, str] = {
    r"scale_and_zero_point": _NAN,
    r"dynamic_quantize_linear, rows(, (float32|float16|bfloat16), int8(, symmetric)?)?": _NAN,
    r"mx_quantize, int8": _NAN,
    r"clip_gradient1?(, float16|, bfloat16)?": _SIGN,
    r"nvfp4_.*": _NO_FLOATS_OF_4_BITS,
    r"(mx_)?(de)?quantize(_linear)?, float4_e2m1fn": _NO_FLOATS_OF_4_BITS,
}
NOT_IN_REFERENCE: dict[str, str] = {
    r"scale_and_zero_point": _NAN,
    r"dynamic_quantize_linear, rows(, (float32|float16|bfloat16), int8(, symmetric)?)?": _NAN,
    r"quantize_linear": _LIMITED_LATE,
    r"quantize_linear, (uint4, )?blocks( of rows)?": _LIMITED_LATE,
    r"quantize_linear, (float32|float16|bfloat16), int8, tensor(, no zero point)?": _LIMITED_LATE,
    r"quantize_linear, (float32|float16|bfloat16), uint8, (tensor|axis|tensor, no zero point)": _LIMITED_LATE,
    r"quantize_linear, int32, .*": _LIMITED_LATE,
    r"quantize, (uint8, )?MIN_FIRST": _LIMITED_LATE,
    r"mx_quantize.*": _SMALLEST_POWER,
    r"quantized_linear_softmax, u?int8, last of two": _GATHER,
}


class Form(NamedTuple):
    """How a case is exported, and run."""

    name: str
    options: dict
    parameters: bool
    optimized: tuple[bool, ...] = (False, True)


FORMS = (
    Form("all inputs", {}, False),
    Form("known parameters", {}, True),
    Form("qdq", {"form": "qdq"}, False, (False,)),
    Form("ONNX's own domain", {"domains": ()}, False),
    Form("operator set 26", {"opset": 26}, False, (True,)),
)


def wide(x):
    """An array in a type that programs of Python feed to onnxruntime, and that holds its numbers."""
    if x.dtype in (np.float32, np.float16) or x.dtype.kind == "b":
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(np.float32)
    return x if x.dtype.kind in "iu" else x.astype(np.int8 if jnp.iinfo(x.dtype).min < 0 else np.uint8)


def without_nan(x):
    """An array with 1 in the place of NaN, for which onnxruntime's nodes and the operators have different results."""
    if not jnp.issubdtype(x.dtype, jnp.floating) or jnp.finfo(x.dtype).bits < 8 or x.dtype == jnp.float8_e8m0fnu:
        return x
    return np.where(np.isnan(x.astype(np.float32)), np.ones((), x.dtype), x)


class Exported(NamedTuple):
    model: object
    inputs: list[np.ndarray]


def exported(function, arguments: tuple, form: Form, rows: tuple[int, ...] | None = None) -> Exported:
    """The model of a function, whose inputs and outputs have wide types; `rows` says which arguments are no parameters."""
    dtypes = [x.dtype for x in jax.tree.leaves(arguments)]
    structure = jax.tree.structure(arguments)

    def widened(*leaves):
        narrow = [x.astype(dtype) for x, dtype in zip(leaves, dtypes, strict=True)]
        return jax.tree.map(wide, function(*structure.unflatten(narrow)))

    leaves = [wide(np.asarray(x)) for x in jax.tree.leaves(arguments)]
    numbers = jax.tree.leaves([[index] * len(jax.tree.leaves(each)) for index, each in enumerate(arguments)])
    known = [form.parameters and rows is not None and number not in rows for number in numbers]

    def of_parameters(parameters, *inputs):
        given, remaining = iter(parameters), iter(inputs)
        return widened(*(next(given if is_known else remaining) for is_known in known))

    parameters = [x for x, is_known in zip(leaves, known, strict=True) if is_known]
    inputs = [x for x, is_known in zip(leaves, known, strict=True) if not is_known]
    if not parameters:
        return Exported(export(widened, *leaves, **form.options), inputs)
    return Exported(export(of_parameters, parameters, *inputs, **form.options), inputs)


def differing(actual: list[np.ndarray], expected: list[np.ndarray]) -> tuple[int, int]:
    """How many elements there are, and how many of them differ in any bit; all NaN are alike."""
    total = different = 0
    for x, y in zip(actual, expected, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        same = x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}") if x.dtype.kind == "f" else x == y
        if x.dtype.kind == "f":
            same |= np.isnan(x) & np.isnan(y)
        total, different = total + x.size, different + int(x.size - same.sum())
    return total, different


COMPARED: collections.Counter = collections.Counter()


def some_forms(name: str, full: bool) -> tuple[Form, ...]:
    """In the suite and in the gate, the first, and one of the others by turns."""
    return FORMS if full else (FORMS[0], FORMS[1 + zlib.crc32(name.encode()) % (len(FORMS) - 1)])


def failure(name: str, forms=FORMS) -> str | None:
    """The error of a case in onnxruntime, or what differs; None if all is equal. Models that are the same run once."""
    case = (CASES | VARIANTS)[name]
    arguments = jax.tree.map(without_nan, jax.tree.map(np.asarray, case.arguments(0)))
    expected = [wide(np.asarray(x)) for x in jax.tree.leaves(case.formula(*arguments))]
    seen = set()
    for form in forms:
        try:
            model, inputs = exported(case.function, arguments, form, case.rows)
            written = model.SerializeToString(deterministic=True)
            if written in seen:
                continue
            seen.add(written)
            for optimized in form.optimized:
                total, different = differing(run(model, inputs, optimized=optimized), expected)
                COMPARED[form.name] += total
                if different:
                    return f"{form.name}, optimized={optimized}: {different} of {total} differ"
        except Exception as error:  # of onnx, of onnxruntime, or a difference of types
            return f"{form.name}: {' '.join(str(error).split()) or type(error).__name__}"
    return None


def failure_in_reference(name: str) -> str | None:
    case = (CASES | VARIANTS)[name]
    arguments = jax.tree.map(without_nan, jax.tree.map(np.asarray, case.arguments(0)))
    expected = [wide(np.asarray(x)) for x in jax.tree.leaves(case.formula(*arguments))]
    try:
        model, inputs = exported(case.function, arguments, FORMS[3])
        total, different = differing(run_reference(model, inputs), expected)
        COMPARED["reference"] += total
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return f"{different} of {total} differ" if different else None


def _reason(name: str, patterns: dict[str, str]) -> str | None:
    return next((reason for pattern, reason in patterns.items() if re.fullmatch(pattern, name)), None)


def _require(name: str, error: str | None, patterns: dict[str, str]) -> None:
    if _reason(name, patterns) is None:
        assert error is None, f"{name}: {error}"
    else:
        assert error is not None, f"{name} passes; remove it from the list"


@one_in(7, "name", _OFTEN)
def test_cases(name, full):
    _require(name, failure(name, some_forms(name, full)), LEFT_OUT)


@one_in(40, "name", [name for name in NAMES if name not in CASES], others="full")
def test_variants(name, full):
    _require(name, failure(name, some_forms(name, full)), LEFT_OUT)


@one_in(9, "name", _OFTEN)
def test_cases_in_reference(name):
    _require(name, failure_in_reference(name), NOT_IN_REFERENCE)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in NAMES if name not in CASES])
def test_variants_in_reference(name):
    _require(name, failure_in_reference(name), NOT_IN_REFERENCE)


def compared(function, arguments: tuple, form: Form = FORMS[0]) -> None:
    """Asserts that a function of finite numbers has the same results in onnxruntime, optimised or not."""
    expected = [wide(np.asarray(x)) for x in jax.tree.leaves(function(*arguments))]
    model, inputs = exported(function, arguments, form)
    for optimized in form.optimized:
        total, different = differing(run(model, inputs, optimized=optimized), expected)
        assert total > 0
        assert different == 0, (form.name, optimized)


EXAMPLES_LEFT_OUT = {  # operators whose examples have calls that onnxruntime does not compute
    "dequantize_linear": _NO_FLOATS_OF_4_BITS,
    "mx_quantize": _NO_FLOATS_OF_4_BITS,
    "nvfp4_quantize": _NO_FLOATS_OF_4_BITS,
    "nvfp4_dequantize": _NO_FLOATS_OF_4_BITS,
}


def _also_exported(function, calls: list):
    """A function of arrays that also computes its results in onnxruntime, where it is not traced."""

    def call(*arguments, **keywords):
        leaves, structure = jax.tree.flatten((arguments, keywords), is_leaf=lambda leaf: leaf is None)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = tuple(leaves[index] for index in places)

        def of_arrays(*arrays):
            filled = list(leaves)
            for index, array in zip(places, arrays, strict=True):
                filled[index] = array
            given, named = structure.unflatten(filled)
            return function(*given, **named)

        if arrays and not any(isinstance(array, jax.core.Tracer) for array in arrays):
            compared(of_arrays, arrays)
            calls.append(function)
        return function(*arguments, **keywords)

    return call


@one_in(11, "name", OPERATORS, gate=3)
def test_examples(name, monkeypatch):
    """The calls in an operator's docstring."""
    examples = doctest.DocTestFinder(recurse=False).find(getattr(jquant, name), name, globs={})
    calls = []
    for operator in OPERATORS:
        monkeypatch.setattr(jquant, operator, _also_exported(getattr(jquant, operator), calls))
    program = "".join(example.source for test in examples for example in test.examples)
    if name in EXAMPLES_LEFT_OUT:
        with pytest.raises(ModelError, match="NOT_IMPLEMENTED"):
            exec(program, {})
    else:
        exec(program, {})
        assert calls


_FLOATS = samples.wide_floats(np.random.default_rng(0), 300, 8)[:-6]  # without infinities and NaN
_OTHERS = samples.wide_floats(np.random.default_rng(1), 300, 8)[:-6]


@pytest.mark.parametrize("name", ["product", "sum", "difference", "quotient"])
def test_exact_functions_of_two(name):
    compared(getattr(jquant.exact, name), (_FLOATS, np.where(_OTHERS == 0, np.float32(3), _OTHERS)))


@pytest.mark.parametrize("name", ["reciprocal", "round_half_even", "round_half_away", "round_half_up", "seal", "widen"])
def test_exact_functions(name):
    """Without numbers that are rounded to -0, which onnxruntime's Where may return as 0."""
    x = np.concatenate([_FLOATS, samples.near_ties(np.random.default_rng(0), 200, 1.0, -9, 9)])
    compared(getattr(jquant.exact, name), (x[abs(x) > 0.5],))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_exact_conversions(dtype):
    compared(lambda x: jquant.exact.narrow(x, dtype), (_FLOATS,))
    with np.errstate(over="ignore"):
        compared(jquant.exact.widen, (_FLOATS.astype(dtype),))


def test_exact_steps_are_not_contracted():
    """A product and a sum of known and of computed numbers."""
    exact = jquant.exact
    compared(lambda a, b: exact.sum(exact.product(a, b), exact.quotient(a, 3)), (_FLOATS, _OTHERS))
    compared(lambda a: exact.sum(exact.product(exact.product(a, 0.1), 0.3), 0.7), (_FLOATS,))


_X = samples.floats(np.random.default_rng(0), (4, 3, 6), 0.25)[:2]
_Q = samples.integers(np.random.default_rng(0), np.int8, 4, 3, 6)


def _quantize(x):
    return jquant.quantize_linear(x, jnp.float32(0.25), jnp.int8(3))


def _add(q):
    return jquant.quantized_linear_add(q, 0.5, 3, q, 0.25, -2, 0.75, 1)


def _dynamic(x):
    return jquant.dynamic_quantize_linear(x, axis=-1, symmetric=True, output_dtype="INT8", feature_level="EXTENDED")


MAPPED = {
    "quantize_linear": (_quantize, _X, {"Cast": 0, "QuantizeLinear": 1}),
    "quantized_linear_add": (_add, _Q, {"QuantizeLinear": 1}),
    "dynamic_quantize_linear": (_dynamic, _X, {"QuantizeLinear": 1}),
    "quantized_linear_sigmoid": (lambda q: jquant.quantized_linear_sigmoid(q, 0.1, 3, 1 / 256), _Q, {"Gather": 1}),
}


@one_in(
    3,
    ("around", "name"),
    itertools.product([jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(jax.vmap(f)))], MAPPED),
    others="full",
)
def test_transformations(name, around):
    """Mapped and jitted calls become the nodes of single ones."""
    function, x, nodes = MAPPED[name]
    compared(around(function), (x,))
    written = collections.Counter(node.op_type for node in export(around(function), x).graph.node)
    assert {name: written[name] for name in nodes} == nodes


OPEN = {  # functions, and how many nodes they have that quantize
    "quantize_linear": (_quantize, 1),
    "quantize_linear, axis": (lambda x: jquant.quantize_linear(x, jnp.arange(1.0, 7) / 8, axis=-1, output_dtype="INT8"), 1),
    "dynamic_quantize_linear": (jquant.dynamic_quantize_linear, 0),
    "dynamic_quantize_linear, rows": (_dynamic, 1),
    "quantized_linear_add": (lambda x: _add(_quantize(x)), 2),
    "quantized_linear_softmax": (lambda x: jquant.quantized_linear_softmax(_quantize(x), 0.1, 0, 1 / 256, axis=-1), 2),
    "hadamard_transform": (lambda x: jquant.hadamard_transform(x, block_size=2), 0),
    "clip": (lambda x: jquant.clip(x, -1, 2), 0),
}


@one_in(3, "name", OPEN)
def test_open_sizes(name):
    """A model of any number of rows."""
    (function, nodes), x = OPEN[name], _X.reshape(6, 6)
    (rows,) = jax.export.symbolic_shape("rows")
    model = export(function, jax.ShapeDtypeStruct((rows, 6), np.float32))
    for count in (1, 6):
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(function(x[:count]))]
        assert differing(run(model, [x[:count]], optimized=True), expected)[1] == 0
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) == nodes


def _dequantize(q, scale=0.5, zero_point=3):
    return jquant.dequantize_linear(q, scale, zero_point)


def _to_int8(x, scale=0.5, zero_point=3):
    return jquant.quantize_linear(x, scale, zero_point, output_dtype="INT8")


NEIGHBOURS = {  # what onnxruntime's optimiser merges, or moves, if it is written in QDQ form
    "relu": lambda q: jquant.quantize_linear(jax.nn.relu(_dequantize(q)), 0.25, 0),
    "relu, int8": lambda q: _to_int8(jax.nn.relu(_dequantize(q)), 0.25, -128),
    "clip": lambda q: jquant.quantize_linear(jquant.clip(_dequantize(q), 0, 6), 6 / 255, 0),
    "add": lambda q: _to_int8(_dequantize(q) + _dequantize(q[:, ::-1], 0.25, -7), 0.75, 1),
    "multiply": lambda q: _to_int8(_dequantize(q) * _dequantize(q[:, ::-1], 0.25, -7), 16.5, 1),
    "sigmoid": lambda q: _to_int8(jquant.exact.quotient(1, 2 + abs(_dequantize(q))), 0.01, 1),
    "reshape": lambda q: _to_int8(_dequantize(q).reshape(-1), 0.75, 1),
    "transpose": lambda q: _to_int8(_dequantize(q).transpose(2, 0, 1)),
    "concatenate": lambda q: _to_int8(jnp.concatenate([_dequantize(q), _dequantize(q, 0.25, -7)], 1), 0.75, 1),
    "largest": lambda q: _to_int8(_dequantize(q).max(1), 0.75, 1),
    "twice": lambda q: _to_int8(_dequantize(_to_int8(_dequantize(q), 0.75, 1), 0.75, 1)),
    "dynamic": lambda q: jquant.dequantize_linear(*jquant.dynamic_quantize_linear(_dequantize(q))),
}


@one_in(3, "name", NEIGHBOURS)
def test_neighbours(name):
    compared(NEIGHBOURS[name], (_Q,))


def test_in_a_scan():
    def step(carry, x):
        value = jquant.quantize_linear(x, carry, output_dtype="INT8")
        return carry * 0.5, (value, jquant.dequantize_linear(value, carry))

    compared(lambda x: jax.lax.scan(step, jnp.float32(0.5), x), (_X,))


def test_nan():
    """A NaN becomes the smallest integer of the type; jquant's is 0."""
    for dtype, expected in ((np.uint8, 0), (np.int8, -128), (np.int16, -(2**15))):
        model = export(lambda x, dtype=dtype: jquant.quantize_linear(
            x, 0.5, output_dtype=dtype, feature_level="EXTENDED"), np.zeros(1, np.float32))  # fmt: skip
        (result,) = run(model, [np.array([np.nan], np.float32)], optimized=True)
        assert result == expected


def test_lists_name_existing_cases():
    for patterns in (LEFT_OUT, NOT_IN_REFERENCE):
        assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in NAMES)] == []


def summary() -> str:
    lines = []
    for title, find, patterns in (
        ("onnxruntime", failure, LEFT_OUT),
        ("the reference evaluator", failure_in_reference, NOT_IN_REFERENCE),
    ):
        errors = {name: error for name in NAMES if (error := find(name)) is not None}
        lines.append(f"{len(NAMES) - len(errors)} of {len(NAMES)} cases are equal in {title}")
        lines += [f"  {name}: {error[:160]} ({_reason(name, patterns) or 'not listed'})" for name, error in errors.items()]
        listed = [name for name in NAMES if _reason(name, patterns) is not None and name not in errors]
        lines += [f"  {name}: listed, but equal" for name in listed]
    lines += [f"{count:,} elements compared: {form}" for form, count in COMPARED.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
