"""``--no-skips``, which turns skipped tests into failures, so that the gate makes every comparison."""

import pathlib

import pytest

pytest_plugins = "pytester"

SKIPS = {
    "module": "import pytest\npytest.importorskip('no_such_package')",
    "test": "import pytest\ndef test(): pytest.skip('a reason')",
    "mark": "import pytest\n@pytest.mark.skip\ndef test(): pass",
}

SKIP_OF_THE_PROCESSOR = """
from jquant.onnx import onnxruntime_session
onnxruntime_session.saturates = lambda: True
def test(exact_onnxruntime): raise AssertionError
"""


@pytest.mark.gate
@pytest.mark.parametrize("processes", ["0", pytest.param("1", marks=pytest.mark.full)])
def test_each_skip_fails(pytester, processes):
    pytester.makeconftest(pathlib.Path(__file__).with_name("conftest.py").read_text())
    texts = {"that_passes": "def test(): pass", **SKIPS, "of_the_processor": SKIP_OF_THE_PROCESSOR}
    pytester.makepyfile(**{f"test_{name}": text for name, text in texts.items()})
    pytester.runpytest_subprocess("-n", processes).assert_outcomes(passed=1, skipped=len(SKIPS) + 1)
    result = pytester.runpytest_subprocess("-n", processes, "--no-skips", "--continue-on-collection-errors")
    # Errors: the module, while it is collected, and the mark, before its test.
    result.assert_outcomes(passed=1, skipped=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*not compared*", "tests that did not run: 1; onnxruntime's products*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
