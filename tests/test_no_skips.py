"""``--no-skips``, with which the gate can say that every comparison was made."""

import pathlib

import pytest

pytest_plugins = "pytester"

SKIPS = {
    "module": "import pytest\npytest.importorskip('no_such_package')",
    "test": "import pytest\ndef test(): pytest.skip('a reason')",
    "mark": "import pytest\n@pytest.mark.skip\ndef test(): pass",
}


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("what", SKIPS)
def test_skip_fails(pytester, what, processes):
    pytester.makeconftest(pathlib.Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(test_that_passes="def test(): pass", test_that_skips=SKIPS[what])
    assert pytester.runpytest_subprocess("-n", processes).ret == pytest.ExitCode.OK
    failed = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED  # INTERRUPTED: while collecting
    assert pytester.runpytest_subprocess("-n", processes, "--no-skips").ret in failed
