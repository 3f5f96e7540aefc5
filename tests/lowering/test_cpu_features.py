"""The features of a processor, as Linux lists them."""

import pytest

from jquant.lowering import cpu_features


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu avx512_vnni amx_tile amx_int8", True), ("fpu avx512_vnni", False), (None, False)]
)
def test_amx_int8(monkeypatch, tmp_path, flags, expected):
    path = tmp_path / "cpuinfo"
    if flags is not None:
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbogomips\t: 1\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", path)
    assert cpu_features.has_amx_int8.__wrapped__() == expected
