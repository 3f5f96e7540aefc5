"""Measures the server of examples/serve.py under load, with buckets and without, beside jquant-native's absence.

    python -m benchmarks.serving [--requests 2000] [--clients 32]

Clients that each wait for an answer before they ask again send sentences of 1 to 256 random words, most of them short.
Prints the answers a second, and the times from request to answer. Each server is a process of its own.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np

SERVE = Path(__file__).parents[1] / "examples" / "serve.py"
WORDS, LONGEST = 1000, 256


class Form(NamedTuple):
    """Which buckets a server has, and whether it has jquant-native."""

    batches: tuple[int, ...] = (1, 4, 16)
    lengths: tuple[int, ...] = (16, 64, 256)
    native: bool = True


FORMS = {
    "nine buckets": Form(),
    "three lengths, no batches": Form(batches=(1,)),
    "one bucket, 16 x 256": Form((16,), (256,)),
    "nine buckets, without jquant-native": Form(native=False),
}


def sentences(number: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    counts = np.minimum(1 + rng.exponential(30, number).astype(int), LONGEST)
    return [rng.integers(0, WORDS, count).tolist() for count in counts]


@contextmanager
def server(form: Form, folder: Path) -> Iterator[tuple[str, float]]:
    """The address of a server, and the seconds until it answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--parameters", str(folder / "encoder.safetensors"), "--random", "--port", str(port)]
    arguments += ["--most-waiting", "1000", "--batches", *map(str, form.batches), "--lengths", *map(str, form.lengths)]
    environment = os.environ if form.native else {**os.environ, "JQUANT_NATIVE_ISA": "none"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(SERVE), *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise SystemExit("the server has ended")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}", time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


async def load(address: str, asked: list[list[int]], clients: int) -> tuple[float, np.ndarray]:
    """Answers a second, and milliseconds of each request."""
    waiting, times = iter(asked), []

    async def client(session: aiohttp.ClientSession) -> None:
        for tokens in waiting:
            start = time.perf_counter()
            async with session.post(f"{address}/encode", json={"tokens": tokens}) as response:
                response.raise_for_status()
                await response.read()
            times.append(1e3 * (time.perf_counter() - start))

    async with aiohttp.ClientSession() as session:
        start = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        return len(asked) / (time.perf_counter() - start), np.array(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    asked = sentences(arguments.requests)
    print("| | answers a second | median, ms | 99 of 100 below, ms | start, s |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, form in FORMS.items():
            with server(form, Path(folder)) as (address, seconds):
                asyncio.run(load(address, asked[:100], arguments.clients))  # the first calls
                rate, times = asyncio.run(load(address, asked, arguments.clients))
            median, slow = np.percentile(times, [50, 99])
            print(f"| {name} | {rate:.0f} | {median:.1f} | {slow:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
