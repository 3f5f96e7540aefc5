"""If, Loop and Scan: decided when a model is loaded, while tracing, or by data; and the errors where none is possible."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import TensorProto, helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

HEADER = '<ir_version: 8, opset_import: ["" : 16]>\n'


def model_of(text: str):
    return parser.parse_model(HEADER + text)


def run(model, inputs: dict, constants: dict | None = None) -> list[np.ndarray]:
    loaded = jquant.onnx.load(model, constants=constants)
    results = jax.jit(loaded)(loaded.params, inputs)
    return [np.asarray(results[name]) for name in loaded.outputs]


BRANCHES = """
net (int64 mode, float[n, 3] x) => (float[n, 3] y) <float[1, 3] a = {1, 2, 3}> {
  two = Constant <value_int = 2> ()
  is_two = Equal (mode, two)
  y = If (is_two) <
    then_branch = scaled () => (float[n, 3] t) { b = Constant <value_floats = [10.0, 20.0, 30.0]> () t = Mul (x, b) },
    else_branch = other () => (float[n, 3] e) { e = Add (x, a) }>
}"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("mode", [1, 2])
def test_a_condition_of_constants_is_decided_when_loaded(mode):
    model = model_of(BRANCHES)
    loaded = jquant.onnx.load(model, constants={"mode": np.int64(mode)})
    assert "If" not in str(loaded)
    assert len(loaded.params) == (2 if mode == 2 else 1)  # without the parameters of the other branch
    expected = X * [10, 20, 30] if mode == 2 else X + np.array([1, 2, 3])
    np.testing.assert_array_equal(jax.jit(loaded)(loaded.params, {"x": X})["y"], expected)


def test_a_condition_of_data_is_decided_by_jax():
    loaded = jquant.onnx.load(model_of(BRANCHES))
    program = jax.jit(loaded)
    for mode, expected in [(2, X * [10, 20, 30]), (5, X + np.array([1, 2, 3]))]:
        np.testing.assert_array_equal(program(loaded.params, {"x": X, "mode": np.int32(mode)})["y"], expected)


def test_a_condition_of_shapes_is_decided_while_tracing():
    model = model_of("""
net (float[n, 3] x) => (float[m] y) {
  shape = Shape (x)
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  rows = Gather (shape, zero)
  is_one = Equal (rows, one)
  y = If (is_one) <
    then_branch = flat () => (float[m] t) { t = Squeeze (x, zero) },
    else_branch = sums () => (float[m] e) { e = ReduceSum <keepdims = 0> (x, one) }>
}""")
    np.testing.assert_array_equal(run(model, {"x": X[:1]})[0], X[0])
    np.testing.assert_array_equal(run(model, {"x": X})[0], X.sum(1))


ROWS = """
net (float[n, 3] x) => (float[n, 3] y) <int64[1] zero = {{0}}, int64[1] rows = {{{rows}}}> {{
  shape = Shape (x)
  n = Gather (shape, zero)
  same = Equal (n, rows)
  y = If (same) <
    then_branch = one () => (float[n, 3] t) {{ t = Add (x, x) }},
    else_branch = two () => (float[n, 3] e) {{ e = Neg (x) }}>
}}"""


@pytest.mark.parametrize(("rows", "outcome"), [(1, None), (0, "else"), (-1, "else")])
def test_a_condition_of_named_sizes(rows, outcome):
    """JAX considers a named size unequal to 1, although it may be 1, which would silently choose the wrong branch."""
    model = jquant.onnx.load(model_of(ROWS.format(rows=rows)))
    shape = jax.export.symbolic_shape("n, 3")
    inputs = {"x": jax.ShapeDtypeStruct(shape, np.float32)}
    if outcome is None:
        with pytest.raises(ModelError, match=r"node 'same' \(Equal, version 16\): .*inconclusive"):
            jax.export.export(jax.jit(model))(model.params, inputs)
        return
    program = jax.export.export(jax.jit(model))(model.params, inputs)
    np.testing.assert_array_equal(program.call(model.params, {"x": X})["y"], -X)


