"""``.ci/device`` without a device: it says that there is none, and one part that fails does not stop the others."""

import json

import numpy as np

from benchmarks.device import __main__ as device
from benchmarks.device import bits
from jquant.modes import Implementation


def test_without_a_device(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["device"])
    assert device.main() == 2
    assert "jax finds no TPU and no GPU here, only 'cpu'" in capsys.readouterr().err


def test_a_part_that_fails(tmp_path):
    run = device.Run(tmp_path / "device.json", is_rehearsal=True)

    def result(item):
        if item == "declined":
            raise NotImplementedError("for another chip")
        return {"different": {"right": 0, "wrong": 3}[item]}

    run.part("broken", lambda: 1 // 0)
    run.part("bits", lambda: run.each(["right", "wrong", "declined", "raises"], result))
    report = json.loads(run.path.read_text())
    assert report["rehearsal"]
    assert [part["part"] for part in report["parts"]] == ["broken", "bits"]
    expected = ["broken: ZeroDivisionError", "bits, wrong: bits differ", "bits, raises: KeyError"]
    assert [failed[: len(start)] for failed, start in zip(report["failed"], expected, strict=True)] == expected
    assert report["parts"][1]["results"][2] == {"item": "declined", "declined": "for another chip"}


def test_bits_that_differ_are_counted(monkeypatch):
    """Of a product that is one off in one element."""
    case = bits.Case(3, 40, 5, "int32", "row", False)
    assert bits.compared(case, Implementation.XLA) == {"elements": 15, "different": 0}
    operands, expected = bits.drawn(case)
    monkeypatch.setattr(bits, "drawn", lambda case: (operands, expected + np.eye(3, 5, dtype=np.int32)))
    assert bits.compared(case, Implementation.XLA)["different"] == 3


def test_cases():
    """Twenty, and every form meets every kind of zero points."""
    assert len(bits.cases(False)) == len(set(bits.SHAPES)) == 20
    assert {(case.form, case.zero_points) for case in bits.cases(False)} == {
        (form, points) for form in bits.FORMS for points in bits.ZERO_POINTS
    }
