"""Each parameter of each public function of `jquant.transform`, with each of many wrong values in its place.

Where an argument is a tree, such as a calibration or quantized parameters, the values take the place of each of its nodes,
too. A call ends with a `TransformError` that names the argument, or with an error of the user's own function.
"""

import dataclasses
import inspect
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from support.wrong_values import WRONG

from jquant import transform
from jquant.calibration import Range
from jquant.checkpoints import CheckpointError
from jquant.transform import Recipe, Scheme, adapters

PARAMS = {"w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), "b": np.ones(8, np.float32)}
X = np.linspace(-2, 3, 16, dtype=np.float32).reshape(2, 8)
STATIC = Recipe([("*", Scheme(activations="STATIC"))], smallest=16)
PREPARED = Recipe([("*", Scheme(smoothing="AWQ", weight_rounding="GPTQ"))], smallest=16)
BLOCKS = Recipe([("*", Scheme(weight_type="INT4", block_size=4, activations="FLOAT"))], smallest=16)
FLOATS = Recipe([("*", Scheme(weight_type="FLOAT8E4M3FN", activations="FLOAT"))], smallest=16)
RANGES = {"w": Range(np.float32(-2), np.float32(3))}
KEY = jax.random.key(0)


def apply(params, x):
    return jnp.tanh(x @ params["w"] + params["b"][None])


QUANTIZED, STORED = transform.quantize(apply, PARAMS, STATIC, X, calibration=RANGES)
ADAPTERS = adapters.init(QUANTIZED, KEY, 2)
ADAPTED = adapters.attach(QUANTIZED)
AWARE = transform.quantization_aware(apply, STATIC, RANGES)


@dataclasses.dataclass
class Call:
    """A valid call.

    Attributes:
      function: called with the arguments by name, but for ``inputs`` and those before it, and positional-only ones.
      arguments: by the name of the parameter.
      of: the public function, method or class that has these parameters.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    of: Callable[..., Any]

    def __call__(self, name: str, value: Any) -> Any:
        arguments = {**self.arguments, name: value}
        if "inputs" not in arguments:
            return self.function(**arguments)
        kinds = inspect.signature(self.of).parameters.values()
        first = [each.name for each in kinds if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        return self.function(
            *(arguments.pop(each) for each in first if each != "self"), arguments.pop("inputs"), **arguments
        )


def call(of: Callable[..., Any], *, function: Callable[..., Any] | None = None, **arguments: Any) -> Call:
    return Call(function or of, arguments, of)


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def stored_as(recipe: Recipe) -> Call:
    quantized, stored = transform.quantize(apply, PARAMS, recipe, X)
    return call(transform.QuantizedFunction.__call__, function=quantized, params=stored, inputs=X)


_STATISTICS = transform.calibrate(apply, PARAMS, [X], PREPARED)
_SEARCH = {**defaults(transform.mixed_precision), "params": PARAMS, "batches": [X], "candidates": [Scheme(), None]}
_QUANTIZE = {**defaults(transform.quantize), "apply": apply, "recipe": STATIC, "inputs": X, "calibration": RANGES}
_DRAW = {"path": "plot.png"}
_FOLDER = tempfile.TemporaryDirectory()
_FILE = f"{_FOLDER.name}/parameters.safetensors"
transform.save(_FILE, QUANTIZED, STORED)
_LOAD = {**defaults(transform.load), "path": _FILE, "apply": apply, "params": jax.eval_shape(lambda: PARAMS), "inputs": X}
_ON_A_MESH = {"mesh": jax.make_mesh((1,), ("d",)), "rules": [("w", PartitionSpec(None, "d"))]}
CALLS = {
    "sites": call(transform.sites, apply=apply, params=PARAMS, inputs=X, recipe=STATIC),
    "calibrate": call(
        transform.calibrate, apply=apply, params=PARAMS, batches=[X], recipe=STATIC, progress=False, sequential=False
    ),
    "quantize": call(transform.quantize, params=PARAMS, **_QUANTIZE),
    "quantize, statistics": call(
        transform.quantize, params=PARAMS, **{**_QUANTIZE, "recipe": PREPARED, "calibration": _STATISTICS}
    ),
    "quantize, load": call(
        transform.quantize, params=jax.eval_shape(lambda: PARAMS), **{**_QUANTIZE, "load": PARAMS.__getitem__}
    ),
    "quantization_aware": call(transform.quantization_aware, apply=apply, recipe=STATIC),
    "quantization_aware, called": call(
        transform.quantization_aware,
        function=lambda apply, recipe, calibration: transform.quantization_aware(apply, recipe, calibration)(PARAMS, X),
        apply=apply,
        recipe=STATIC,
        calibration=RANGES,
    ),
    "the function of quantization_aware": call(AWARE, params=PARAMS, inputs=X),
    "report": call(transform.report, apply=apply, params=PARAMS, recipe=STATIC, inputs=X, calibration=RANGES),
    "mixed_precision": call(transform.mixed_precision, apply=apply, **{**_SEARCH, "max_bytes": 10_000, "smallest": 16}),
    "mixed_precision, decibels": call(
        transform.mixed_precision, apply=apply, **{**_SEARCH, "min_decibels": 3, "smallest": 16}
    ),
    "Scheme": call(Scheme, **{**defaults(Scheme), "activations": "STATIC"}),
    "Scheme, blocks": call(Scheme, weight_type="INT4", block_size=32, scale_type="FLOAT16", k_parts=2),
    "Recipe": call(Recipe, rules=[("*", Scheme())], smallest=1),
    "Recipe.from_json": call(Recipe.from_json, text=STATIC.to_json()),
    "Recipe.rule_for": call(Recipe.rule_for, function=STATIC.rule_for, name="w", kind="matmul", only_by_kind=False),
    "Report.draw": call(transform.Report.draw, function=transform.Report((), 1.0, 1, 1).draw, **_DRAW),
    "MixedPrecision.draw": call(transform.MixedPrecision.draw, function=transform.MixedPrecision(*[()] * 12).draw, **_DRAW),
    "save": call(
        transform.save,
        **defaults(transform.save),
        path=f"{_FOLDER.name}/written.safetensors",
        quantized_apply=QUANTIZED,
        quantized_params=STORED,
    ),
    "load": call(transform.load, **_LOAD),
    "load, mesh": call(transform.load, **{**_LOAD, **_ON_A_MESH}),
    "shardings": call(transform.shardings, quantized_apply=QUANTIZED, quantized_params=STORED, **_ON_A_MESH),
    "QuantizedFunction": call(transform.QuantizedFunction.__call__, function=QUANTIZED, params=STORED, inputs=X),
    "QuantizedFunction, blocks": stored_as(BLOCKS),
    "QuantizedFunction, floats": stored_as(FLOATS),
    "adapters.init": call(adapters.init, quantized_apply=QUANTIZED, key=KEY, rank=2, sites="*", dtype="float32"),
    "adapters.attach": call(adapters.attach, quantized_apply=QUANTIZED, alpha=None),
    "the function of adapters.attach": call(ADAPTED, adapters=ADAPTERS, quantized_params=STORED, inputs=X),
    "adapters.merge": call(
        adapters.merge, quantized_apply=QUANTIZED, quantized_params=STORED, adapters=ADAPTERS, alpha=None
    ),
}
CASES = [(name, argument) for name, each in CALLS.items() for argument in each.arguments]
NOT_CALLED = {  # by users: the package makes these, and an enumeration is looked up in, as by `Enum`
    *("Activations", "Assignment", "InputStatistics", "MixedPrecision", "QuantizedFunction", "Report", "Row"),
    *("SiteChoice", "SiteReport", "Sites", "TransformError", "TransformTypeError"),
}
INHERITED = {"keywords"}  # of `QuantizedFunction.__call__`, which `test_misuse` passes
NUMBERS = {"a number", "0", "-1", "1.5"}
# Values that are right after all, by the call or "", and the argument.
VALID = {
    ("", "apply"): {"a function", "a function that returns None", "a class"},
    ("", "inputs"): {"an array", "a vector", "a type", "integers", "complex numbers"},
    ("", "recipe"): {"a Recipe"},
    ("", "batches"): {"a list of arrays"},
    ("", "progress"): {"True"},
    ("", "sequential"): {"True"},
    ("", "donate"): {"True"},
    ("", "derivative"): {"None"},
    ("", "alpha"): {"None", *NUMBERS},
    ("", "max_bytes"): {"None"},
    ("", "min_decibels"): {"None", *NUMBERS},
    ("", "smallest"): {"a number", "0"},
    ("", "load"): {"None", "a function", "a function that returns None", "a class"},  # called for types alone
    ("Scheme", "activations"): {"a string"},
    ("Scheme", "block_size"): {"None", "a number"},
    ("Scheme", "scale_type"): {"a dtype"},
    ("Scheme", "smoothing"): {"None"},
    ("Scheme", "rotation"): {"None"},
    ("Scheme, blocks", "scale_type"): {"a dtype"},
    ("Recipe.rule_for", "name"): {"a string", "no text"},
    ("Recipe.rule_for", "kind"): {"a string", "no text"},
    ("Recipe.rule_for", "only_by_kind"): {"True"},
    ("adapters.init", "key"): {"a key"},
    ("adapters.init", "rank"): {"a number"},
    ("adapters.init", "sites"): {"a list"},
    ("adapters.init", "dtype"): {"a dtype"},
    ("", "adapters"): {"no dict"},
    ("", "path"): {"a string", "no text"},
    ("", "rules"): {"no list", "no tuple"},
    ("load", "mesh"): {"None"},
    ("save", "calibration"): {"None", "no dict", "a dict of None", "quantized parameters of None"},
}
# The same for nodes of a tree, by a pattern of the path.
VALID_NODES = {
    r"calibration/w/(min|max)": {*NUMBERS, "an array of no dimensions", "a number of JAX"},
    r"calibration/w/(range|largest)(/.*)?": {*WRONG},  # which no scheme here needs
    r"calibration/w/mean": {"a vector"},
    r"quantized_params/float": {"no dict", "keys that are not text", *(name for name in WRONG if name[:9] == "quantized")},
    r"(quantized_)?params/sites/w/scale": {"a vector"},
    r"(quantized_)?params/inputs/w/scale": {"1.5", "infinity", "NaN", "a number of JAX"},
    r"params/inputs": {"no dict"},  # of recipes that are not static
    r"adapters/w/b": {"an array"},
    r"params/w|(quantized_)?params/(float/)?b": {"a vector"},
}
# What messages call an argument, if not by its name.
NAMED = {
    "batches": r"batches|inputs\[0\]",
    "inputs": r"inputs|apply has no site|The inputs are",
    "params": "params|quantized parameters|has no site",
    "load": "load|weights",
    "quantized_params": r"params|quantized parameters|apply has no parameters",
    "recipe": "recipe|calibration",
    "apply": "apply|weights",
}


def nodes(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to the nodes below the root of a tree of dicts and named tuples."""
    fields = tree._asdict() if hasattr(tree, "_asdict") else tree if isinstance(tree, Mapping) else {}
    for name, child in fields.items():
        yield (*path, name)
        yield from nodes(child, (*path, name))


def replaced(tree: Any, path: tuple[str, ...], value: Any) -> Any:
    """A tree with another value at a path."""
    if not path:
        return value
    name, *rest = path
    if isinstance(tree, Mapping):
        return {**tree, name: replaced(tree[name], tuple(rest), value)}
    return tree._replace(**{name: replaced(getattr(tree, name), tuple(rest), value)})


def is_valid(name: str, argument: str, path: tuple[str, ...], wrong: str) -> bool:
    """Whether a value is right after all."""
    if not path:
        return any(wrong in VALID.get((each, argument), ()) for each in (name, ""))
    where = "/".join((argument, *path))
    return any(wrong in values for pattern, values in VALID_NODES.items() if re.fullmatch(pattern, where))


def complaint(name: str, argument: str, path: tuple[str, ...], wrong: str) -> str:
    """What is wrong with how a call ended with a wrong value; "" if nothing is."""
    if argument == "path" and is_valid(name, argument, path, wrong):
        return ""  # it would write a file
    value = replaced(CALLS[name].arguments[argument], path, WRONG[wrong])
    what = f"{name}: {wrong} for {'/'.join((argument, *path))}"
    try:
        CALLS[name](argument, value)
    except (transform.TransformError, CheckpointError) as error:
        is_named = re.search(NAMED.get(argument, argument), str(error))
        return "" if is_named else f"{what} is not named: {error}"
    except Exception as error:
        is_of_apply = any(" called apply(" in note for note in getattr(error, "__notes__", ()))
        return "" if is_of_apply else f"{what} raises {type(error).__name__}: {error}"
    return "" if is_valid(name, argument, path, wrong) else f"{what} is accepted"


@pytest.mark.filterwarnings("ignore:.*(nothing but zeros|too small|NaN or infinity)")
@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_argument(name, argument, full, count):
    places = [(), *nodes(CALLS[name].arguments[argument])]
    cells = list(itertools.product(places, WRONG))
    if not full and len(cells) > 2 * len(WRONG):  # all values, and all places, but not in every way
        cells = cells[::11]
    complaints = [text for path, wrong in cells if (text := complaint(name, argument, path, wrong))]
    count("wrong arguments", len(cells))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("name", "argument", "path"),
    [
        ("calibrate", "params", ("w",)),
        ("calibrate", "batches", None),
        ("report", "params", ("w",)),
        ("report", "inputs", ()),
        ("mixed_precision", "params", ("w",)),
        ("mixed_precision", "batches", None),
        ("quantize", "calibration", ("w", "min")),
        ("quantize, statistics", "calibration", ("w", "products")),
        ("quantization_aware, called", "calibration", ("w", "max")),
    ],
)
def test_traced_values(name, argument, path):
    """Where values are needed, those of `jax.jit` are refused by the name of the argument."""

    def traced(value: jax.Array) -> int:
        CALLS[name](argument, [value] if path is None else replaced(CALLS[name].arguments[argument], path, value))
        return 0

    leaf = X
    if path:
        leaf = CALLS[name].arguments[argument]
        for each in path:
            leaf = leaf[each] if isinstance(leaf, Mapping) else getattr(leaf, each)
    with pytest.raises(transform.TransformTypeError, match=NAMED.get(argument, argument)):
        jax.jit(traced)(leaf)


def test_every_parameter_of_every_function_is_swept():
    swept: dict[Any, set[str]] = {}
    for each in CALLS.values():
        swept.setdefault(each.of, set()).update(each.arguments)
    modules = {name: getattr(module, name) for module in (transform, adapters) for name in module.__all__}
    called = {name: value for name, value in modules.items() if callable(value) and name not in NOT_CALLED}
    for name in sorted(NOT_CALLED | {"Recipe", "Scheme"}):
        public = {**vars(modules[name]), "__init__": None} if not issubclass(modules[name], Exception) else {}
        for method in public:
            if (not method.startswith("_") or method == "__call__") and _is_method(modules[name], method):
                called[f"{name}.{method}"] = getattr(modules[name], method)
    for name, function in called.items():
        parameters = set(inspect.signature(function).parameters) - {"self", *INHERITED}
        assert parameters <= swept.get(function, set()), name


def _is_method(owner: type, name: str) -> bool:
    return inspect.isroutine(getattr(owner, name)) and name in vars(owner)
