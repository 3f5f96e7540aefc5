"""Malformed calls are refused, and do not end the process."""

import processes
import pytest

COUNT = 1200


@pytest.mark.parametrize("program", ["malformed_calls.py", "malformed_weight_only_calls.py"])
def test_every_malformed_call_raises(program):
    assert processes.run(program, str(COUNT)) == f"{COUNT} malformed calls, accepted: []\n"
