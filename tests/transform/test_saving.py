"""`transform.save` and `transform.load`: the same bits, from shapes alone, whatever happens to the file."""

import json
import os
import random
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from support import saved_model_worker, saved_models
from support.broken_files import edit, reshape, split_header, with_header, with_random_bytes
from support.networks import SCHEMES, Float, recipe
from support.sampling import one_in
from support.small_functions import NETWORKS, applicable_schemes, draw_operands

import jquant
from jquant import transform
from jquant.checkpoints import CheckpointError
from jquant.files.stored_tensor import StoredTensor

P = PartitionSpec
X = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
TYPES = {"w": jax.ShapeDtypeStruct((32, 24), jnp.float32), "bias": jax.ShapeDtypeStruct((1, 24), jnp.bfloat16)}


def linear(params, x):
    return x @ params["w"] + params["bias"].astype(np.float32)


def drawn(apply, types, quantization, *inputs, seed=0):
    """A quantized function and parameters of its types."""
    quantized_apply, target = transform.quantize(apply, types, quantization, *inputs)
    return quantized_apply, saved_models.drawn(target, np.random.default_rng(seed))


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert saved_models.digest(actual) == saved_models.digest(expected)


@pytest.fixture(scope="module")
def everything():
    """All formats and kinds of sites, and those of which outputs are compared."""
    inputs, types = saved_models.inputs(), saved_models.types()
    names = saved_models.FEW
    return (
        drawn(saved_models.apply, types, saved_models.recipe(), *inputs),
        drawn(saved_models.apply_few, types, saved_models.recipe(names), *inputs),
    )


def test_another_process(everything, tmp_path, count):
    """It has shapes alone, and gets each byte of the parameters, and the outputs."""
    (all_apply, all_params), (few_apply, few_params) = everything
    transform.save(tmp_path / "all.safetensors", all_apply, all_params)
    transform.save(tmp_path / "few.safetensors", few_apply, few_params)
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, saved_model_worker.__file__, str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    assert json.loads((tmp_path / "digests.json").read_text()) == saved_models.digest(all_params)
    expected = jax.jit(few_apply)(few_params, *saved_models.inputs())
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert set(outputs) == set(expected)
        for name, array in outputs.items():
            assert np.isfinite(array).all()
            np.testing.assert_array_equal(array, expected[name], strict=True, err_msg=name)
            count("outputs of loaded parameters", array.size)
    count("loaded arrays", len(jax.tree.leaves(all_params)))


@pytest.mark.gate  # where the package safetensors is installed
def test_what_the_file_has(everything, tmp_path):
    """Read by the package safetensors, and decoded by hand: each matrix in its own bits, and the recipe."""
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")
    quantized_apply, params = everything[0]
    ranges = {"int8_tensor": jquant.calibration.Range(np.float32(-0.1), np.float32(3)), "smoothed": None}
    transform.save(tmp_path / "a.safetensors", quantized_apply, params, calibration=ranges)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        metadata = file.metadata()
        values = {name: file.get_tensor(f"sites/{name}/values") for name in ("uint8", "int4", "uint4_blocks", "nvfp4")}
    assert transform.Recipe.from_json(metadata["recipe"]) == saved_models.recipe()
    assert json.loads(metadata["calibration"]) == {"int8_tensor": {"min": float(np.float32(-0.1)), "max": 3}}
    assert json.loads(metadata["versions"])["jquant"] == jquant.__version__
    sites = params["sites"]
    np.testing.assert_array_equal(values["uint8"], (sites["uint8"]["values"].data.T + np.int16(128)).astype(np.uint8))
    for name, signed in (("int4", True), ("uint4_blocks", False)):
        low, high = values[name] & 15, values[name] >> 4
        codes = np.stack([low, high], 1).reshape(-1, saved_models.COLUMNS).astype(np.int8)[: saved_models.WIDTH]
        integers = codes - 16 * (codes > 7) if signed else codes
        np.testing.assert_array_equal(integers, np.asarray(sites[name]["values"].unpack()).astype(np.int8))
    np.testing.assert_array_equal(values["nvfp4"], sites["nvfp4"]["values"])
    _, tensors = split_header((tmp_path / "a.safetensors").read_bytes())
    in_memory = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert 0.75 * in_memory < len(tensors) < in_memory  # which has column sums, and whole blocks


