"""The Hopper kernels in Pallas' GPU simulator, which detects races: the same bits as NumPy."""

import threading

import pytest

from benchmarks.device import simulator

from . import mosaic_gpu_block_cases, mosaic_gpu_cases, mosaic_gpu_simulator

pytestmark = pytest.mark.gate
CASES = [case.name for case in mosaic_gpu_cases.CASES]
CASES_WITH_BLOCKS = [case.name for case in mosaic_gpu_block_cases.CASES]

if simulator.SIMULATES_THE_KERNELS:

    def test_simulated_kernels():
        """In one process, which imports JAX for all of them."""
        assert mosaic_gpu_simulator.differences("mosaic_gpu_cases.py", *CASES) == {name: [] for name in CASES}

    def test_simulated_kernels_for_block_scales(full):
        names = CASES_WITH_BLOCKS[:: 1 if full else 3]
        assert mosaic_gpu_simulator.differences("mosaic_gpu_block_cases.py", *names) == {name: [] for name in names}

else:

    def test_simulator_does_not_support_transposed_references():
        """The kernels multiply by them. The exception leaves the simulator's other threads waiting."""
        with mosaic_gpu_simulator.run("mosaic_gpu_cases.py", CASES[0]) as process:
            timer = threading.Timer(mosaic_gpu_simulator.TIMEOUT, process.kill)
            timer.start()
            try:
                assert any("'TransposeTransform' object has no attribute 'indices'" in line for line in process.stderr)
            finally:
                timer.cancel()
                process.kill()
