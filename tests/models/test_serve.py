"""The example that serves, through real sockets: each request is answered or refused, with the bits of a request alone."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra: serving)")

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402
from support.example_programs import load_example  # noqa: E402

from jquant import transform  # noqa: E402

serve = load_example("serve")
LENGTHS, BATCHES = (8, 16), (1, 4)
SMALLEST = serve.Bucket(BATCHES[0], LENGTHS[0])


@pytest.fixture(scope="module")
def parameters(tmp_path_factory):
    path = tmp_path_factory.mktemp("parameters") / "encoder.safetensors"
    serve.write_random(path, SMALLEST)
    return path


@pytest.fixture(scope="module")
def programs(parameters):
    return serve.Programs(*serve.quantized(parameters, SMALLEST), BATCHES, LENGTHS)


def run(programs, scenario, most_waiting=256):
    """Runs a scenario with a client of a server; nothing is left running, nor waiting."""

    async def main():
        server = TestServer(serve.application(programs, most_waiting))
        async with TestClient(server) as client:
            result = await asyncio.wait_for(scenario(client), 60)  # a request without an answer must not hold the run
            health = await (await client.get("/health")).json()
        return result, health

    result, health = asyncio.run(main())
    assert health["waiting"] == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("programs")]
    return result, health


def sentences(number):
    rng = np.random.default_rng(0)
    return [rng.integers(0, serve.WORDS, rng.integers(1, LENGTHS[-1] + 1)).tolist() for _ in range(number)]


async def post(client, tokens):
    async with client.post("/encode", json={"tokens": tokens}) as response:
        return response.status, await response.json() if response.status == 200 else await response.text()


async def health_of(session):
    async with session.get("/health") as response:
        return await response.json()


def assert_alone(programs, tokens, answer):
    """That the same request alone in its bucket has these bits."""
    (alone,) = programs.run(serve.Bucket(*answer["bucket"]), [tokens])
    np.testing.assert_array_equal(np.float32(answer["embedding"]), alone)


def test_every_answer_has_the_bits_of_a_request_alone(programs, full, count):
    asked = sentences(200 if full else 40)

    async def scenario(client):
        return await asyncio.gather(*(post(client, tokens) for tokens in asked))

    answers, health = run(programs, scenario)
    for tokens, (status, answer) in zip(asked, answers, strict=True):
        assert status == 200
        assert_alone(programs, tokens, answer)
    assert health["answered"] == len(asked)
    assert health["batches"] < len(asked)  # some shared one
    assert {tuple(answer["bucket"]) for _, answer in answers} > {(4, 16)}
    count("answers of the server", len(asked))


def test_what_cannot_be_answered_is_refused(programs):
    wrong = [], {}, {"tokens": []}, {"tokens": [-1]}, {"tokens": [serve.WORDS]}, {"tokens": [True]}, {"tokens": 1}
    bodies = {
        **dict.fromkeys((b"{", b"[" * 10**4, b"\xff"), (400, "the body is no JSON")),
        **dict.fromkeys((json.dumps(body).encode() for body in wrong), (400, "the body must be")),
        json.dumps({"tokens": [1] * 17}).encode(): (413, "17 tokens; at most 16 are encoded"),
        b" " * (serve.MOST_BYTES + 1): (413, "Maximum request body size"),
    }

    async def scenario(client):
        results = []
        for body in bodies:
            async with client.post("/encode", data=body) as response:
                results.append((response.status, await response.text()))
        return results, await post(client, [1])

    (results, (status, _)), health = run(programs, scenario)
    assert health["refused"] == len(bodies)
    for (wanted, message), (got, text) in zip(bodies.values(), results, strict=True):
        assert (got, text[: len(message)]) == (wanted, message)
    assert status == 200  # it works on


def test_too_many_requests_are_refused_and_the_others_answered(programs):
    asked = sentences(60)

    async def scenario(client):
        return await asyncio.gather(*(post(client, tokens) for tokens in asked))

    answers, health = run(programs, scenario, most_waiting=4)
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    assert (health["answered"], health["refused"]) == (statuses.count(200), statuses.count(503))
    for tokens, (status, answer) in zip(asked, answers, strict=True):
        if status == 200:
            assert_alone(programs, tokens, answer)
        else:
            assert answer == "too many requests wait\n"


class Held:
    """Programs that wait for `go_on` before they run, and note the sentences that they were run with."""

    def __init__(self, programs, monkeypatch):
        self._compute, self.ran = programs.run, []
        self.begun, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(programs, "run", self._run)

    def _run(self, bucket, sentences):
        self.begun.set()
        assert self.go_on.wait(60)
        self.ran.extend(sentences)
        return self._compute(bucket, sentences)

    async def posted(self, client, asked):
        """Tasks of the first sentence, which is computed, and of the others, which wait in their order."""
        tasks = [asyncio.create_task(post(client, asked[0]))]
        await asyncio.to_thread(self.begun.wait, 60)
        for number, tokens in enumerate(asked[1:], 1):
            tasks.append(asyncio.create_task(post(client, tokens)))
            await until_waiting(client, number)
        return tasks


async def until_waiting(client, number):
    while (await health_of(client))["waiting"] != number:
        await asyncio.sleep(0.01)


def of_one_length(number):
    return [tokens for tokens in sentences(100) if len(tokens) <= LENGTHS[0]][:number]


def test_the_bound_of_the_queue(programs, monkeypatch):
    """As many wait as may, beside the one that is computed, and not one more."""
    asked = of_one_length(5)

    async def scenario(client):
        tasks = await held.posted(client, asked)
        refused = [await post(client, [1]) for _ in range(2)]
        held.go_on.set()
        return refused, await asyncio.gather(*tasks)

    with monkeypatch.context() as patch:
        held = Held(programs, patch)
        (refused, answers), health = run(programs, scenario, most_waiting=4)
    assert refused == [(503, "too many requests wait\n")] * 2
    assert health["answered"] == 5
    for tokens, (_, answer) in zip(asked, answers, strict=True):
        assert_alone(programs, tokens, answer)


def test_those_that_wait_for_the_longest_are_first(programs, monkeypatch):
    """Of two lengths; and of one length, in batches as large as may be."""
    short, long = of_one_length(6), [[number] * 12 for number in range(1, 3)]
    asked = [short[0], long[0], *short[1:], long[1]]

    async def scenario(client):
        tasks = await held.posted(client, asked)
        held.go_on.set()
        return await asyncio.gather(*tasks)

    with monkeypatch.context() as patch:
        held = Held(programs, patch)
        _, health = run(programs, scenario)
    assert held.ran == [short[0], *long, *short[1:]]
    assert health["batches"] == 4


def test_a_client_that_goes_away(programs, monkeypatch):
    """While its request is computed or waits: what waits is not computed, and the others are answered, each with its own."""
    asked = of_one_length(12)

    async def scenario(client):
        tasks = await held.posted(client, asked)
        for task in tasks[::3]:
            task.cancel()
        await until_waiting(client, 8)
        held.go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with monkeypatch.context() as patch:
        held = Held(programs, patch)
        answers, _ = run(programs, scenario)
    assert held.ran == [tokens for number, tokens in enumerate(asked) if number == 0 or number % 3]
    for number, (tokens, answer) in enumerate(zip(asked, answers, strict=True)):
        if number % 3:
            assert_alone(programs, tokens, answer[1])


def test_a_client_that_stops_in_the_middle_of_a_request(programs, monkeypatch):
    """It is told so, if it is still there; others are answered meanwhile, and the server ends without it."""
    monkeypatch.setattr(serve, "MOST_SECONDS", 0.5)
    half = b'POST /encode HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{"tokens": ['

    async def scenario(client):
        (reader, stays), (_, goes) = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(2)]
        for writer in (stays, goes):
            writer.write(half)
            await writer.drain()
        goes.close()
        answered = await post(client, [1, 2])
        line = await asyncio.wait_for(reader.readline(), 60)
        stays.close()
        return answered, line

    ((status, answer), line), health = run(programs, scenario)
    assert (status, line) == (200, b"HTTP/1.1 408 Request Timeout\r\n")
    assert_alone(programs, [1, 2], answer)
    assert health["answered"] == 1


def test_a_batch_that_fails_is_answered_with_an_error(programs, monkeypatch):
    async def scenario(client):
        with monkeypatch.context() as patch:
            patch.setattr(programs, "run", lambda *_: 1 / 0)
            failed = await post(client, [1, 2])
        return failed, await post(client, [1, 2])

    ((status, _), (after, answer)), _ = run(programs, scenario)
    assert (status, after) == (500, 200)
    assert_alone(programs, [1, 2], answer)


def test_rows_do_not_see_each_other(programs):
    """Whatever else is in the bucket; with ranges of tensors, they would."""
    first, *others = sentences(12)
    bucket = serve.Bucket(4, 16)
    alone = programs.run(bucket, [first])[0]
    for other in others:
        np.testing.assert_array_equal(programs.run(bucket, [first, other, other])[0], alone)
    params = serve.initial(jax.random.key(0))
    function, of_tensors = transform.quantize(serve.encode, params, transform.dynamic_int8, *bucket.types)
    by_tensor = serve.Programs(function, of_tensors, (4,), (16,))
    alone = by_tensor.run(bucket, [first])[0]
    assert any((by_tensor.run(bucket, [first, other, other])[0] != alone).any() for other in others)


@contextlib.contextmanager
def process(parameters, log):
    """The example as it is started, which answers one sentence at a time, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--parameters", str(parameters), "--port", str(port), "--batches", "1", "--lengths", "256"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    with log.open("w") as file:
        command = [sys.executable, serve.__file__, *options]
        started = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield started, f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


