"""``--no-skips``, which turns skipped tests into failures, so that the gate makes every comparison."""

import pathlib

import pytest

pytest_plugins = "pytester"

SKIPS = {
    "module": "import pytest\npytest.importorskip('no_such_package')",
    "test": "import pytest\ndef test(): pytest.skip('a reason')",
    "mark": "import pytest\n@pytest.mark.skip\ndef test(): pass",
}


@pytest.mark.gate
@pytest.mark.parametrize("processes", ["0", pytest.param("1", marks=pytest.mark.full)])
def test_each_skip_fails(pytester, processes):
    pytester.makeconftest(pathlib.Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(test_that_passes="def test(): pass", **{f"test_{name}": text for name, text in SKIPS.items()})
    pytester.runpytest_subprocess("-n", processes).assert_outcomes(passed=1, skipped=len(SKIPS))
    result = pytester.runpytest_subprocess("-n", processes, "--no-skips", "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, failed=1, errors=2)  # the module fails while collected, the mark before the test
    assert result.ret == pytest.ExitCode.TESTS_FAILED
