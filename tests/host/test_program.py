"""native/example/host.cc, built with GCC: files of `jquant.host.write` without Python, with the bits of Python.

JQUANT_PJRT_PLUGIN is a plugin of PJRT for CPUs, such as that of the package of .ci/host.txt. PJRT's headers are in
TensorFlow's package, and what is built has AddressSanitizer and UndefinedBehaviorSanitizer, too.
"""

import os
import re
import subprocess
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import host_files, saved_models
from support.native import requires_native

from jquant import host, kv_cache, transform

jquant_native = pytest.importorskip("jquant_native", reason="jquant-native is not installed")
for package in ("tensorflow", "onnx", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed (extras: oracle, examples)")
from benchmarks.host import build  # noqa: E402

pytestmark = [pytest.mark.full, requires_native]

SANITIZE = "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"
STATE_STEPS = 5


@pytest.fixture(scope="module")
def plugin():
    if "JQUANT_PJRT_PLUGIN" not in os.environ:
        pytest.skip("JQUANT_PJRT_PLUGIN is not set: a plugin of PJRT for CPUs, such as that of .ci/host.txt")
    return os.environ["JQUANT_PJRT_PLUGIN"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("host") / "host")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    return build(tmp_path_factory.mktemp("host") / "sanitized", *SANITIZE)


def run(program, plugin, file, inputs, outputs, *more, library=jquant_native.LIBRARY):
    # Whatever the plugin keeps until its end is its own.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [program, plugin, library, file, inputs, outputs, *more]
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=300)


def results_of(program, plugin, folder, exported, args, calls):
    """The results of each call, by the host. `args` are as for `host.write`; `calls` has the inputs of each."""
    host.write(folder / "file.jquant", exported, *args)
    kept = [leaf for number, leaf in enumerate(jax.tree.leaves(args)) if number in exported.module_kept_var_idx]
    is_input = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)]
    assert sum(is_input) == sum(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in kept)
    (folder / "inputs").write_bytes(b"".join(np.asarray(each).tobytes() for call in calls for each in call))
    ended = run(program, plugin, folder / "file.jquant", folder / "inputs", folder / "outputs")
    assert ended.returncode == 0, ended.stderr
    _, lines = host_files.read(folder / "file.jquant")
    states = {line.output for line in lines if line.kind == "state"}
    outputs = [line for line in lines if line.kind == "output"]
    data, offset, found = (folder / "outputs").read_bytes(), 0, []
    for _ in calls:
        results = []
        for number, line in enumerate(outputs):
            if number not in states:
                count = int(np.prod(line.shape, dtype=int))
                results.append(np.frombuffer(data, line.dtype, count, offset).reshape(line.shape))
                offset += count * line.dtype.itemsize
        found.append(results)
    assert offset == len(data)
    return found


def described(*arrays):
    return [jax.ShapeDtypeStruct(np.shape(array), np.asarray(array).dtype) for array in arrays]


def dense(recipe, rows=3):
    rng = np.random.default_rng(rows)
    params = {name: np.float32(rng.normal(size=(64, 64)) / 8) for name in ("hidden", "head")}
    calls = [[np.float32(rng.normal(size=(rows, 64)))] for _ in range(3)]
    apply, packed = transform.quantize(lambda p, x: jax.nn.relu(x @ p["hidden"]) @ p["head"], params, recipe, *calls[0])
    return apply, packed, calls


