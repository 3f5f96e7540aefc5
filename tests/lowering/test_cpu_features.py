"""The features of a processor, as Linux lists them."""

import pytest

from jquant.lowering import cpu_features


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx512_vnni amx_tile amx_int8", True),
        ("flags\t\t: fpu avx512_vnni", False),
        ("Features\t: fp asimd asimddp sve i8mm bf16", False),  # of Arm
        (None, False),
    ],
)
def test_amx_int8(monkeypatch, tmp_path, line, expected):
    path = tmp_path / "cpuinfo"
    if line is not None:
        path.write_text(f"processor\t: 0\n{line}\nBogoMIPS\t: 1\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", path)
    assert cpu_features.has_amx_int8.__wrapped__() == expected
