"""Malformed calls are refused, and do not end the process."""

import processes

COUNT = 1200


def test_every_malformed_call_raises():
    assert processes.run("malformed_calls.py", str(COUNT)) == f"{COUNT} malformed calls, accepted: []\n"
