"""Describes the machine and the packages that a result depends on."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jax

from benchmarks.contestant import cores
from jquant.kernels import implementations
from jquant.kernels.native import shared_library
from jquant.modes import Implementation

_INTEGER_EXTENSIONS = ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp")  # instructions for 8-bit products


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The CPU's name, and which instructions for 8-bit products it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", fields.get("Features", "")).split()
    extensions = [name for name in _INTEGER_EXTENSIONS if name in flags]
    return f"{fields.get('model name', platform.machine())} ({', '.join(extensions) or 'no 8-bit products'})"


def products() -> str:
    """The default implementation of products, with its instruction set if it has one."""
    implementation = implementations.default(jax.default_backend())
    instruction_set = shared_library.load().instruction_set if implementation is Implementation.NATIVE else None
    return f"{implementation}, {instruction_set}" if instruction_set else str(implementation)


def revision() -> str:
    """The revision of this repository, with "-dirty" if files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(packages: Sequence[str]) -> dict:
    """A description of this process and machine; `packages` that are not installed are left out."""
    versions = {name: version(name) for name in ("jax", "jaxlib", "numpy", *packages)}
    return {
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "revision": revision(),
        "processor": processor(),
        "cores": cores(),
        "products": products(),
        "load average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else "unknown",
        "python": platform.python_version(),
        "versions": {name: number for name, number in versions.items() if number is not None},
    }


def file_name(description: dict) -> str:
    """The platform, the GPU or TPU, and the version of jax: the name of a file of results."""
    parts = [description["platform"], "jax", description["versions"]["jax"]]
    if description["platform"] != "cpu":
        parts.insert(1, description["device"].replace(" ", "-"))
    return "-".join(parts)


def machine(description: dict) -> str:
    cpu = f"{description['processor']}, {description['cores']} cores"
    return cpu if description["platform"] == "cpu" else f"{description['device']}; {cpu}"


def summary(description: dict, *, with_revision: bool = False) -> str:
    """A sentence: the machine, the versions of the packages, and how busy the machine was."""
    packages = [f"{package} {number}" for package, number in description["versions"].items()]
    versions = ", ".join([*packages, f"Python {description['python']}"])
    revision = f" revision {description['revision']};" if with_revision else ""
    hardware = f"{machine(description)}; products by {description['products']}"
    return f"{hardware}; {versions};{revision} load average before the run {description['load average']}."