def test_a_branch_that_is_not_taken_need_not_have_known_shapes():
    model = model_of("""
net (float[n, 3] x, int64[k] shape) => (float[a, b] y) {
  size = Size (x)
  six = Constant <value_int = 6> ()
  flat = Constant <value_ints = [1, -1]> ()
  is_six = Equal (size, six)
  y = If (is_six) <
    then_branch = one () => (float[a, b] t) { t = Reshape (x, flat) },
    else_branch = two () => (float[a, b] e) { e = Reshape (x, shape) }>
}""")
    shape = np.array([1, -1], np.int64)
    np.testing.assert_array_equal(run(model, {"x": X, "shape": shape})[0], X.reshape(1, -1))
    with pytest.raises(ModelError, match=r"node '.*/e' .*shape is not known while tracing"):
        run(model, {"x": X[:1], "shape": shape})


def test_branches_of_different_shapes_name_the_node():
    model = model_of("""
net (bool c, float[n, 3] x) => (float[a, b] y) {
  y = If (c) <
    then_branch = one () => (float[a, b] t) { t = Identity (x) },
    else_branch = two () => (float[a, b] e) { e = Transpose (x) }>
}""")
    with pytest.raises(ModelError, match=r"node 'y' \(If, version 16\)"):
        run(model, {"x": X, "c": np.bool_(True)})


def test_a_branch_that_does_not_fit_names_the_deciding_input():
    """Both branches are computed unless a constant decides. The error names the branch and the input to fix."""
    model = model_of("""
net (int64 sr, float[n, 3] x) => (float[a, b] y)
  <int64 rate = {16000}, float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[5, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}> {
    offset = Sub (sr, rate)
    zero = Sub (rate, rate)
    fits = Equal (offset, zero)
    y = If (fits) <
      then_branch = one () => (float[a, b] t) { t = MatMul (x, w) },
      else_branch = two () => (float[a, b] e) { e = MatMul (x, v) }>
}""")
    loaded = jquant.onnx.load(model)
    with pytest.raises(ModelError) as caught:
        jax.jit(loaded)(loaded.params, {"x": X, "sr": np.int64(16000)})
    message = str(caught.value)
    assert message.startswith("node 'y' (If, version 16): its else_branch cannot be computed: node '")
    assert "it follows from 'sr', and jquant.onnx.load(..., constants={'sr': value}) decides it" in message
    loaded = jquant.onnx.load(model, constants={"sr": 16000})
    w = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(jax.jit(loaded)(loaded.params, {"x": X})["y"], X @ w)


COUNTED = """
net ({inputs} float[3] x) => (float[3] total, float[r, 3] each) <{constants}> {{
  total, each = Loop (rounds, {condition}, x) <body = one (int64 i, bool c, float[3] v)
                => (bool d, float[3] w, float[3] o) {{
    d = Identity (c)
    f = Cast <to = 1> (i)
    w = Add (v, f)
    o = Mul (w, f)
  }}>
}}"""


def expected_outputs(x: np.ndarray, rounds: int):
    each = [x := x + i for i in range(rounds)]
    stacked = np.stack([y * i for i, y in enumerate(each)]) if each else np.zeros((0, 3), np.float32)
    return x, stacked


