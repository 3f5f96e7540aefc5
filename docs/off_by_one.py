"""Draws off_by_one.png by running the examples of off_by_one.md, the last of which draws it."""

import doctest
import os
from pathlib import Path

page = Path(__file__).with_suffix(".md")
os.chdir(page.parent)
globals_: dict = {}
for example in doctest.DocTestParser().get_examples(page.read_text()):
    exec(compile(example.source, str(page), "single"), globals_)
