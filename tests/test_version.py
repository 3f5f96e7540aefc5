"""The version has a single source, `jquant.__version__`, that the package's metadata and the self-check read."""

import re
import tomllib

import pytest
from support.documents import ROOT

import jquant
from jquant import __main__ as main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_package_reads_it_from_the_module():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", jquant.__version__)
    assert PROJECT["project"]["dynamic"] == ["version"]
    module = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert module.parts[-2:] == ("jquant", "__init__.py")


def test_it_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main(["--version"])
    assert capsys.readouterr().out == f"jquant {jquant.__version__}\n"
    assert ("jquant", jquant.__version__) in main.installation()