async def is_refused(address):
    """Whether a new connection gets no answer."""
    try:
        async with aiohttp.ClientSession(address) as session:
            await health_of(session)
    except aiohttp.ClientConnectionError:
        return True
    return False


@pytest.mark.gate
def test_the_process_ends_when_it_has_answered(parameters, tmp_path):
    """SIGTERM while requests wait: these are answered, later ones refused, and nothing is left running.

    Those of clients that have gone away are not computed.
    """
    asked = [16 * tokens for tokens in sentences(80)]
    log = tmp_path / "log"

    async def scenario(started, address):
        while await is_refused(address):
            assert started.poll() is None, log.read_text()
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0)) as session:
            tasks = [asyncio.create_task(post(session, tokens)) for tokens in asked]
            health = {"waiting": 0, "answered": 0}
            while health["waiting"] + health["answered"] < len(asked) - 1:  # it has them all, and works on one
                health = await health_of(session)
            for task in tasks[-20:]:
                task.cancel()
            while health["waiting"] and health["waiting"] + health["answered"] > len(asked) - 10:
                health = await health_of(session)
            started.send_signal(signal.SIGTERM)
            refused = 0
            while not all(task.done() for task in tasks):
                refused += await is_refused(address)
            return health["waiting"], refused, await asyncio.gather(*tasks[:-20])

    with process(parameters, log) as (started, address):
        waiting, refused, answers = asyncio.run(scenario(started, address))
        assert started.wait(60) == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(started.pid, 0)
    assert waiting > 0
    assert refused > 0
    programs = serve.Programs(*serve.quantized(parameters, serve.Bucket(1, 256)), (1,), (256,))
    for tokens, (status, answer) in zip(asked[:-20], answers, strict=True):
        assert status == 200
        assert_alone(programs, tokens, answer)
    text = log.read_text()
    assert "Traceback" not in text
    assert len(answers) <= len(re.findall(r" 1 in 1 x 256, \d+ % full: waited ", text)) < len(asked)