def convolutions():
    rng = np.random.default_rng(1)
    params = [np.float32(rng.normal(size=(3, 3, 16, 16)) / 12) for _ in range(2)]
    calls = [[np.float32(rng.normal(size=(2, 12, 12, 16)))] for _ in range(2)]

    def apply(params, x):
        for filter in params:
            x = jax.lax.conv_general_dilated(x, filter, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x

    apply, packed = transform.quantize(apply, params, transform.dynamic_int8, *calls[0])
    return apply, packed, calls


NETWORKS = {
    "dynamic": lambda: dense(transform.dynamic_int8),
    "rows": lambda: dense(transform.dynamic_int8_rows, 32),
    "weight-only int4": lambda: dense(transform.weight_only_int4, 1),
    "weight-only int8": lambda: dense(transform.weight_only_int8),
    "int4 by rows": lambda: dense(transform.int4_by_rows),
    "convolutions": convolutions,
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("which", ["program", "sanitized"])
def test_same_bits(request, plugin, tmp_path, name, which, count):
    function, packed, calls = NETWORKS[name]()
    types = described(*calls[0])
    exported = host.export(function, packed, *types)
    found = results_of(request.getfixturevalue(which), plugin, tmp_path, exported, (packed, *types), calls)
    jitted = jax.jit(function)
    for results, inputs in zip(found, calls, strict=True):
        for result, expected in zip(results, jax.tree.leaves(jitted(packed, *inputs)), strict=True):
            np.testing.assert_array_equal(result, expected)
    count("results of calls without Python", len(found))


@pytest.mark.parametrize("which", ["program", "sanitized"])
def test_every_format(request, plugin, tmp_path, which, count):
    """A site of each format and kind, with drawn parameters."""
    inputs = saved_models.inputs()
    function, types = transform.quantize(saved_models.apply, saved_models.types(), saved_models.recipe(), *inputs)
    params = saved_models.drawn(types, np.random.default_rng(0))
    args = params, *described(*inputs)
    exported = host.export(function, *args)
    (results,) = results_of(request.getfixturevalue(which), plugin, tmp_path, exported, args, [inputs])
    expected = jax.jit(function)(params, *inputs)
    for (name, output), result in zip(expected.items(), results, strict=True):
        np.testing.assert_array_equal(result, output, err_msg=name)
    count("sites without Python", len(results))


def test_state(sanitized, plugin, tmp_path):
    """Steps of a decoder, whose cache is donated: each finds what those before have written."""
    rng = np.random.default_rng(2)
    params = np.float32(rng.normal(size=(64, 192)) / 8)
    calls = [[np.float32(rng.normal(size=(1, 64))), np.int32(position)] for position in range(STATE_STEPS)]

    def step(params, cache, x, position):
        query, key, value = (part.reshape(1, 1, 2, 32) for part in jnp.split(x @ params, 3, -1))
        cache = kv_cache.append(cache, key, value, position, layer=0)
        return kv_cache.attend(query, cache, position, layer=0), cache

    cache = kv_cache.init(1, 1, 2, 16, 32, "INT8")
    step, packed = transform.quantize(step, params, transform.dynamic_int8_rows, cache, *calls[0])
    args = packed, cache, *described(*calls[0])
    exported = host.export(step, *args, donate_argnums=1)
    found = results_of(sanitized, plugin, tmp_path, exported, args, calls)
    jitted = jax.jit(step)
    for (result,), inputs in zip(found, calls, strict=True):
        expected, cache = jitted(packed, cache, *inputs)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("seed", range(12))
def test_types(sanitized, plugin, tmp_path, seed):
    """Arguments of all types and of some shapes, in every order of parameters and inputs, come back as they were."""
    rng = np.random.default_rng(seed)
    types = [jnp.dtype(name) for name in host._TYPES if not re.search("(64|128|int[24])$|e2m1", name)]
    leaves = [
        (rng.integers(0, 100, rng.integers(0, 5, rng.integers(0, 4))) % 2).astype(types[rng.integers(len(types))])
        for _ in range(rng.integers(1, 9))
    ]
    is_input = rng.random(len(leaves)) < 0.5
    calls = [[leaf for leaf, chosen in zip(leaves, is_input, strict=True) if chosen]]
    args = [described(leaf)[0] if chosen else leaf for leaf, chosen in zip(leaves, is_input, strict=True)]

    def reversed_copies(*leaves):
        return [jnp.concatenate([leaf.ravel(), leaf.ravel()]) for leaf in reversed(leaves)]

    exported = host.export(reversed_copies, *args, native=False)
    (results,) = results_of(sanitized, plugin, tmp_path, exported, args, calls)
    for result, leaf in zip(results, reversed(leaves), strict=True):
        assert result.tobytes() == 2 * leaf.tobytes()


@pytest.fixture
def written(tmp_path):
    """A file, its inputs, and where its outputs may go."""
    function, packed, calls = dense(transform.dynamic_int8)
    args = packed, *described(*calls[0])
    host.write(tmp_path / "file.jquant", host.export(function, *args), *args)
    (tmp_path / "inputs").write_bytes(calls[0][0].tobytes())
    return tmp_path / "file.jquant", tmp_path / "inputs", tmp_path / "outputs"


def changed(path, old, new):
    """Replaces bytes of the text, and makes the checksum right again."""
    data = path.read_bytes()
    text, end, rest = data[:-4].partition(b"\nend\n")
    replaced = text.replace(old, new, 1)
    assert replaced != text
    padding = -(len(text) + len(end)) % 64
    data = replaced + end
    data += bytes(-len(data) % 64) + rest[padding:]
    path.write_bytes(data + zlib.adler32(data).to_bytes(4, "little"))


def is_refused(ended):
    """Whether it ended with a sentence of its own, below what the plugin may have logged."""
    return ended.returncode == 1 and re.search("^host: ", ended.stderr, re.MULTILINE) and "Sanitizer" not in ended.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"jquant-host 1", b"jquant-host 2", "is of version 2 of the format; this host reads version 1"),
        (b"jquant-host", b"JQUANT-host", "is no file of jquant.host.write"),
        (b"jquant_product.2", b"jquant_product.9", "the program calls jquant_product.9; "),
        (b" int8[", b" int3[", "this host knows no type int3"),
        (b"input float32", b"input float16", "PJRT_LoadedExecutable_Execute: "),
        (b"[64,64]", b"[64,-64]", "is damaged: it has int8[64,-64]"),
        (b"[64,64]", b"[4294967296,4294967296]", "is damaged: it has int8[4294967296,4294967296]"),
        (b"[64,64]", b"[640,64]", "is truncated, or damaged: it has "),
        (b"program uint8", b"program int16", "PJRT_Client_Compile: "),
        (b"\nprogram", b"\nparameter", "is damaged: "),
        (b"\ninput", b"\nnothing", "is damaged: it has a line nothing"),
        (b"output float32[3,64]", b"output float32[3,64]\noutput float32[3,64]", "is damaged: its program has 1 outputs"),
        (b"output float32[3,64]", b"output float32[1,64]", "PJRT_Buffer_ToHostBuffer: "),
        (b"parameter float32[64] ", b"parameter float32[32] ", "PJRT_LoadedExecutable_Execute: "),
        (b"\nparameter", b"\nstate", "is damaged: it has a line state"),
    ],
)
def test_wrong_text(sanitized, plugin, written, old, new, message):
    changed(written[0], old, new)
    ended = run(sanitized, plugin, *written)
    assert is_refused(ended), ended.stderr
    assert message in ended.stderr


