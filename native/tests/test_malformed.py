"""Malformed calls are refused, and do not end the process."""

import os

import processes
import pytest

COUNT = int(os.environ.get("JQUANT_MALFORMED_CALLS", "1200"))
PROGRAMS = [
    "malformed_calls.py",
    "malformed_block_calls.py",
    "malformed_concatenation_calls.py",
    "malformed_convolution_calls.py",
    "malformed_dynamic_quantization_calls.py",
    "malformed_elementwise_calls.py",
    "malformed_weight_only_calls.py",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_malformed_call_raises(program):
    assert processes.run(program, str(COUNT)) == f"{COUNT} malformed calls, accepted: []\n"