def test_a_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    """Nobody serves random parameters by a mistake in a path."""
    path = tmp_path / "encoder.safetensors"
    monkeypatch.setattr(sys, "argv", ["serve.py", "--parameters", str(path)])
    with pytest.raises(SystemExit, match="2"):
        serve.main()
    assert f"{path} is not there" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("length", [pytest.param(length, marks=pytest.mark.gate) for length in (5, 16)])
def test_padding_does_not_matter(programs, parameters, length):
    """Whatever it holds; and the result is that of a call without any, whose floats are added in another order."""
    sentence = np.random.default_rng(length).integers(0, serve.WORDS, length).tolist()
    bucket = programs.bucket_for(3, programs.length_for(length))
    padded = programs.run(bucket, [sentence])[0]
    function, params = serve.quantized(parameters, SMALLEST)
    (unpadded,) = jax.jit(function)(params, np.array([sentence], np.int32), np.array([length], np.int32))
    np.testing.assert_allclose(padded, unpadded, rtol=0, atol=1e-5)
    if length < bucket.length:
        tokens, counts = np.full(bucket, 9, np.int32), np.full(bucket.batch, 3, np.int32)
        tokens[0, :length], counts[0] = sentence, length
        np.testing.assert_array_equal(np.asarray(programs._compiled[bucket](params, tokens, counts))[0], padded)