def test_wrong_arguments(sanitized, plugin, written, tmp_path):
    file, inputs, outputs = written
    short, empty = tmp_path / "short", tmp_path / "empty"
    short.write_bytes(inputs.read_bytes()[:-1])
    empty.write_bytes(b"")
    wrong = {
        "has 767 bytes; the inputs of a call have 768": (file, short, outputs),
        "has 0 bytes; the inputs of a call have 768": (file, empty, outputs),
        "no-file cannot be read": (tmp_path / "no-file", inputs, outputs),
        "no-inputs cannot be read": (file, tmp_path / "no-inputs", outputs),
        "empty is empty, or cannot be mapped into memory": (empty, inputs, outputs),
        "outputs cannot be written": (file, inputs, tmp_path / "no-folder" / "outputs"),
        "usage: host PLUGIN LIBRARY FILE INPUTS OUTPUTS [CALLS]": (file, inputs, outputs, "1", "2"),
    }
    for message, words in wrong.items():
        ended = run(sanitized, plugin, *words)
        assert is_refused(ended), ended.stderr
        assert message in ended.stderr
    for words, library, message in (
        (plugin, "/no/library.so", "/no/library.so cannot be used: "),
        (plugin, plugin, "cannot be used: jquant_functions"),
        (jquant_native.LIBRARY, jquant_native.LIBRARY, "cannot be used: GetPjrtApi"),
    ):
        ended = run(sanitized, words, *written, library=library)
        assert is_refused(ended), ended.stderr
        assert message in ended.stderr


def test_damaged_files(sanitized, plugin, written, count):
    """Bytes that were changed, and files that were cut: refused in a sentence, whatever they are."""
    rng, (file, inputs, outputs) = np.random.default_rng(0), written
    data = file.read_bytes()
    end = data.index(b"\nend\n") + 5
    for number in range(300):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(end if number % 2 else len(data))] ^= 1 << int(rng.integers(8))
        if number % 3 == 0:
            damaged = damaged[: rng.integers(len(data))]
        if number % 2 and len(damaged) > 4:  # as if it had been written so: the checksum is right
            damaged[-4:] = zlib.adler32(damaged[:-4]).to_bytes(4, "little")
        file.write_bytes(damaged)
        ended = run(sanitized, plugin, file, inputs, outputs)
        assert is_refused(ended) or (ended.returncode == 0 and number % 2), ended.stderr
    count("damaged files", 300)
