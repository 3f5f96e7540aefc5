"""`transform.mixed_precision`: what it measures is what `quantize` gives, and no other assignment is better."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from support.comparison import assert_declined, assert_equal
from support.networks import SCHEMES
from support.random_networks import as_function, draw_network
from support.sampling import one_in

from jquant import transform
from jquant.transform import TransformTypeError
from jquant.transform.choosing.frontier import Choice, frontier
from jquant.transform.choosing.trials import Trials
from jquant.transform.program.parameters import size_in_bytes
from jquant.transform.recipes.recipe import Recipe, Scheme

INT4, INT8 = Scheme(weight_type="INT4"), Scheme()
FLOAT_INPUT = Scheme(activations="FLOAT")
STATIC, STATIC_INT4 = Scheme(activations="STATIC"), Scheme(weight_type="INT4", activations="STATIC")


def normal(number, shape, scale=1.0):
    """Normal numbers from NumPy, which compiles nothing."""
    return jnp.asarray(np.random.default_rng(number).normal(scale=scale, size=shape).astype(np.float32))


PARAMS = {
    f"w{n}": normal(n, shape, scale)
    for n, (shape, scale) in enumerate([((8, 24), 1), ((24, 16), 0.1), ((16, 40), 3), ((40, 8), 1)])
}
BATCHES = [normal(4, (6, 8)), normal(5, (3, 8))]


def apply(params, x):
    for name in sorted(params):
        x = jnp.tanh(x @ params[name])
    return x


@functools.cache
def unlimited(candidates):
    """The search in the network of this file, without a limit."""
    return search(candidates=candidates)


def search(function=apply, params=PARAMS, batches=BATCHES, candidates=(INT4, INT8, None), **options):
    limits = {"max_bytes": 10**9} if not {"max_bytes", "min_decibels"} & options.keys() else {}
    return transform.mixed_precision(function, params, batches, candidates, smallest=1, **limits, **options)


def quantized(function, params, batches, recipe, calibration=None):
    """The outputs for each batch, and the bytes of the parameters."""
    quantized_apply, quantized_params = transform.quantize(function, params, recipe, batches[0], calibration=calibration)
    return [jax.jit(quantized_apply)(quantized_params, batch) for batch in batches], size_in_bytes(quantized_params)


def ratio(function, params, batches, outputs):
    """In NumPy, in float64."""
    exact = np.concatenate([np.ravel(jax.jit(function)(params, batch)) for batch in batches]).astype(np.float64)
    noise = np.concatenate([np.ravel(output) for output in outputs]).astype(np.float64) - exact
    return 10 * np.log10(np.sum(exact**2) / np.sum(noise**2)) if noise.any() else math.inf


def trials(function, params, batches, schemes):
    return Trials("test", function, params, [(batch,) for batch in batches], schemes, 1, False)


EXACT = [seed for seed in range(200) if draw_network(seed).is_exact]


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:.*nothing but zeros reached:UserWarning")  # which rectified inputs may be
@one_in(12, "seed", EXACT[:24], gate=6)
def test_assignments_of_random_networks(seed, count):
    """Each gives the bits, and stores the bytes, of the function that its recipe quantizes: sites alone, and random ones."""
    network, random = draw_network(seed), np.random.default_rng(seed)
    function, params = as_function(network)
    schemes = [SCHEMES[name] for name in random.choice([*SCHEMES], 3, replace=False)]
    tried = trials(function, params, [network.x], schemes)
    counts = np.array([len(options) + 1 for options in tried.choices.options.values()])
    alone = np.where(np.arange(len(counts)) == random.integers(len(counts)), counts - 1, 0)
    for numbers in [alone, np.ones_like(counts), *random.integers(counts, size=(2, len(counts)))]:
        numbers = tuple(numbers.tolist())
        if not any(numbers):
            continue
        recipe = tried.choices.recipe(numbers, 1)
        calibration = tried.choices.calibration(numbers, tried.calibrations)
        (expected,), size = quantized(function, params, [network.x], recipe, calibration)
        (actual,) = tried.outputs(numbers, (network.x,))
        assert_equal(actual, expected, f"network {seed}, {numbers}")
        assert tried.stored.bytes(numbers) == size, f"network {seed}, {numbers}"
        count("assignments of random networks", 1)


@pytest.mark.gate
def test_one_program_for_each_batch_shape():
    traces = []

    def counted(params, x):
        traces.append(x.shape)
        return apply(params, x)

    tried = trials(counted, PARAMS, [*BATCHES, BATCHES[0] + 1], [INT4, INT8])
    traces.clear()
    assignments = list(itertools.product(range(3), repeat=4))[1:20]
    tried.measure(assignments)
    assert [program._cache_size() for program in tried._programs.values()] == [1, 1]
    assert traces == [BATCHES[1].shape]  # the first one has been read before


@pytest.mark.gate
@pytest.mark.parametrize("candidate", range(2))
def test_noise_of_one_site(candidate):
    """At the output, over all batches."""
    candidates = INT4, INT8
    for site in unlimited(candidates).sites:
        recipe = Recipe([(site.name, candidates[candidate])], smallest=1)
        outputs, _ = quantized(apply, PARAMS, BATCHES, recipe)
        assert site.snr[candidate] == pytest.approx(ratio(apply, PARAMS, BATCHES, outputs), abs=1e-3)


@one_in(
    4,
    ("limit", "candidates"),
    [
        ("max_bytes", (STATIC_INT4, STATIC, FLOAT_INPUT)),
        ("min_decibels", (STATIC_INT4, STATIC, FLOAT_INPUT)),
        ("max_bytes", (INT4, INT8, None)),
        ("min_decibels", (INT4, INT8, None)),
    ],
    first=3,
)
def test_result(limit, candidates):
    """Its noise and bytes are those of the function that the recipe quantizes."""
    first, second = unlimited(candidates).uniform[:2]
    between = (first.quantized_bytes + second.quantized_bytes) // 2, first.snr + (second.snr - first.snr) / 8
    options = {limit: dict(zip(("max_bytes", "min_decibels"), between, strict=True))[limit]}
    result = search(candidates=candidates, **options)
    outputs, size = quantized(apply, PARAMS, BATCHES, result.recipe, result.calibration)
    assert result.snr == pytest.approx(ratio(apply, PARAMS, BATCHES, outputs), abs=1e-3)
    assert result.quantized_bytes == size
    assert result.quantized_bytes <= options.get("max_bytes", math.inf)
    assert result.snr >= options.get("min_decibels", -math.inf)
    assert result.float_bytes == size_in_bytes(PARAMS)
    assert sum(site.float_bytes for site in result.sites) == result.float_bytes
    assert sum(site.quantized_bytes for site in result.sites) == result.quantized_bytes
    assert [site.name for site in result.sites] == sorted(PARAMS)
    chosen = {site.choice for site in result.sites}
    assert len(chosen) > 1
    assert chosen <= {*candidates}
    assert Recipe.from_json(result.recipe.to_json()) == result.recipe
    assert [scheme for _, scheme in result.recipe.rules] == [site.choice for site in result.sites]
    assert (result.max_bytes, result.min_decibels) == (options.get("max_bytes"), options.get("min_decibels"))


@pytest.mark.gate
def test_uniform_schemes():
    result = unlimited((INT4, INT8, None))
    for scheme, uniform in zip(result.candidates[:2], result.uniform, strict=False):
        outputs, size = quantized(apply, PARAMS, BATCHES, Recipe([("*", scheme)], smallest=1))
        assert uniform.quantized_bytes == size
        assert uniform.snr == pytest.approx(ratio(apply, PARAMS, BATCHES, outputs), abs=1e-3)
    assert result.uniform[2] == (result.float_bytes, math.inf, math.inf)


def stored_bytes(recipe):
    return size_in_bytes(transform.quantize(apply, jax.eval_shape(lambda: PARAMS), recipe, BATCHES[0])[1])


def noise_of(decibels):
    return 10 ** (-decibels / 10)


@pytest.mark.gate
def test_no_assignment_is_better(count, full):
    """All of a small network, by the noise that adds: for each number of bytes, the search finds one of the best."""
    candidates = INT4, INT8, None
    result = unlimited(candidates)
    assignments = {}
    for choice in itertools.product(range(3), repeat=4):
        rules = [(site.name, candidates[number]) for site, number in zip(result.sites, choice, strict=True)]
        size = result.float_bytes if choice == (2,) * 4 else stored_bytes(Recipe(rules, smallest=1))
        assignments[choice] = size, sum(noise_of(site.snr[n]) for site, n in zip(result.sites, choice, strict=True))
    sizes = sorted({size for size, _ in assignments.values()})
    others = (sizes[len(sizes) // 4], sizes[-1]) if full else ()
    for limit in (sizes[0], sizes[len(sizes) // 2], *others):
        best = min(noise for size, noise in assignments.values() if size <= limit)
        found = search(candidates=candidates, max_bytes=limit)
        assert found.quantized_bytes <= limit
        assert noise_of(found.predicted_snr) == pytest.approx(best, rel=1e-9, abs=1e-15)
        count("limits of mixed precision", 1)
    smallest = f"with these candidates the parameters take at least {sizes[0]:,} bytes"
    assert_declined(lambda: search(candidates=candidates, max_bytes=sizes[0] - 1), smallest)


@pytest.mark.suite
def test_frontier(count):
    """By brute force, with arrays that several sites need: each of the best assignments, and no other."""
    random = np.random.default_rng(0)
    for _ in range(300):
        sizes = dict(enumerate(random.integers(1, 9, 6).tolist()))
        sites = [
            [
                Choice(number, float(random.integers(64)), frozenset(random.choice(6, random.integers(3)).tolist()))
                for number in range(random.integers(1, 5))
            ]
            for _ in range(random.integers(1, 6))
        ]
        expected, least = [], math.inf
        points = []
        for choices in itertools.product(*sites):
            needs = frozenset().union(*(choice.needs for choice in choices))
            points.append((sum(sizes[need] for need in needs), sum(choice.noise for choice in choices)))
        for size, noise in sorted(points):
            if noise < least:
                expected.append((size, noise))
                least = noise
        best = frontier(sites, sizes)
        assert list(zip(best.bytes.tolist(), best.noise.tolist(), strict=True)) == expected
        for (size, noise), numbers in zip(expected, best.numbers, strict=True):
            choices = [site[number] for site, number in zip(sites, numbers, strict=True)]
            needs = frozenset().union(*(choice.needs for choice in choices))
            assert (sum(sizes[need] for need in needs), sum(choice.noise for choice in choices)) == (size, noise)
        count("assignments by brute force", len(points))


def test_frontier_of_many_sites(monkeypatch):
    """It keeps some of the best assignments, with the smallest and the best of all, and every one is what it says."""
    monkeypatch.setattr("jquant.transform.choosing.frontier._MOST", 500)
    random = np.random.default_rng(0)
    sizes = {(site, n): int(random.integers(10**6)) for site in range(40) for n in range(3)}
    sites = [
        [Choice(n, float(10**7 - sizes[site, n] * random.integers(1, 9)), frozenset({(site, n)})) for n in range(3)]
        for site in range(40)
    ]
    best = frontier(sites, sizes)
    assert 300 < len(best.bytes) <= 501
    assert best.bytes[0] == sum(min(sizes[site, n] for n in range(3)) for site in range(40))
    assert best.noise[-1] == sum(min(choice.noise for choice in site) for site in sites)
    assert (np.diff(best.bytes) > 0).all()
    assert (np.diff(best.noise) < 0).all()
    for index in range(0, len(best.bytes), 50):
        numbers = best.numbers[index].tolist()
        assert best.bytes[index] == sum(sizes[site, n] for site, n in enumerate(numbers))
        assert best.noise[index] == sum(sites[site][n].noise for site, n in enumerate(numbers))


def tied(params, tokens):
    x = params["table"][tokens]
    x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["layers"])
    return x @ params["table"].T


TIED = {"table": normal(6, (32, 16)), "layers": normal(7, (3, 16, 16))}
TOKENS = [np.arange(12, dtype=np.int32).reshape(2, 6)]


def test_tied_weights_and_layers():
    """The table is stored once if both of its sites choose the same scheme, and stays if one of them is float."""
    result = search(tied, TIED, TOKENS, (FLOAT_INPUT, None), max_bytes=10**6)
    assert [(site.name, site.choice) for site in result.sites] == [("table", None), ("layers", None), ("table#2", None)]
    assert [site.float_bytes for site in result.sites] == [32 * 16 * 4, 3 * 16 * 16 * 4, 0]
    packed = 32 * (16 + 4)
    tried = trials(tied, TIED, TOKENS, [FLOAT_INPUT])
    layers = 3 * 16 * 16 * 4
    for numbers, table in (((0, 0, 0), 2048), ((1, 0, 1), packed), ((1, 0, 0), 2048 + packed), ((0, 0, 1), 2048 + packed)):
        assert tried.stored.bytes(numbers) == table + layers
    assert tried.stored.bytes((1, 1, 1)) == packed + 3 * 16 * (16 + 4)
    together = search(tied, TIED, TOKENS, (FLOAT_INPUT, None), max_bytes=packed + layers)
    assert [site.choice for site in together.sites] == [FLOAT_INPUT, None, FLOAT_INPUT]
    assert together.quantized_bytes == packed + layers
    assert [site.quantized_bytes for site in together.sites] == [packed, layers, 0]


@pytest.mark.gate
def test_weights_that_something_else_reads():
    """They stay float beside what the site stores, so that float is the smallest choice."""

    def function(params, x):
        return x @ params["w0"] * jnp.sum(params["w0"])

    params = {"w0": PARAMS["w0"]}
    stored = trials(function, params, BATCHES, [INT8]).stored
    _, size = quantized(function, params, BATCHES, Recipe([("*", INT8)], smallest=1))
    assert (stored.bytes((0,)), stored.bytes((1,))) == (8 * 24 * 4, size)
    assert size > 8 * 24 * 5
    (site,) = search(function, params, BATCHES, (INT8, None)).sites
    assert (site.choice, site.float_bytes, site.quantized_bytes) == (None, 0, 0)


@pytest.mark.gate
def test_shared_static_input():
    """Its range is stored once, though the sites that read it choose different schemes."""

    def function(params, x):
        return x @ params["q"], x @ params["k"]

    params = {name: normal(number, (16, 16)) for number, name in enumerate("qk")}
    tried = trials(function, params, [BATCHES[0].repeat(2, axis=1)], [STATIC, STATIC_INT4])
    float_bytes, range_bytes, stored = 16 * 16 * 4, 4 + 1, tried.stored
    alone = {numbers: stored.bytes(numbers) - float_bytes for numbers in ((1, 0), (2, 0), (0, 1), (0, 2))}
    assert alone[1, 0] == alone[0, 1] > 16 * 16 + range_bytes
    for first, second in itertools.product((1, 2), repeat=2):
        assert stored.bytes((first, second)) == alone[first, 0] + alone[0, second] - range_bytes


def convolutional(params, x):
    x = lax.conv_general_dilated(x, params["filter"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(x).mean((1, 2)) @ params["head"]


@pytest.mark.gate
def test_convolution():
    """It takes INT8 and not INT4, and stays float without INT8."""
    params = {"filter": normal(0, (3, 3, 4, 32)), "head": normal(1, (32, 16))}
    x = normal(2, (2, 6, 6, 4))
    result = search(convolutional, params, [x], (INT4, INT8), max_bytes=1152 + 128 + 512)
    filter, head = result.sites
    assert (filter.snr[0], filter.choice, head.choice) == (None, INT8, INT4)
    outputs, size = quantized(convolutional, params, [x], result.recipe)
    assert size == result.quantized_bytes
    assert result.snr == pytest.approx(ratio(convolutional, params, [x], outputs), abs=1e-3)
    without = search(convolutional, params, [x], (INT4, Scheme(weight_type="UINT4")))
    assert [site.name for site in without.sites] == ["head"]
    assert "filter  " in str(result)
    assert " -  " in str(result)


@pytest.mark.parametrize("name", ["matmul", "embedding", "convolution", "activation_matmul", "a[0]*?", "[!x]", "*"])
def test_names_with_patterns(name):
    """A rule is for its site alone."""
    params = {name: PARAMS["w0"], "other": PARAMS["w1"]}
    candidates = INT4, INT8, None

    def function(params, x):
        return x @ params[name] @ params["other"]

    tried = trials(function, params, BATCHES, candidates[:2])
    recipe = tried.choices.recipe((1, 2), 1)
    rows = transform.sites(function, params, BATCHES[0], recipe=recipe)
    assert {row.name: row.scheme.partition(",")[0] for row in rows} == {name: "int4 by channel", "other": "int8 by channel"}


@pytest.mark.gate
def test_batches_are_read_once():
    """Batches of a generator have the same result as those of a list, also if ranges are to be observed."""
    candidates = STATIC, STATIC_INT4
    expected, actual = unlimited(candidates), search(batches=(each for each in BATCHES), candidates=candidates)
    assert actual.recipe == expected.recipe
    assert (actual.snr, actual.sites, actual.path) == (expected.snr, expected.sites, expected.path)
    tuples = search(batches=[(batch,) for batch in BATCHES], candidates=candidates)
    assert tuples.sites == expected.sites


@pytest.mark.gate
def test_limits_of_noise():
    """The best that is possible is reached, and anything above it is an error that says what was reached."""
    best = unlimited((INT4, INT8)).path[-1]
    assert search(candidates=(INT4, INT8), min_decibels=best.snr - 1e-6).snr == pytest.approx(best.snr, abs=1e-5)
    message = f"min_decibels is 90, but the best that was reached is {best.snr:.2f} dB"
    assert_declined(lambda: search(candidates=(INT4, INT8), min_decibels=90), message)
    worst = search(candidates=(INT4, INT8), min_decibels=-1000)
    assert worst.quantized_bytes == worst.path[0].quantized_bytes == worst.uniform[0].quantized_bytes
    sizes = [each.quantized_bytes for each in worst.path]
    assert sizes == sorted(set(sizes))


@pytest.mark.gate
def test_the_smallest_that_reaches():
    """All smaller ones of the best assignments that were measured reach less."""
    result = search(min_decibels=22)
    smaller = [each for each in result.path if each.quantized_bytes < result.quantized_bytes]
    assert smaller
    assert all(each.snr < 22 for each in smaller)


def test_sites_in_shard_map():
    """They stay float."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")

    def function(params, x):
        product = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
        return product(x @ params["w0"], params["w1"])

    result = search(function, {name: PARAMS[name] for name in ("w0", "w1")}, [BATCHES[0]], (INT4, INT8))
    assert [site.name for site in result.sites] == ["w0"]
    _, size = quantized(function, {name: PARAMS[name] for name in ("w0", "w1")}, [BATCHES[0]], result.recipe)
    assert result.quantized_bytes == size


