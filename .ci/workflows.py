"""Checks the workflows without running them: they parse, ask for no more than they need, and name only what exists.

Exits with 1 and says what is wrong. Needs PyYAML, which the extra `docs` brings.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WRITABLE = {"pages", "id-token"}  # what a deployment and a release need
SHELL = {"python", "pip", "cd", "test", "grep"}
MADE = re.compile(r"dist/|site$|installed/|\$")  # what the commands make, and what their variables name
PINNED = re.compile(r"[\w-]+/[\w-]+@(release/)?v\d+")


def main() -> int:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    wrong = [f"{path.name}: {what}" for path in workflows for what in problems(yaml.safe_load(path.read_text()))]
    print("\n".join(wrong) or f"{len(workflows)} workflows: no problems found")
    return 1 if wrong or not workflows else 0


def problems(workflow: dict) -> Iterator[str]:
    """What is wrong with a workflow."""
    if True not in workflow:  # which is what YAML 1.1 reads in `on`
        yield "no event triggers it"
    if workflow.get("permissions") != {"contents": "read"}:
        yield "by default, jobs must have read-only permissions"
    if "group" not in workflow.get("concurrency", {}):
        yield "no concurrency group"
    elif "workflow_call" in workflow.get(True, {}) and "github.workflow" in workflow["concurrency"]["group"]:
        yield "where it is called, its concurrency group is its caller's, which waits for it"
    for name, job in workflow["jobs"].items():
        found = problems_of_call(job) if "uses" in job else problems_of_job(job)
        yield from (f"{name}: {what}" for what in found)
        needs = job.get("needs", [])
        needed = {needs} if isinstance(needs, str) else set(needs)
        yield from (f"{name}: it needs {other}, which does not exist" for other in sorted(needed - set(workflow["jobs"])))


def problems_of_call(job: dict) -> Iterator[str]:
    """What is wrong with a job that is another workflow."""
    called = ROOT / job["uses"]
    if not called.is_file() or "workflow_call" not in yaml.safe_load(called.read_text()).get(True, {}):
        yield f"{job['uses']} is no workflow that can be called"


def problems_of_job(job: dict) -> Iterator[str]:
    """What is wrong with one of the jobs of a workflow."""
    if "timeout-minutes" not in job:
        yield "no timeout"
    if not set(job.get("permissions", {})) <= WRITABLE:
        yield f"it has permissions {job['permissions']}; only {', '.join(sorted(WRITABLE))} may be set"
    installed = set()
    for step in job["steps"]:
        if "uses" in step and not PINNED.fullmatch(step["uses"]):
            yield f"{step['uses']} is not pinned to a major version"
        for line in step.get("run", "").splitlines():
            words = shlex.split(line)
            if words[:4] == ["python", "-m", "pip", "install"]:
                extras = re.findall(r"[\w-]+", "".join(re.findall(r"\.\[(.*?)\]", line)))
                yield from (f"extra {extra} does not exist" for extra in extras if extra not in EXTRAS)
                installed |= {*words[4:], *(package for extra in extras for package in packages(extra))}
            else:
                yield from (f"{what}: {line}" for what in problems_of_command(words, installed))
    yield from problems_of_matrix(job.get("strategy", {}).get("matrix", {}).get("include", []))


def packages(extra: str) -> Iterator[str]:
    """What an extra installs, by itself and by those that it names."""
    for requirement in EXTRAS.get(extra, ()):
        own = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", requirement)
        if own is None:
            yield requirement
        else:
            for name in own[1].split(","):
                yield from packages(name)


def problems_of_command(words: list[str], installed: set[str]) -> Iterator[str]:
    """What a command needs and does not have: a program, a module, a file."""
    program, *arguments = words
    if program == "python" and arguments[0] == "-m":
        program = arguments[1]
    if (
        program not in SHELL | {"venv"}
        and not MADE.match(program)
        and not any(name.startswith(program) for name in installed)
    ):
        yield f"{program} is not installed"
    for word in arguments:
        if re.search(r"/|\.\w+$", word) and not MADE.search(word) and not (ROOT / word).exists():
            yield f"{word} does not exist"


def problems_of_matrix(rows: list[dict]) -> Iterator[str]:
    """Python's versions are those of the classifiers, and more; the oldest JAX is the oldest that is supported."""
    if not rows:
        return
    prefix = "Programming Language :: Python :: "
    classified = {text.removeprefix(prefix) for text in PROJECT["classifiers"] if re.fullmatch(rf"{prefix}3\.\d+", text)}
    if not classified <= {row["python"] for row in rows}:
        yield f"Python {sorted(classified)} are promised, but not all are in the matrix"
    (oldest,) = (text.removeprefix("jax>=") for text in PROJECT["dependencies"] if text.startswith("jax>="))
    if f"=={oldest}" not in {row["jax"] for row in rows}:
        yield f"jax {oldest} is promised, but is not in the matrix"


if __name__ == "__main__":
    sys.exit(main())