CASES = [(name, scheme) for name, network in NETWORKS.items() for scheme in applicable_schemes(network)]


@one_in(29, ("name", "scheme"), CASES, others="full")
def test_networks(name, scheme, tmp_path, count):
    """Each small function with each scheme: all bytes, on one device, and split over four where that is allowed."""
    network = NETWORKS[name]
    parameters, x = draw_operands(network, scheme, 3)
    types = jax.eval_shape(lambda: parameters)
    apply = lambda params, x: network.function(Float(), params, x)  # noqa: E731
    quantized_apply, params = drawn(apply, types, recipe(SCHEMES[scheme]), x)
    transform.save(tmp_path / "a.safetensors", quantized_apply, params)
    assert_same(transform.load(tmp_path / "a.safetensors", apply, types, x)[1], params)
    count("loaded arrays", len(jax.tree.leaves(params)))
    mesh = jax.make_mesh((4,), ("d",))
    for spec in (P(None, "d"), P("d"), P(None, None, "d")):
        options = {"mesh": mesh, "rules": [("*", spec)]}
        try:
            shardings = transform.shardings(quantized_apply, params, **options)
        except transform.TransformError:
            with pytest.raises(transform.TransformError, match="cannot split"):
                transform.load(tmp_path / "a.safetensors", apply, types, x, **options)
            continue
        _, placed = transform.load(tmp_path / "a.safetensors", apply, types, x, **options)
        assert_same(placed, params)
        assert [leaf.sharding for leaf in jax.tree.leaves(placed)] == jax.tree.leaves(shardings)
        count("placed arrays", len(jax.tree.leaves(params)))