def test_a_branch_that_is_not_taken():
    """It has no noise, so that its site takes the smallest scheme."""

    def function(params, x):
        return lax.cond(x.sum() > 1e9, lambda x: x @ params["no"], lambda x: x @ params["yes"], x)

    result = search(function, {"no": PARAMS["w0"], "yes": PARAMS["w0"]}, BATCHES, (INT8, INT4))
    choices = {site.name: site for site in result.sites}
    assert choices["no"].snr == (math.inf, math.inf)
    assert (choices["no"].choice, choices["yes"].choice) == (INT4, INT8)


def test_table_and_picture(tmp_path):
    result = search(max_bytes=2000)
    lines = str(result).splitlines()
    assert lines[0].split() == ["scheme", "at", "all", "sites,", "dB", "bytes"]
    assert lines[3].split() == ["C", "float", "inf", f"{size_in_bytes(PARAMS):,}"]
    assert lines[5].split() == ["site", "kind", "choice", "A,", "dB", "B,", "dB", "bytes", "quantized"]
    for line, site in zip(lines[6:], result.sites, strict=False):
        choice = "AB"[result.candidates.index(site.choice)] if site.choice else "float"
        noise = (f"{ratio:.2f}" for ratio in site.snr[:2])
        assert line.split() == [site.name, "matmul", choice, *noise, f"{site.float_bytes:,}", f"{site.quantized_bytes:,}"]
    assert lines[-1].startswith(f"the function: {result.snr:.2f} dB (predicted: {result.predicted_snr:.2f}) in ")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra: examples)")
    result.draw(tmp_path / "bits.png")
    assert (tmp_path / "bits.png").stat().st_size > 20_000
    search(min_decibels=900, candidates=(INT4, None)).draw(tmp_path / "float.png")
    assert (tmp_path / "float.png").stat().st_size > 20_000


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"transform.MixedPrecision.draw needs matplotlib: pip install matplotlib"):
        search().draw(tmp_path / "bits.png")