@pytest.mark.parametrize("rounds", [0, 1, 5])
@pytest.mark.parametrize("condition", ["", "yes"])
def test_a_loop_with_a_known_number_of_rounds_is_a_scan(rounds, condition):
    text = COUNTED.format(inputs="", constants=f"int64 rounds = {{{rounds}}}, bool yes = {{1}}", condition=condition)
    loaded = jquant.onnx.load(model_of(text))
    program = str(jax.make_jaxpr(loaded)(loaded.params, {"x": X[1]}))
    assert "scan[" in program
    for actual, expected in zip(run(model_of(text), {"x": X[1]}), expected_outputs(X[1], rounds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_scan_outputs_need_a_known_number_of_rounds():
    model = model_of(COUNTED.format(inputs="int64 rounds, ", constants="", condition=""))
    with pytest.raises(ModelError, match=r"M is 'rounds', which depends on the input 'rounds': fix it with constants"):
        jquant.onnx.load(model)
    results = run(model, {"x": X[1]}, {"rounds": np.int64(4)})
    for actual, expected in zip(results, expected_outputs(X[1], 4), strict=True):
        np.testing.assert_array_equal(actual, expected)


UNTIL = """
net (int64 rounds, float limit, float x) => (float y) {{
  first = Less (x, limit)
  y = Loop ({rounds}, first, x) <body = one (int64 i, bool c, float v) => (bool d, float w) {{
    w = Add (v, v)
    d = Less (w, limit)
  }}>
}}"""


@pytest.mark.parametrize(("start", "limit", "rounds"), [(1, 100, 50), (1, 100, 3), (7, 5, 9), (1, 2, 0)])
def test_a_loop_ends_by_data(start, limit, rounds):
    def expected(bounded: bool) -> float:
        value, count = start, 0
        while value < limit and (not bounded or count < rounds):
            value, count = 2 * value, count + 1
        return value

    inputs = {"rounds": np.int32(rounds), "limit": np.float32(limit), "x": np.float32(start)}
    assert run(model_of(UNTIL.format(rounds="rounds")), inputs) == [expected(True)]
    assert run(model_of(UNTIL.format(rounds="")), inputs) == [expected(False)]


def test_a_loop_whose_body_needs_the_iteration_number_is_unrolled():
    model = model_of("""
net (float[3] x) => (float[k] y, float[a, b] each) <int64 rounds = {3}, int64[1] one = {1}, int64[1] zero = {0}> {
  y, each = Loop (rounds, , x) <body = one (int64 i, bool c, float[k] v) => (bool d, float[l] w, float[m] o) {
    d = Identity (c)
    at = Unsqueeze (i, zero)
    after = Add (at, one)
    o = Slice (x, at, after)
    w = Concat <axis = 0> (v, o)
  }>
}""")
    y, each = run(model, {"x": X[1]})
    np.testing.assert_array_equal(y, [*X[1], *X[1]])
    np.testing.assert_array_equal(each, X[1][:, None])


def test_a_loop_that_changes_shapes_is_unrolled_or_refused():
    text = """
net (float[3] x) => (float[k] y) <int64 rounds = {%d}> {
  y = Loop (rounds, , x) <body = one (int64 i, bool c, float[k] v) => (bool d, float[l] w) {
    d = Identity (c)
    w = Concat <axis = 0> (v, x)
  }>
}"""
    np.testing.assert_array_equal(run(model_of(text % 2), {"x": X[1]})[0], np.tile(X[1], 3))
    with pytest.raises(
        ModelError,
        match=r"node 'y' \(Loop, version 16\): its body changes the type of a value: float32\[3\] to float32\[6\]",
    ):
        run(model_of(text % 1000), {"x": X[1]})


SCAN = """
net (float[2] s, float[4, 3, 2] x) => (float[2] t, float[3, 2, 4] y) {{
  t, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [{reversed_input}],
               scan_output_axes = [-1], scan_output_directions = [{reversed_output}], body = one (float[2] a, float[4, 2] e)
               => (float[2] b, float[2, 4] o) {{
    sum = ReduceSum <keepdims = 0> (e, zero)
    b = Add (a, sum)
    scaled = Mul (e, b)
    o = Transpose (scaled)
  }}> (s, x)
}}"""


@pytest.mark.parametrize("reversed_input", [0, 1])
@pytest.mark.parametrize("reversed_output", [0, 1])
def test_scan_over_axes_and_directions(reversed_input, reversed_output):
    model = model_of(SCAN.format(reversed_input=reversed_input, reversed_output=reversed_output))
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    model.graph.output[1].type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(1, [2, 4, 3]).tensor_type.shape)
    x = np.random.default_rng(0).integers(-5, 5, (4, 3, 2)).astype(np.float32)
    state, outputs = np.array([1, 2], np.float32), []
    for element in np.moveaxis(x, 1, 0)[:: -1 if reversed_input else 1]:
        state = state + element.sum(0)
        outputs.append((element * state).T)
    t, y = run(model, {"s": np.array([1, 2], np.float32), "x": x})
    np.testing.assert_array_equal(t, state)
    np.testing.assert_array_equal(y, np.stack(outputs[:: -1 if reversed_output else 1], -1))


def test_operators_that_draw_random_numbers_are_refused_with_the_reason():
    model = model_of("net (float[3] x) => (float[3] y) { r = RandomNormalLike (x) y = Add (x, r) }")
    with pytest.raises(ModelError, match=r"node 'r' \(RandomNormalLike, version 16\): .*random"):
        jquant.onnx.load(model)
