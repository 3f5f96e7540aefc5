"""The example that serves, through real sockets: each request is answered or refused, with the bits of a request alone."""

import asyncio
import json
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


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Of the parameters in a file that the first call writes, and the second reads."""
    path = tmp_path_factory.mktemp("parameters") / "encoder.safetensors"
    serve.quantized(path)
    written = path.read_bytes()
    loaded = serve.Programs(*serve.quantized(path), BATCHES, LENGTHS)
    assert path.read_bytes() == written
    return loaded


def run(programs, scenario, most_waiting=256):
    """Runs a scenario with a client of a server; nothing is left running, nor waiting."""

    async def main():
        server = TestServer(serve.application(programs, most_waiting))
        async with TestClient(server) as client:
            result = await scenario(client)
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

    (results, (status, _)), _ = run(programs, scenario)
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
    assert health["answered"] == statuses.count(200)
    for tokens, (status, answer) in zip(asked, answers, strict=True):
        if status == 200:
            assert_alone(programs, tokens, answer)
        else:
            assert answer == "too many requests wait\n"


def test_a_client_that_goes_away(programs):
    """While its request waits, or is computed; the others are answered."""
    asked = sentences(20)

    async def scenario(client):
        tasks = [asyncio.create_task(post(client, tokens)) for tokens in asked]
        await asyncio.sleep(0.01)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers, _ = run(programs, scenario)
    for number, (tokens, answer) in enumerate(zip(asked, answers, strict=True)):
        if number % 3:
            assert_alone(programs, tokens, answer[1])


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
