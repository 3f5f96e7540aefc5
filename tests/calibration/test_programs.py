"""Observers in programs: the bits of the eager calls, under transformations, over meshes and in exports."""

import functools

import chex
import jax
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.histograms import observe
from support.layouts import kinds
from support.observers import BINS, CHANNELS, OBSERVERS, activations, assert_bits
from support.sampling import one_in

from jquant import calibration

every_observer = pytest.mark.parametrize("name", OBSERVERS)


@one_in(15, "name", OBSERVERS, first=1)
def test_transformations(name):
    """`jit`, which traces once, `scan`, and `vmap` over channels."""
    observer, x = OBSERVERS[name], activations()
    expected = observe(observer, x)
    chex.clear_trace_counter()
    update = jax.jit(chex.assert_max_traces(lambda state, batch: observer.update(state, batch), n=1))
    state = observer.init(x[0])
    for batch in x:
        state = update(state, batch)
    assert_bits(state, expected)
    state, _ = jax.jit(lambda x: lax.scan(lambda state, x: (observer.update(state, x), None), observer.init(x[0]), x))(x)
    assert_bits(state, expected)
    if "axis" in name:
        return

    def channel_range(x):
        state, _ = lax.scan(lambda state, x: (observer.update(state, x), None), observer.init(), x)
        return observer.compute_range(state)

    ranges = jax.jit(jax.vmap(channel_range, in_axes=-1))(x)
    alone = [observer.compute_range(observe(observer, x[..., channel])) for channel in range(2)]
    assert_equal(jax.tree.map(lambda bound: bound[:2], ranges), jax.tree.map(lambda *bounds: np.stack(bounds), *alone))


@every_observer
@kinds
def test_mesh(name, kind):
    """Devices exchange only the extreme values and the counts."""
    observer, x = OBSERVERS[name], activations()
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    expected = observe(observer, x)
    with jax.set_mesh(mesh):
        state = observer.init(x[0])
        split = [jax.device_put(batch, NamedSharding(mesh, P("x"))) for batch in x]
        program = jax.jit(observer.update).lower(state, split[0]).compile()
        for batch in split:
            state = program(state, batch)
        assert_bits(state, expected)
        if kind == AxisType.Explicit:  # which is part of the types of arrays
            assert_equal(observer.compute_range(state), observer.compute_range(expected))
    exchanged = [collective.elements for collective in collectives(program.as_text())]
    extremes = [CHANNELS if "axis" in name else 1] * 2
    assert exchanged == ([*extremes, BINS] if isinstance(state, calibration.Histogram) else extremes)


@one_in(
    3,
    ("constructor", "arguments", "axis_name"),
    [
        (calibration.min_max, {"axis": 1}, "x"),
        (calibration.moving_average, {}, "x"),
        (calibration.percentile, {"num_bins": BINS}, ("x", "y")),
        (calibration.entropy, {"num_bins": BINS}, "x"),
        (functools.partial(calibration.mean_squared_error, "INT8"), {"num_bins": BINS}, ("x", "y")),
    ],
)
def test_shard_map(constructor, arguments, axis_name):
    x, observer = activations(), constructor(**arguments, axis_name=axis_name)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def update_all(state, x):
        return lax.scan(lambda state, batch: (observer.update(state, batch), None), state, x)[0]

    update = jax.shard_map(update_all, mesh=mesh, in_specs=(P(), P(None, axis_name)), out_specs=P())
    state = jax.jit(update)(observer.init(x[0]), x)
    assert_bits(state, observe(constructor(**arguments), x))


@pytest.mark.gate
@every_observer
def test_export(name):
    """For three platforms and any number of rows. The states are types that an export can store."""
    observer, x = OBSERVERS[name], activations()
    (rows,) = export.symbolic_shape("b")
    state = observer.init(x[0])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    batch = jax.ShapeDtypeStruct((rows, CHANNELS), np.float32)
    platforms = ("cpu", "cuda", "tpu")
    update = export.export(jax.jit(observer.update), platforms=platforms)(shapes, batch).serialize()
    compute_range = export.export(jax.jit(observer.compute_range), platforms=platforms)(shapes).serialize()
    batches = [x[0], x[1], x[2][:3]]
    for batch in batches:
        state = export.deserialize(update).call(state, batch)
    expected = observe(observer, batches)
    assert_bits(state, expected)
    assert_equal(export.deserialize(compute_range).call(state), observer.compute_range(expected))


@pytest.mark.gate
@one_in(7, "name", ["min_max, axis", "percentile, symmetric", "entropy", "mean_squared_error"], first=2)
def test_x64(name):
    observer, x = OBSERVERS[name], activations()
    expected = observer.compute_range(observe(observer, x))
    with jax.enable_x64(True):
        assert_equal(observer.compute_range(observe(observer, x)), expected)
