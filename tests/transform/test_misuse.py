"""Wrong arguments of `jquant.transform`: the errors are its own, and their messages name the argument."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparison import assert_declined
from support.wrong_values import PLAIN

from jquant import transform
from jquant.calibration import Range
from jquant.transform import TransformTypeError

PARAMS = {"w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)}
X = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)
STATIC, DYNAMIC = (
    transform.Recipe([("*", transform.Scheme(activations=activations))], smallest=1) for activations in ("STATIC", "DYNAMIC")
)
ARGUMENTS = {
    "apply": lambda p, x: jnp.tanh(x @ p["w"]),
    "params": PARAMS,
    "recipe": STATIC,
    "x": X,
    "batches": [X],
    "calibration": {"w": Range(np.float32(-2), np.float32(3))},
    "progress": False,
    "candidates": [transform.Scheme(), None],
    "max_bytes": 10_000,
    "sequential": False,
}
CALLS = {  # functions of the arguments that they name
    "sites": lambda apply, params, recipe, x: transform.sites(apply, params, x, recipe=recipe),
    "calibrate": lambda apply, params, recipe, batches, progress, sequential: transform.calibrate(
        apply, params, batches, recipe, progress=progress, sequential=sequential
    ),
    "quantize": lambda apply, params, recipe, x, calibration: transform.quantize(
        apply, params, recipe, x, calibration=calibration
    ),
    "quantization_aware": lambda apply, params, recipe, x, calibration: transform.quantization_aware(
        apply, recipe, calibration
    )(params, x),
    "report": lambda apply, params, recipe, x, calibration: transform.report(
        apply, params, recipe, x, calibration=calibration
    ),
    "mixed_precision": lambda apply, params, batches, candidates, max_bytes, progress: transform.mixed_precision(
        apply, params, batches, candidates, max_bytes=max_bytes, smallest=1, progress=progress
    ),
}
CASES = [(function, argument) for function, call in CALLS.items() for argument in inspect.signature(call).parameters]


def call(function, **arguments):
    return CALLS[function](**{name: (ARGUMENTS | arguments)[name] for name in inspect.signature(CALLS[function]).parameters})


@pytest.mark.parametrize("function", ["calibrate", "quantization_aware", "report", "mixed_precision"])
def test_types_in_place_of_arrays(function):
    """Where values are needed."""
    shapes = jax.eval_shape(lambda: (PARAMS, X))
    assert_declined(lambda: call(function, params=shapes[0]), "at 'w', which is not an array: it has no", TransformTypeError)
    wrong = {"batches": [shapes[1]]} if (function, "batches") in CASES else {"x": shapes[1]}
    assert_declined(lambda: call(function, **wrong), ", which has no values; pass an array", TransformTypeError)


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [
        (function, argument, value)
        for function, argument in CASES
        for name, value in (("recipe", X), ("apply", {"w": X}))
        if name == argument
    ],
)
def test_a_message_shows_the_types_of_arrays(function, argument, value):
    """Not their elements."""
    with pytest.raises(transform.TransformError, match=rf"{argument} is ({{'w': )?float32\[2,8\]"):
        call(function, **{argument: value})


def test_errors_of_apply_are_not_changed():
    def apply(params, x):
        raise KeyError("of apply")

    for function in CALLS:
        with pytest.raises(KeyError, match="of apply"):
            call(function, apply=apply)


@pytest.mark.parametrize("function", CALLS)
def test_errors_of_apply_have_a_note(function):
    """It says what `apply` was called with."""

    def apply(params, x):
        raise KeyError("of apply")

    with pytest.raises(KeyError) as caught:
        call(function, apply=apply)
    assert caught.value.__notes__[-1].startswith(f"transform.{function} called apply(params, float32[2,8])")
    assert ("for batch 0. A batch has" in caught.value.__notes__[-1]) == ((function, "batches") in CASES)


def test_errors_of_apply_in_a_quantized_function():
    quantized_apply, quantized_params = transform.quantize(ARGUMENTS["apply"], PARAMS, DYNAMIC, X)
    with pytest.raises(TypeError) as caught:
        quantized_apply(quantized_params, X, X)
    assert caught.value.__notes__[-1] == (
        "quantized_<lambda> called apply(params, float32[2,8], float32[2,8]). These are the inputs alone, without labels; "
        "bind static arguments with functools.partial."
    )


@pytest.mark.parametrize(("leaf", "advice"), [(jax.nn.relu, "close over the rest"), (0.5, "or close over")])
@pytest.mark.parametrize("function", CALLS)
def test_a_leaf_is_not_an_array(function, leaf, advice):
    """The message has the path, and says what to do."""
    with pytest.raises(TransformTypeError, match=f"at 'rest/0', which is not an array: .*{advice}"):
        call(function, params={**PARAMS, "rest": [leaf]})


WRONG_RANGES = {
    "NaN": Range(np.float32(np.nan), np.float32(1)),
    "infinite": Range(np.float32(-1), np.float32(np.inf)),
    "reversed": Range(np.float32(1), np.float32(-1)),
    "too many": Range(np.zeros(3, np.float32), np.ones(3, np.float32)),
    "none": None,
    "a string": "from -1 to 1",
    "a number": 1.0,
}


@pytest.mark.parametrize("function", ["quantize", "quantization_aware", "report"])
@pytest.mark.parametrize("name", WRONG_RANGES)
def test_wrong_range(function, name):
    with pytest.raises(transform.TransformError, match=r"calibration\['w'\], of the input of that site, "):
        call(function, calibration={"w": WRONG_RANGES[name]})


@pytest.mark.parametrize("function", ["quantize", "quantization_aware", "report"])
def test_missing_range(function):
    message = "the recipe has static inputs, such as that of w, and these need calibration="
    assert_declined(lambda: call(function, calibration=None), message)
    message = "calibration['w'], of the input of that site, is missing; calibration has: a"
    assert_declined(lambda: call(function, calibration={"a": ARGUMENTS["calibration"]["w"]}), message)


def test_one_range_for_all_layers():
    apply = lambda params, x: lax.scan(lambda x, w: (x @ w, None), x, params)[0]  # noqa: E731
    message = "has shape (); it must be (3,), one range per layer"
    calibration = {"matmul": ARGUMENTS["calibration"]["w"]}
    stacked = np.stack([PARAMS["w"]] * 3)
    assert_declined(lambda: transform.quantize(apply, stacked, STATIC, X, calibration=calibration), message)


def test_a_pattern_matches_no_site():
    recipe = transform.Recipe([("no such site", None), ("*", transform.Scheme(activations="DYNAMIC"))], smallest=1)
    for function, argument in CASES:
        if argument == "recipe":
            assert_declined(
                lambda function=function: call(function, recipe=recipe), "the pattern 'no such site' matches no site"
            )


@pytest.mark.parametrize("field", ["weights", "weight_type", "activations", "activation_type", "observer"])
def test_wrong_field_of_a_scheme(field):
    for name, wrong in PLAIN.items():
        with pytest.raises(transform.TransformError) as caught:
            transform.Scheme(**{field: wrong})
        assert field in str(caught.value), f"{name}: {caught.value}"


PREPARATIONS = {  # of weights: values that a scheme takes, and others that it does not
    "weight_rounding": (
        ["NEAREST", "GPTQ", ("GPTQ", 0.05), ("GPTQ", 0, False), ["GPTQ", np.float32(0.5), np.bool(True)]],
        [
            *("GPTQ4", (), [], ["*"], [["GPTQ"]], ("NEAREST", 1), ("GPTQ", -0.1), ("GPTQ", 1.5), ("GPTQ", np.nan)),
            *(("GPTQ", None), ("GPTQ", "0.1"), ("GPTQ", True), ("GPTQ", 0.1, 1), ("GPTQ", 0.1, True, 3), {"GPTQ": 0.1}),
            *(("GPTQ", 0.1, True, 0.5, 0), ("GPTQ", 0.1, True, "0.5")),
            *(("AWQ",), "mean_squared_error"),
        ],
    ),
    "weight_range": (
        ["min_max", "mean_squared_error"],
        ["minmax", "entropy", ("mean_squared_error",), [], ("min_max", 1), "GPTQ"],
    ),
    "smoothing": (
        [None, "AWQ", "SMOOTHQUANT", ("SMOOTHQUANT", 0.8), ["SMOOTHQUANT", 1], ("SMOOTHQUANT", np.float32(0.25)), ("AWQ",)],
        [
            *("AWQ4", (), [], [["AWQ"]], ("AWQ", 0.5), ("SMOOTHQUANT", -1), ("SMOOTHQUANT", 2), ("SMOOTHQUANT", None)),
            *(("SMOOTHQUANT", 0.5, 0.5), ("SMOOTHQUANT", [0.5]), "GPTQ", ["HADAMARD"]),
        ],
    ),
    "rotation": ([None, "HADAMARD"], ["Hadamard transform", ("HADAMARD",), [], "AWQ", True]),
}


@pytest.mark.parametrize("field", PREPARATIONS)
def test_preparation_of_weights(field):
    """Each field of a scheme is checked, printed and written as JSON."""
    right, wrong = PREPARATIONS[field]
    for name, value in {**PLAIN, **{repr(value): value for value in wrong}}.items():
        if value is None and None in right:
            continue
        with pytest.raises(transform.TransformError) as caught:
            transform.Scheme(**{field: value})
        assert field in str(caught.value), f"{name}: {caught.value}"
        assert isinstance(caught.value, TransformTypeError) or isinstance(value, str | tuple | list | np.ndarray), name
    for value in right:
        scheme = transform.Scheme(**{field: value})
        plain = tuple(
            each.item() if isinstance(each, np.generic) else each for each in np.atleast_1d(np.array(value, object))
        )
        plain = plain[0] if len(plain) == 1 else plain
        assert getattr(scheme, field) == plain
        is_default = getattr(transform.Scheme(), field) == plain
        assert repr(scheme) == ("Scheme()" if is_default else f"Scheme({field}={plain!r})")
        assert eval(repr(scheme), {"Scheme": transform.Scheme}) == scheme
        restored = transform.Recipe.from_json(transform.Recipe([("*", scheme)]).to_json())
        assert restored == transform.Recipe([("*", scheme)])
        assert (repr(restored.rules[0][1]), hash(restored.rules[0][1])) == (repr(scheme), hash(scheme))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"smoothing": "AWQ", "activations": "STATIC"}, "smoothing is 'AWQ', which would change a static range"),
        (
            {"smoothing": ("SMOOTHQUANT", 0.5), "activations": "STATIC"},
            "smoothing is ('SMOOTHQUANT', 0.5), which would change a static range",
        ),
        (
            {"weight_range": "mean_squared_error", "weights": "PER_TENSOR"},
            "weights are PER_TENSOR, and weight_range is searched by block",
        ),
        *(
            ({"weight_type": name, "activations": "DYNAMIC_ROW"}, f"{name}, which is multiplied by floats alone: pass activ")
            for name in ("MXFP8E4M3FN", "MXFP8E5M2", "MXFP6E3M2FN", "FLOAT8E4M3FN")
        ),
        ({"weight_type": "NVFP4", "block_size": 32}, "weight_type is NVFP4 and block_size 32; its blocks have 16 elements"),
        ({"weight_type": "MXFP4", "scale_type": "FLOAT16"}, "MXFP4, whose scales have a type: leave out scale_type"),
        ({"weight_type": "MXFP4", "weights": "PER_TENSOR"}, "MXFP4, which has blocks: leave out weights"),
        ({"weight_type": "MXINT8", "k_parts": 3}, "k_parts is 3; it must be a power of two"),
    ],
)
def test_fields_that_do_not_go_together(fields, message):
    assert_declined(lambda: transform.Scheme(**fields), message)


@pytest.mark.parametrize(("field", "value"), [(field, right[1]) for field, (right, _) in PREPARATIONS.items()])
def test_preparation_of_products_of_activations(field, value):
    """These have no weights."""
    rules = [("activation_matmul", transform.Scheme(**{field: value})), ("*", transform.Scheme())]
    apply = lambda p, x: jnp.einsum("bk,ck->bc", x @ p["w"], x)  # noqa: E731
    call = lambda: transform.sites(apply, PARAMS, X, recipe=transform.Recipe(rules, smallest=1))  # noqa: E731
    assert_declined(call, f"{field}={value!r}) is for weights, of which it has none")


@pytest.mark.parametrize("function", ["quantize", "quantization_aware", "report"])
@pytest.mark.parametrize(
    ("fields", "algorithm"),
    [
        ({"weight_rounding": "GPTQ"}, "rounded by GPTQ"),
        ({"smoothing": "AWQ"}, "smoothed by AWQ"),
        ({"smoothing": "SMOOTHQUANT", "weight_rounding": "GPTQ"}, "smoothed by SMOOTHQUANT and rounded by GPTQ"),
    ],
)
def test_missing_statistics(function, fields, algorithm):
    recipe = transform.Recipe([("*", transform.Scheme(**fields))], smallest=1)
    message = (
        f"the weights of some sites, such as w, are {algorithm}, which needs calibration=: pass what transform.calibrate"
    )
    assert_declined(lambda: call(function, recipe=recipe, calibration=None), message)
    message = "calibration['w'], of the input of w, is missing; calibration has: a"
    calibration = ARGUMENTS["calibration"]
    assert_declined(lambda: call(function, recipe=recipe, calibration={"a": calibration["w"]}), message)
    message = "it must be a transform.InputStatistics, with X^T X or maxima. Calibrate with the same recipe"
    assert_declined(lambda: call(function, recipe=recipe, calibration=calibration), message, TransformTypeError)
    for wrong in (3, "static", ["*"], object(), {1}):
        with pytest.raises(TransformTypeError, match="calibration"):
            call(function, recipe=recipe, calibration=wrong)


def test_wrong_fields_of_a_recipe():
    pairs = [("*",)], [("*", "int8")], [(1, transform.Scheme())], [("*", transform.Scheme(), 1)]
    for wrong in (*PLAIN.values(), *pairs):
        with pytest.raises(transform.TransformError, match="rules"):
            transform.Recipe(wrong)
    for wrong in (-1, 1.5, "8", None, float("nan")):
        with pytest.raises(transform.TransformError, match="smallest"):
            transform.Recipe([("*", transform.Scheme())], smallest=wrong)


@pytest.mark.parametrize(
    "text",
    [
        *(None, 3, "", "{", "[]", "{}", '{"rules": 3, "smallest": 3}', '{"rules": [["*"]], "smallest": 3}'),
        *('{"rules": [], "smallest": 3}', '{"rules": [["*", {"no such field": 1}]], "smallest": 3}'),
        '{"rules": [["*", {"weights": "PER_ROW"}]], "smallest": 3}',
    ],
)
def test_wrong_json_of_a_recipe(text):
    with pytest.raises(transform.TransformError):
        transform.Recipe.from_json(text)


@pytest.mark.parametrize("function", ["sites", "quantize", "report"])
def test_inputs_by_keyword(function):
    """The message says what to do."""
    with pytest.raises(TransformTypeError, match=r"there is no argument x. The inputs of apply are passed by position"):
        getattr(transform, function)(ARGUMENTS["apply"], PARAMS, DYNAMIC, x=X)


def test_a_quantized_function_with_inputs_by_keyword():
    quantized_apply, stored = transform.quantize(ARGUMENTS["apply"], PARAMS, DYNAMIC, X)
    with pytest.raises(TransformTypeError, match="the inputs are passed by position, but x by keyword"):
        quantized_apply(stored, x=X)


SPELLED = {
    "weights": "PER_TENSOR",
    "weight_type": "UINT8",
    "activations": "STATIC",
    "activation_type": "INT8",
    "observer": ("percentile", 99.0),
    "scale_type": "BFLOAT16",
    "weight_rounding": ("GPTQ", 0.02),
    "weight_range": "mean_squared_error",
    "smoothing": "AWQ",
    "rotation": "HADAMARD",
}


def test_names_in_any_case():
    """Each field that names something, and the types that only this package names."""
    cased = lambda value, case: (case(value[0]), *value[1:]) if isinstance(value, tuple) else case(value)  # noqa: E731
    for field, value in SPELLED.items():
        others = {"activations": "STATIC"} if field == "observer" else {}
        for case in (str.lower, str.upper, str.title):
            scheme = transform.Scheme(**{**others, field: cased(value, case)})
            assert scheme == transform.Scheme(**{**others, field: value})
            assert repr(scheme) == repr(transform.Scheme(**{**others, field: value}))
    for weight_type in ("MXFP4", "NVFP4", "FLOAT8E4M3FN", "INT4"):
        assert transform.Scheme(weight_type=weight_type.lower(), activations="float").weight_type == weight_type
    for derivative in ("straight_through", "STRAIGHT_THROUGH"):
        transform.quantize(ARGUMENTS["apply"], PARAMS, DYNAMIC, X, derivative=derivative)