CHECKPOINTS = {  # weights that took the place of those of the recipe
    "zero points and an order": {"dtype": "uint4", "block_size": 16, "zero_point": True, "permutation": True},
    "minima": {"dtype": "uint4", "block_size": 8, "minimum": True},
    "odd blocks": {"dtype": "int4", "block_size": 5},
    "one block, longer than the column": {"dtype": "int8", "block_size": 36},
    "K-major": {"dtype": "uint4", "block_size": 8, "k_major": True},
    "K-major, signed": {"dtype": "int4", "block_size": 16, "k_major": True},
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_of_a_checkpoint(name, tmp_path):
    options = dict(CHECKPOINTS[name])
    rng, size, dtype = np.random.default_rng(0), options["block_size"], jnp.dtype(options["dtype"])
    limits, count = jnp.iinfo(dtype), -(-32 // size)
    draw = lambda *shape: rng.integers(limits.min, limits.max + 1, shape).astype(dtype)  # noqa: E731
    matrix = jquant.pack_matrix(
        draw(32, 24),
        draw(count, 24) if "zero_point" in options else None,
        scale=rng.uniform(0.1, 1, (count, 24)).astype(np.float16),
        minimum=rng.normal(size=(count, 24)).astype(np.float32) if "minimum" in options else None,
        block_size=size,
        k_major=options.get("k_major", False),
    )
    quantized_apply, params = drawn(linear, TYPES, transform.weight_only_int4, X)
    params["sites"]["w"] = {"values": matrix}
    if "permutation" in options:
        params["sites"]["w"]["permutation"] = rng.permutation(32).astype(np.int32)
    transform.save(tmp_path / "a.safetensors", quantized_apply, params)
    mesh = jax.make_mesh((2,), ("d",))
    for options in ({}, {"mesh": mesh, "rules": [("w", P(None, "d"))]}):
        _, loaded = transform.load(tmp_path / "a.safetensors", linear, TYPES, X, **options)
        if "K-major" in name:
            values = loaded["sites"]["w"]["values"]
            np.testing.assert_array_equal(values.unpack(), matrix.unpack(), strict=True)
            np.testing.assert_array_equal(values.scale, matrix.scale, strict=True)
        else:
            assert_same(loaded, params)


def test_each_device_reads_its_part(tmp_path, monkeypatch):
    """Of what is split, each byte is read once; the rest once for all devices."""
    quantized_apply, params = drawn(linear, TYPES, transform.dynamic_int8_rows, X)
    transform.save(tmp_path / "a.safetensors", quantized_apply, params)
    read = []
    original = StoredTensor._read_into

    def counted(tensor, file, part, start):
        read.append((tensor.name, part.nbytes))
        original(tensor, file, part, start)

    monkeypatch.setattr(StoredTensor, "_read_into", counted)
    mesh = jax.make_mesh((8,), ("d",))
    transform.load(tmp_path / "a.safetensors", linear, TYPES, X, mesh=mesh, rules=[("w", P(None, "d"))])
    total = {name: sum(size for each, size in read if each == name) for name, _ in read}
    assert total == {"sites/w/values": 32 * 24, "sites/w/scale": 4 * 24, "float/bias": 2 * 24}


def test_adapters_and_derivatives(tmp_path):
    """Adapters are kept apart: they go with the loaded function as with the saved one."""
    quantized_apply, params = drawn(linear, TYPES, transform.weight_only_int4, X)
    transform.save(tmp_path / "a.safetensors", quantized_apply, params)
    loaded_apply, loaded = transform.load(
        tmp_path / "a.safetensors", linear, TYPES, X, derivative="STRAIGHT_THROUGH", progress=False
    )
    adapters = {"w": {"a": np.ones((32, 2), np.float32), "b": np.full((2, 24), 0.5, np.float32)}}
    expected = jax.jit(transform.adapters.attach(quantized_apply))(adapters, params, X)
    actual = jax.jit(transform.adapters.attach(loaded_apply))(adapters, loaded, X)
    np.testing.assert_array_equal(actual, expected, strict=True)
    gradient = jax.jit(jax.grad(lambda x: loaded_apply(loaded, x).sum()))(X)
    assert np.isfinite(gradient).all()
    assert np.any(np.asarray(gradient))


# What is wrong with a file.


@pytest.fixture
def saved(tmp_path):
    """A file of a small function."""
    quantized_apply, params = drawn(linear, TYPES, transform.int4_by_rows, X)
    transform.save(tmp_path / "a.safetensors", quantized_apply, params)
    return tmp_path / "a.safetensors"


def loaded(path, apply=linear, types=TYPES, x=X, **options):
    return transform.load(path, apply, types, x, **options)


def with_metadata(data: bytes, **strings) -> bytes:
    header, rest = split_header(data)
    header["__metadata__"] |= strings
    return with_header(header, rest)


def test_truncated(saved):
    """At each length, in the header and in the tensors."""
    data = saved.read_bytes()
    for length in [0, 5, 8, 20, 60, 200, len(data) - 300, len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"a\.safetensors.* truncated"):
            loaded(saved)


def test_foreign_newer_and_broken(saved):
    data = saved.read_bytes()
    header, rest = split_header(data)
    foreign = dict(header, __metadata__={"format": "pt"})
    for content, message in (
        (with_header(foreign, rest), "is not a file that transform.save wrote"),
        (b"GGUF" + data, "is not a safetensors"),
        (
            with_metadata(data, format_version="2"),
            r"is newer than this jquant, which reads format 1: it has format 2, from \{",
        ),
        (with_metadata(data, format_version="0x"), "its format_version is '0x'"),
        (with_metadata(data, recipe="{}"), "its recipe is broken, or newer"),
        (with_metadata(data, recipe=transform.Recipe([("v", None)]).to_json()), "its recipe does not fit the function"),
        (with_metadata(data, blocks="[]"), "its JSON must be an object"),
        (with_metadata(data, blocks="{}"), "its metadata do not name the blocks of this matrix"),
        (with_metadata(data, blocks='{"w": {"dtype": "int4", "block_size": 0}}'), "as the blocks of 'w'"),
        (with_metadata(data, blocks='{"w": {"dtype": "int4", "block_size": 2000000000}}'), "blocks of 2000000000 rows"),
        (with_metadata(data, blocks='{"w": {"dtype": "float4_e2m1fn", "block_size": 6}}'), "for floats a multiple of 4"),
        (
            with_metadata(data, blocks='{"w": {"dtype": "int8", "block_size": 32}}'),
            r"is uint8\[16, 24\], and the function has",
        ),
    ):
        saved.write_bytes(content)
        with pytest.raises(CheckpointError, match=message) as raised:
            loaded(saved)
        assert str(saved) in str(raised.value)


def test_another_function(saved):
    wider = {"w": jax.ShapeDtypeStruct((32, 25), jnp.float32), "bias": jax.ShapeDtypeStruct((1, 25), jnp.bfloat16)}
    more = {**TYPES, "v": jax.ShapeDtypeStruct((1, 24), jnp.float32)}
    for apply, types, message in (
        (linear, wider, r"'sites/w/values': is uint8\[16, 24\], and the function has uint8\[16, 25\] there"),
        (lambda p, x: linear(p, x) * p["v"], more, "'float/v': is missing: the file is of another function"),
        (lambda p, x: x @ p["w"], TYPES, "'float/bias': is not a parameter of the function, as 1 in the file are not"),
    ):
        with pytest.raises(CheckpointError, match=message):
            loaded(saved, apply, types)


def mutated(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    start = 8 + int.from_bytes(data[:8], "little")
    defect = dice.choice(["truncated", "longer", "bytes", "bytes", "elements", "header", "header", "shape", "json", "json"])
    if defect == "truncated":
        return data[: dice.randrange(len(data))], defect
    if defect == "longer":
        return data + bytes(dice.randrange(1, 50)), defect
    if defect == "bytes":
        return with_random_bytes(data, dice, 0, start), defect
    if defect == "elements":
        return with_random_bytes(data, dice, start, len(data)), defect
    header, rest = split_header(data)
    if defect in ("header", "shape"):
        defect = edit(header, dice) if defect == "header" else reshape(header, dice)
    else:
        key = dice.choice(["recipe", "blocks", "calibration", "versions"])
        text = json.loads(header["__metadata__"][key])
        defect = f"{key}: {edit(text, dice)}" if text else key
        header["__metadata__"][key] = json.dumps(text)
    return with_header(header, rest), defect


@pytest.fixture(scope="module")
def compiled():
    """The function of `saved`, compiled once."""
    return jax.jit(drawn(linear, TYPES, transform.int4_by_rows, X)[0])


@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_mutated(first, saved, compiled, full, count):
    """An answer, or a `CheckpointError` that names the file: never another error."""
    data, unnamed = saved.read_bytes(), []
    for number in range(first, first + (50 if full else 20)):
        content, defect = mutated(data, random.Random(number))
        saved.write_bytes(content)
        try:
            _, params = loaded(saved)
        except CheckpointError as error:
            unnamed += [(number, defect, error)] * (str(saved) not in str(error))
            count("mutated files: error", 1)
            continue
        except BaseException as error:
            raise AssertionError(f"{number}: {defect}") from error
        values = params["sites"]["w"]["values"]
        if values.block_size == 32 and jax.tree.structure(values).num_leaves == 2:
            assert compiled(params, X).shape == (4, 24), defect
        count("mutated files: answer", 1)
    assert not unnamed


# Writing.

KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from jquant.files import safetensors, replacing
moment, folder = int(sys.argv[1]), Path(sys.argv[2])
events = 0
def event():
    global events
    events += 1
    if events == moment:
        os.kill(os.getpid(), signal.SIGKILL)
for name in ("fsync", "replace"):
    def patched(*arguments, original=getattr(os, name)):
        event()
        original(*arguments)
        event()
    setattr(os, name, patched)
def read(number):
    event()
    return np.full(100_000, number, np.uint8)
tensors = [safetensors.NewTensor(f"{n}", np.dtype(np.uint8), (100_000,), lambda n=n: read(n)) for n in range(5)]
safetensors.write(folder / "a.safetensors", tensors, {"format": "new"})
print("done")
"""


@pytest.mark.full
@pytest.mark.parametrize("moment", range(1, 11))
def test_killed_while_writing(moment, tmp_path):
    """Before and after each tensor, and each step by which the file takes its place: the old file, or the new one."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", KILLED, str(moment), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == -9, run.stderr
    if path.read_bytes() != b"old":
        arrays = jquant.checkpoints.load(path).read()
        assert [(name, set(array.tolist())) for name, array in sorted(arrays.items())] == [(f"{n}", {n}) for n in range(5)]
    assert (path.read_bytes() == b"old") == (moment < 9)


def test_failure_while_writing(saved, monkeypatch):
    """The old file stays, and nothing beside it; and what is replaced keeps its permissions."""
    quantized_apply, params = drawn(linear, TYPES, transform.dynamic_int8, X)
    old = saved.read_bytes()
    saved.chmod(0o640)

    def fail(*_):
        raise OSError("no space left")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="no space left"):
                transform.save(saved, quantized_apply, params)
        assert saved.read_bytes() == old
        assert os.listdir(saved.parent) == [saved.name]
    link = saved.parent / "link"
    link.symlink_to(saved)
    transform.save(link, quantized_apply, params)
    assert saved.read_bytes() != old
    assert link.is_symlink()
    assert saved.stat().st_mode & 0o777 == 0o640


def test_where_no_file_can_be(saved, tmp_path):
    """The error names the path that was given; what is there stays as it is."""
    quantized_apply, params = drawn(linear, TYPES, transform.dynamic_int8, X)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for name, kind in (
        ("missing/b", FileNotFoundError),
        ("a.safetensors/b", NotADirectoryError),
        ("folder", IsADirectoryError),
        ("pipe", OSError),
    ):
        with pytest.raises(kind) as raised:
            transform.save(str(tmp_path / name), quantized_apply, params)
        assert raised.value.filename == str(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "pipe").is_fifo()


def test_one_file_for_the_same_parameters(tmp_path):
    """Whatever the order of their dicts, where they are, and the modes of jax."""
    sharding = jax.sharding.NamedSharding(jax.make_mesh((2,), ("d",)), P(None, "d"))
    types = {"v": jax.ShapeDtypeStruct((24, 32), jnp.float32), **TYPES}
    function = lambda params, x: linear(params, x) @ params["v"]  # noqa: E731
    quantized_apply, params = drawn(function, types, transform.int4_by_rows, X)
    backwards = {kind: dict(reversed(named.items())) for kind, named in reversed(params.items())}
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), params)
    with jax.disable_jit(), jax.debug_nans(True), jax.enable_x64(True):
        for number, each in enumerate((params, backwards, placed)):
            transform.save(tmp_path / f"{number}", quantized_apply, each)
        _, again = transform.load(tmp_path / "0", function, types, X)
    transform.save(tmp_path / "3", quantized_apply, again)
    first, *others = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert others == [first] * 3