def test_progress(capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed (extra: examples)")
    search(candidates=(STATIC, INT4), progress=True)
    shown = capsys.readouterr().err
    assert all(f"{what}: 100%" in shown for what in ("calibrating", "packing", "measuring") if what != "calibrating")
    assert "calibrating" in shown


@pytest.mark.parametrize(
    ("options", "message", "error"),
    [
        ({"candidates": ()}, "candidates is []; it must have at least two", None),
        ({"candidates": [INT8]}, "it must have at least two", None),
        ({"candidates": [INT8, INT4, Scheme()]}, "candidates has Scheme() twice", None),
        ({"candidates": [None, None]}, "candidates has None twice", None),
        ({"candidates": INT8}, "candidates is Scheme(); it must be a list", TransformTypeError),
        ({"candidates": [INT8, transform.int4_by_rows]}, "pass the schemes of its rules", TransformTypeError),
        ({"candidates": [INT8, "INT4"]}, "candidates[1] is 'INT4'; it must be a Scheme", TransformTypeError),
        ({"batches": []}, "batches is empty", None),
        ({"batches": BATCHES[0]}, "batches is an array", TransformTypeError),
        ({"batches": ["x"]}, "inputs[0] is 'x'; it must be an array", TransformTypeError),
        ({"max_bytes": 2000, "min_decibels": 20}, "both max_bytes and min_decibels are given", None),
        ({"max_bytes": None}, "neither max_bytes nor min_decibels is given", None),
        ({"max_bytes": 2e3}, "max_bytes is the float 2000.0; it must be a number of bytes", TransformTypeError),
        ({"max_bytes": -1}, "max_bytes is -1", None),
        ({"min_decibels": "20"}, "min_decibels is the str '20'; it must be a number", TransformTypeError),
        ({"min_decibels": math.nan}, "min_decibels is nan", None),
        ({"progress": 1}, "progress is the int 1; it must be True or False", TransformTypeError),
        ({"function": lambda params, x: x}, "apply has no site", None),
        ({"function": lambda params, x: jnp.int32(apply(params, x))}, "apply returns no floats", None),
        ({"function": lambda params, x: apply(params, x) * jnp.nan}, "are not finite, or their squares are not", None),
        ({"function": lambda params, x: apply(params, x) * 0}, "the outputs of apply are all zero", None),
    ],
)
def test_wrong_arguments(options, message, error):
    assert_declined(lambda: search(**options), message, *([error] if error else []))


def test_different_sites():
    def function(params, x):
        return x @ params["w0"] if x.shape[0] == 6 else x @ params["w0"] @ params["w1"]

    assert_declined(lambda: search(function), "a batch has different sites from the first: w1")


@pytest.mark.gate
@one_in(3, "mode", ["disable_jit", "debug_nans", "check_tracer_leaks"], others="full")
def test_debugging_modes(mode):
    """The same result."""
    modes = {
        "disable_jit": jax.disable_jit,
        "debug_nans": lambda: jax.debug_nans(True),
        "check_tracer_leaks": jax.checking_leaks,
    }
    small = {"w0": PARAMS["w0"], "w1": PARAMS["w1"]}
    expected = search(params=small, batches=BATCHES[:1], candidates=(STATIC, INT4), max_bytes=900)
    with modes[mode]():
        actual = search(params=small, batches=BATCHES[:1], candidates=(STATIC, INT4), max_bytes=900)
    assert actual.recipe == expected.recipe
    assert actual.quantized_bytes == expected.quantized_bytes
    assert actual.snr == pytest.approx(expected.snr, abs=1e-3)
