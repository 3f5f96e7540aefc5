"""Programs for hosts without jquant: the same bits in a process that has jax and jquant-native alone."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import host_files, saved_models
from support.native import requires_native

from jquant import host, kv_cache, transform
from jquant.host import HostError
from jquant.kernels.native import shared_library

HOST = Path(__file__).parent / "support" / "host_process.py"


def dense(recipe):
    rng = np.random.default_rng(0)
    params = {name: np.float32(rng.normal(size=(64, 64)) / 8) for name in ("hidden", "head")}
    x = np.float32(rng.normal(size=(3, 64)))
    apply, packed = transform.quantize(lambda p, x: jax.nn.relu(x @ p["hidden"]) @ p["head"], params, recipe, x)
    return apply, (packed, x), ()


def convolution():
    rng = np.random.default_rng(1)
    params, x = np.float32(rng.normal(size=(3, 3, 16, 32))), np.float32(rng.normal(size=(2, 12, 12, 16)))

    def apply(params, x):
        return jax.lax.conv_general_dilated(x, params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    apply, packed = transform.quantize(apply, params, transform.dynamic_int8, x)
    return apply, (packed, x), ()


def decoding():
    """A step with its cache, whose memory the new one takes."""
    rng = np.random.default_rng(2)
    params, x = np.float32(rng.normal(size=(64, 192)) / 8), np.float32(rng.normal(size=(1, 64)))

    def step(params, x, cache, position):
        query, key, value = (part.reshape(1, 1, 2, 32) for part in jnp.split(x @ params, 3, -1))
        cache = kv_cache.append(cache, key, value, position, layer=0)
        return kv_cache.attend(query, cache, position, layer=0), cache

    cache, position = kv_cache.init(1, 1, 2, 16, 32, "INT8"), np.int32(0)
    apply, packed = transform.quantize(step, params, transform.dynamic_int8_rows, x, cache, position)
    return apply, (packed, x, cache, position), (2,)


CASES = {  # and the functions of jquant-native that they call
    "dense": (lambda: dense(transform.dynamic_int8), {"jquant_dynamic_quantize", "jquant_product"}),
    "convolution": (convolution, {"jquant_convolution", "jquant_dynamic_quantize"}),
    "weight-only": (lambda: dense(transform.weight_only_int4), {"jquant_weight_only"}),
    "decoding": (decoding, {"jquant_dynamic_quantize", "jquant_product"}),
}


@requires_native
@pytest.mark.gate
def test_in_a_process_without_jquant(tmp_path):
    expected = {}
    for name, (case, called) in CASES.items():
        function, args, donated = case()
        expected[name] = jax.tree.leaves(jax.jit(function)(*args))
        program = host.export(function, *args, donate_argnums=donated)
        text = program.mlir_module()
        assert all(f"@{each}." in text for each in called)
        assert ("tf.aliasing_output" in text or "jax.buffer_donor" in text) == bool(donated)
        assert "@jquant_" not in host.export(function, *args, native=False).mlir_module()
        (tmp_path / f"{name}.program").write_bytes(program.serialize())
        np.savez(tmp_path / f"{name}.inputs.npz", *jax.tree.leaves(args))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "XLA_FLAGS": ""}
    subprocess.run([sys.executable, HOST, tmp_path], env=environment, check=True)
    for name, outputs in expected.items():
        with np.load(tmp_path / f"{name}.outputs.npz") as arrays:
            for array, output in zip(arrays.values(), outputs, strict=True):
                np.testing.assert_array_equal(array, output)


@requires_native
@pytest.mark.gate
@pytest.mark.parametrize("native", [True, False])
def test_every_format(native, count):
    """A site of each format and kind, with drawn parameters: the outputs of the function, wherever XLA sums no floats.

    Products of floats are XLA's where the library is left out, and it sums them in an order of its own.
    """
    inputs = saved_models.inputs()
    function, types = transform.quantize(saved_models.apply, saved_models.types(), saved_models.recipe(), *inputs)
    params = saved_models.drawn(types, np.random.default_rng(0))
    expected = jax.jit(function)(params, *inputs)
    exported = host.export(function, params, *inputs, native=native)
    leaves = jax.tree.leaves((params, *inputs))
    results = jax.export.deserialize(exported.serialize()).call(*leaves)
    for (name, output), result in zip(expected.items(), results, strict=True):
        scheme = saved_models.SCHEMES.get(name)
        if native or (scheme is not None and scheme.activations != "FLOAT"):
            np.testing.assert_array_equal(result, output, err_msg=name)
        else:
            np.testing.assert_allclose(result, output, rtol=1e-4, atol=1e-4, err_msg=name)
    count("outputs of exported functions", len(results))


@requires_native
@pytest.mark.gate
def test_others_keep_no_calls():
    """What is exported after a program for a host, of the same function, is for every machine."""
    function, args, _ = dense(transform.dynamic_int8)
    host.export(function, *args)
    with host.native_calls():
        own = jax.export.export(jax.jit(lambda *args: function(*args)), disabled_checks=host.disabled_checks())(*args)
    assert "@jquant_product." in own.mlir_module()
    assert "@jquant_" not in jax.export.export(jax.jit(function), platforms=["cpu"])(*args).mlir_module()


def test_leaves_that_the_program_needs():
    """A compiled module takes no others, in their order."""
    exported = host.export(lambda first, second: first["b"] + second, {"a": np.ones(2), "b": 1.0}, np.ones(3), native=False)
    assert exported.module_kept_var_idx == (1, 2)
    (result,) = jax.export.deserialize(exported.serialize()).call(
        np.ones(2, np.float32), np.float32(1), np.ones(3, np.float32)
    )
    np.testing.assert_array_equal(result, np.full(3, 2))


@pytest.mark.parametrize("version", ["1.9.0", "1.13.0"])
def test_portable_module(version):
    function, args, _ = dense(transform.dynamic_int8)
    module = host.portable_module(host.export(function, *args, native=False), version)
    assert module.startswith(b"ML\xefR")
    assert f"StableHLO_v{version}".encode() in module[:30]


def described(leaf):
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)


def drawn(rng):
    """A function of arrays of all types and of some shapes, and which of its arguments are inputs, and which are donated."""
    types = [jnp.dtype(name) for name in host._TYPES if name not in ("int64", "uint64", "float64", "complex128")]
    leaves = []
    for _ in range(rng.integers(1, 9)):
        shape = tuple(rng.integers(0, 5, rng.integers(0, 4)))
        leaf = rng.integers(0, 2**8, (*shape, 3), np.uint8).astype(types[rng.integers(len(types))])[..., 0]  # not contiguous
        leaves.append(leaf)
    roles = rng.choice(["parameter", "input", "state", "unused"], len(leaves), p=[0.4, 0.3, 0.2, 0.1])

    def function(*leaves):
        used = [leaf for leaf, role in zip(leaves, roles, strict=True) if role != "unused"]
        states = [leaf for leaf, role in zip(leaves, roles, strict=True) if role == "state"]
        return [leaf == leaf for leaf in used], [jnp.where(leaf == leaf, leaf, leaf) for leaf in reversed(states)]

    return function, leaves, roles


@pytest.mark.parametrize("seed", range(20))
def test_written(tmp_path, seed):
    """The file has what the program takes, byte for byte, and names the outputs that take the place of state."""
    function, leaves, roles = drawn(np.random.default_rng(seed))
    donated = [number for number, role in enumerate(roles) if role == "state"]
    exported = host.export(function, *leaves, donate_argnums=donated, native=False)
    args = [described(leaf) if role == "input" else leaf for leaf, role in zip(leaves, roles, strict=True)]
    host.write(tmp_path / "file.jquant", exported, *args)
    functions, (program, *lines) = host_files.read(tmp_path / "file.jquant")
    assert functions == []
    assert program.value.tobytes() == host.portable_module(exported)
    arguments, outputs = lines[: len(exported.module_kept_var_idx)], lines[len(exported.module_kept_var_idx) :]
    assert [(line.kind, line.dtype, line.shape) for line in outputs] == [
        ("output", type_.dtype, type_.shape) for type_ in exported.out_avals
    ]
    for line, number in zip(arguments, exported.module_kept_var_idx, strict=True):
        assert (line.dtype, line.shape) == (leaves[number].dtype, leaves[number].shape)
        assert line.kind == roles[number]
        if line.kind != "input":
            assert line.value.tobytes() == leaves[number].tobytes()
        if line.kind == "state":
            assert outputs[line.output][1:3] == line[1:3]
    replacing = [line.output for line in arguments if line.kind == "state"]
    assert len({*replacing}) == len(replacing) == np.isin(donated, exported.module_kept_var_idx).sum()


@requires_native
@pytest.mark.gate
def test_written_functions(tmp_path):
    for case, called in CASES.values():
        function, args, donated = case()
        host.write(tmp_path / "file.jquant", host.export(function, *args, donate_argnums=donated), *args)
        functions, _ = host_files.read(tmp_path / "file.jquant")
        assert {name.split(".")[0] for name in functions} == called
        assert {*functions} <= {function.target for function in shared_library.load().functions}


def test_write_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_TYPES", ("float32",))
    path, x = tmp_path / "file.jquant", np.ones((2, 2), np.float32)
    small = np.ones(2, np.int8)
    (size,) = jax.export.symbolic_shape("n")
    unknown = jax.export.export(jax.jit(jnp.sin), platforms=["cpu"])(jax.ShapeDtypeStruct((size,), np.float32))
    others = jax.export.export(jax.jit(jnp.sin), platforms=["tpu"])(x)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.export.export(jax.jit(jnp.sin), platforms=["cpu"])(
        jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    )
    wrong = {
        r"the arguments have 1 leaves; the program has 2": (host.export(jnp.add, x, x, native=False), x),
        r"leaf 1 of the arguments is float32\[2\]; the program has float32\[2,2\]": (
            host.export(jnp.add, x, x, native=False),
            x,
            x[0],
        ),
        r"leaf 0 of the program is of the type int8; a host takes float32": (
            host.export(lambda x: x.astype(jnp.float32), small, native=False),
            small,
        ),
        r"output 0 of the program has the shape \(n,\); a host needs known sizes": (unknown, x[0]),
        r"the program is for tpu; a host runs one for a CPU": (others, x),
        r"the program is for 2 devices; a host runs one for one": (split, x),
        r"leaf 0 of the arguments is donated, so that it is state; give its first value": (
            host.export(jnp.sin, x, donate_argnums=0, native=False),
            described(x),
        ),
    }
    for message, args in wrong.items():
        with pytest.raises(HostError, match=f"^write: {message}$"):
            host.write(path, *args)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        host.write(tmp_path / "no" / "folder", host.export(jnp.sin, x, native=False), x)


def test_random_keys(tmp_path):
    """They are the integers of their data, whose shardings no host reads."""
    key, shape = jax.random.key(3), jax.ShapeDtypeStruct((), jax.random.key(0).dtype)

    def function(first, second):
        return jax.random.bits(first, (4,)) + jax.random.bits(second, (4,))

    exported = host.export(function, key, shape, native=False)
    assert "sdy." in exported.mlir_module()
    host.write(tmp_path / "file.jquant", exported, key, shape)
    _, (program, *lines) = host_files.read(tmp_path / "file.jquant")
    assert b"sdy" not in program.value.tobytes()
    assert [(line.kind, str(line.dtype), line.shape) for line in lines] == [
        ("parameter", "uint32", (2,)),
        ("input", "uint32", (2,)),
        ("output", "uint32", (4,)),
    ]
    np.testing.assert_array_equal(lines[0].value, jax.random.key_data(key))


def test_errors(monkeypatch):
    x = np.ones((2, 2), np.float32)
    (size,) = jax.export.symbolic_shape("n")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    unknown, split = jax.ShapeDtypeStruct((size, 2), np.float32), jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    wrong = {
        r"leaf 1 of the arguments is 'two'; it must be an array": (x, "two"),
        r"leaf 0 of the arguments has the shape \(n, 2\); jquant-native needs known sizes": (unknown,),
        r"leaf 0 of the arguments is on 2 devices": (split,),
    }
    for message, args in wrong.items():
        with pytest.raises(HostError, match=f"^export: {message}"):
            host.export(lambda *args: args, *args, native=False)
    for positions in (2, -1, [0, "x"], True):
        with pytest.raises(HostError, match=r"^export: donate_argnums has .*; there are arguments 0 to 1$"):
            host.export(jnp.add, x, x, donate_argnums=positions, native=False)
    with pytest.raises(HostError, match=r"^portable_module: StableHLO '9\.9\.9' cannot be written: "):
        host.portable_module(host.export(jnp.sin, x, native=False), "9.9.9")
    monkeypatch.setattr(shared_library, "load", lambda: shared_library.Library(None, "it is not here"))
    with pytest.raises(HostError, match=r"^export: it is not here; native=False exports XLA's products$"):
        host.export(jnp.sin, x)
    assert host.disabled_checks() == ()
