"""Checks the workflows without running them: they parse, have minimal permissions, and name only what exists.

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
WRITABLE = {"pages", "id-token"}  # permissions of a deployment and a release
SHELL = {"python", "pip", "cd", "test", "grep"}
CREATED = re.compile(r"dist/|site$|installed/|\$")  # files that the commands create, and shell variables
PINNED = re.compile(r"[\w-]+/[\w-]+@(release/)?v\d+")


def main() -> int:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    messages = [f"{path.name}: {problem}" for path in workflows for problem in problems(yaml.safe_load(path.read_text()))]
    print("\n".join(messages) or f"{len(workflows)} workflows: no problems found")
    return 1 if messages or not workflows else 0


def problems(workflow: dict) -> Iterator[str]:
    """The problems of a workflow."""
    if True not in workflow:  # YAML 1.1 reads `on` as true
        yield "no event triggers it"
    if workflow.get("permissions") != {"contents": "read"}:
        yield "by default, jobs must have read-only permissions"
    if "group" not in workflow.get("concurrency", {}):
        yield "no concurrency group"
    elif "workflow_call" in workflow.get(True, {}) and "github.workflow" in workflow["concurrency"]["group"]:
        yield "when it is called, its concurrency group is its caller's, which waits for it"
    for name, job in workflow["jobs"].items():
        messages = call_problems(job) if "uses" in job else job_problems(job)
        yield from (f"{name}: {message}" for message in messages)
        needs = job.get("needs", [])
        needed = {needs} if isinstance(needs, str) else set(needs)
        yield from (f"{name}: it needs {other}, which does not exist" for other in sorted(needed - set(workflow["jobs"])))


def call_problems(job: dict) -> Iterator[str]:
    """The problems of a job that calls another workflow."""
    called = ROOT / job["uses"]
    if not called.is_file() or "workflow_call" not in yaml.safe_load(called.read_text()).get(True, {}):
        yield f"{job['uses']} is not a workflow that can be called"


def job_problems(job: dict) -> Iterator[str]:
    """The problems of a job that has steps."""
    if "timeout-minutes" not in job:
        yield "no timeout"
    if not set(job.get("permissions", {})) <= WRITABLE:
        yield f"it has permissions {job['permissions']}; only {', '.join(sorted(WRITABLE))} may be set"
    installed = set()
    rows = job.get("strategy", {}).get("matrix", {}).get("include", [])
    for step in job["steps"]:
        if "uses" in step and not PINNED.fullmatch(step["uses"]):
            yield f"{step['uses']} is not pinned to a major version"
        lines = [line for row in rows or [{}] for line in filled_in(step.get("run", ""), row).splitlines()]
        for line in dict.fromkeys(lines):
            words = shlex.split(line)
            if words[:4] == ["python", "-m", "pip", "install"]:
                extras = re.findall(r"[\w-]+", "".join(re.findall(r"\.\[(.*?)\]", line)))
                installed |= {PROJECT["name"]} if extras else set()
                yield from (f"extra {extra} does not exist" for extra in extras if extra not in EXTRAS)
                installed |= {*words[4:], *(package for extra in extras for package in packages(extra))}
            else:
                yield from (f"{problem}: {line}" for problem in command_problems(words, installed))
    yield from matrix_problems(rows)


def filled_in(command: str, row: dict) -> str:
    """The command, with the values of a row of the matrix."""
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name: row.get(name[1], name[0]), command)


def packages(extra: str) -> Iterator[str]:
    """The requirements of an extra, and of the extras that it includes."""
    for requirement in EXTRAS.get(extra, ()):
        included = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", requirement)
        if included is None:
            yield requirement
        else:
            for name in included[1].split(","):
                yield from packages(name)


def command_problems(words: list[str], installed: set[str]) -> Iterator[str]:
    """The programs, modules and files that a command needs and that do not exist."""
    program, *arguments = words
    if program == "python" and arguments[0] == "-m":
        program = arguments[1]
    if (
        program not in SHELL | {"venv"}
        and not CREATED.match(program)
        and not any(name.startswith(program) for name in installed)
    ):
        yield f"{program} is not installed"
    for word in arguments:
        if re.search(r"/|\.\w+$", word) and not CREATED.search(word) and not (ROOT / word).exists():
            yield f"{word} does not exist"


def matrix_problems(rows: list[dict]) -> Iterator[str]:
    """A matrix of Python versions must have those of the classifiers, and the oldest supported JAX."""
    if not any("python" in row for row in rows):
        return
    prefix = "Programming Language :: Python :: "
    versions = {text.removeprefix(prefix) for text in PROJECT["classifiers"] if re.fullmatch(rf"{prefix}3\.\d+", text)}
    if not versions <= {row["python"] for row in rows}:
        yield f"Python {sorted(versions)} are supported, but not all are in the matrix"
    (oldest,) = (text.removeprefix("jax>=") for text in PROJECT["dependencies"] if text.startswith("jax>="))
    if f"=={oldest}" not in {row["jax"] for row in rows}:
        yield f"jax {oldest} is supported, but is not in the matrix"


if __name__ == "__main__":
    sys.exit(main())