def test_wrong_arguments(saved, tmp_path):
    quantized_apply, params = drawn(linear, TYPES, transform.dynamic_int8, X)
    _, target = transform.quantize(linear, TYPES, transform.dynamic_int8, X)
    save, load, error = transform.save, transform.load, transform.TransformError
    path, mesh = tmp_path / "b", jax.make_mesh((2,), ("d",))
    for call, message in (
        (lambda: save(3, quantized_apply, params), "transform.save: path is 3; it must be a path"),
        (lambda: save("a\0b", quantized_apply, params), "transform.save: path is 'a.*b', which has a null character"),
        (lambda: save(path, linear, params), "transform.save: quantized_apply is .*; it must be the function that"),
        (lambda: save(path, quantized_apply, {}), "transform.save: params is {}; it must be the quantized parameters"),
        (lambda: save(path, quantized_apply, target), "transform.save: quantized_params.* has no values"),
        (lambda: save(path, quantized_apply, params, calibration=3), "transform.save: calibration is 3"),
        (lambda: save(path, quantized_apply, {**params, "float": {"v": X}}), "transform.save: apply has no parameters v"),
        (lambda: load(None, linear, TYPES, X), "transform.load: path is None"),
        (lambda: load(saved, 3, TYPES, X), "transform.load: apply is 3"),
        (lambda: load(saved, linear, {}, X), "transform.load: params is {}, which holds no arrays"),
        (lambda: load(saved, linear, TYPES, X, mesh=3), "transform.load: mesh is 3"),
        (lambda: load(saved, linear, TYPES, X, rules=[("w", P())]), "transform.load: rules are given without a mesh"),
        (lambda: load(saved, linear, TYPES, X, mesh=mesh, rules=[("v", P())]), "transform.load: no parameter matches .*'v'"),
        (lambda: load(saved, linear, TYPES, X, derivative="x"), "transform.load: derivative"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        load(path, linear, TYPES, X)
    with pytest.raises(CheckpointError, match="is not a file"):
        load(tmp_path, linear, TYPES, X)
