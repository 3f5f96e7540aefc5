"""Serves an int8 encoder over HTTP. Requests of different lengths share batches, and get the bits that they get alone.

    pip install ".[serving]"
    python examples/serve.py --parameters encoder.safetensors --random --cache programs --port 8000
    curl localhost:8000/encode --data '{"tokens": [5, 17, 3]}'
    curl localhost:8000/health

Compiles a program for each bucket, a size of the batch and a length, before it answers; the cache keeps them for the next
start. With --random, a file of parameters that is not there is written first, with random ones. SIGTERM ends the server when
it has answered what waits.
"""

import argparse
import asyncio
import collections
import functools
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from aiohttp import web
from tqdm import tqdm

from jquant import transform

WORDS, WIDTH, HIDDEN, HEADS, LAYERS = 1000, 128, 512, 4, 3
INPUT_TYPE = np.int32  # of a token
MOST_BYTES, MOST_SECONDS = 2**16, 10.0  # of a request: a longer one is refused, and one that takes longer to arrive

log = logging.getLogger("serve")


# The network, which stands for yours: a function of its parameters, of tokens (batch, length), and of how many count.


def initial(key: jax.Array) -> dict[str, Any]:
    def matrix(*shape: int) -> jax.Array:
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, shape) / shape[-2] ** 0.5

    parts = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "output": (WIDTH, WIDTH)}
    parts |= {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {"words": matrix(WORDS, WIDTH), **{name: matrix(LAYERS, *shape) for name, shape in parts.items()}}


def encode(params: dict[str, Any], tokens: jax.Array, counts: jax.Array) -> jax.Array:
    """Embeddings of sentences, (batch, WIDTH). What lies beyond their counts is padding, and does not matter."""
    is_word = jnp.arange(tokens.shape[1])[None] < counts[:, None]

    def heads(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], HEADS, -1)

    def layer(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        query, key, value = (heads(x @ weights[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH / HEADS) ** 0.5
        shares = jax.nn.softmax(jnp.where(is_word[:, None, None], scores, -jnp.inf))
        x = normalized(x + jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(x.shape) @ weights["output"])
        return normalized(x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]), None

    layers = {name: weights for name, weights in params.items() if name != "words"}
    x, _ = jax.lax.scan(layer, normalized(params["words"][tokens]), layers)
    return jnp.where(is_word[..., None], x, 0).sum(1) / counts[:, None].astype(x.dtype)


def normalized(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


# Its programs.


class Bucket(NamedTuple):
    """The sizes of a program: requests, and the tokens of each."""

    batch: int
    length: int

    @property
    def types(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        return jax.ShapeDtypeStruct(self, INPUT_TYPE), jax.ShapeDtypeStruct((self.batch,), jnp.int32)


def write_random(path: Path, bucket: Bucket) -> None:
    """A file of parameters that nobody has trained, in int8."""
    params = initial(jax.random.key(0))
    transform.save(path, *transform.quantize(encode, params, transform.dynamic_int8_rows, *bucket.types))


def quantized(path: Path, bucket: Bucket) -> tuple[Callable[..., jax.Array], Any]:
    """The int8 encoder and its parameters. It takes inputs of all buckets, whichever this is."""
    return transform.load(path, encode, jax.eval_shape(initial, jax.random.key(0)), *bucket.types)


class Programs:
    """The compiled programs of all buckets."""

    def __init__(self, function: Callable[..., jax.Array], params: Any, batches: Sequence[int], lengths: Sequence[int]):
        self._params = params
        self.batches, self.lengths = sorted(batches), sorted(lengths)
        buckets = [Bucket(*sizes) for sizes in itertools.product(self.batches, self.lengths)]
        jitted = jax.jit(function)
        self._compiled = {
            bucket: jitted.lower(params, *bucket.types).compile() for bucket in tqdm(buckets, "compiling", unit="program")
        }

    def length_for(self, count: int) -> int:
        return next(length for length in self.lengths if length >= count)

    def bucket_for(self, requests: int, length: int) -> Bucket:
        return Bucket(next(batch for batch in self.batches if batch >= requests), length)

    def run(self, bucket: Bucket, sentences: Sequence[Sequence[int]]) -> np.ndarray:
        """A row for each sentence. The rest of the bucket is padding: sentences of one word."""
        tokens, counts = np.zeros(bucket, INPUT_TYPE), np.ones(bucket.batch, np.int32)
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)], counts[row] = sentence, len(sentence)
        return np.asarray(self._compiled[bucket](self._params, tokens, counts))[: len(sentences)]


# Requests that wait, and the thread that answers them.


class Request(NamedTuple):
    tokens: list[int]
    since: float
    answer: asyncio.Future


class Batcher:
    """Answers requests in batches of one length: whenever the program is free, those that wait for the longest."""

    def __init__(self, programs: Programs, most_waiting: int):
        self._programs, self._most_waiting = programs, most_waiting
        self._waiting = {length: collections.deque[Request]() for length in programs.lengths}
        self._thread = ThreadPoolExecutor(1, "programs")
        self._something_waits = asyncio.Event()
        self._task = asyncio.create_task(self._answer_forever())
        self.answered = self.batches = self.refused = 0

    @property
    def waiting(self) -> int:
        """How many requests wait whose clients have not gone away."""
        return sum(not request.answer.done() for queue in self._waiting.values() for request in queue)

    async def answer(self, tokens: list[int]) -> tuple[Bucket, np.ndarray]:
        if self.waiting >= self._most_waiting:
            raise web.HTTPServiceUnavailable(text="too many requests wait\n", headers={"Retry-After": "1"})
        request = Request(tokens, time.perf_counter(), asyncio.get_running_loop().create_future())
        self._waiting[self._programs.length_for(len(tokens))].append(request)
        self._something_waits.set()
        return await request.answer

    async def end(self) -> None:
        """When what waits is answered."""
        while self.waiting:
            await asyncio.sleep(0.01)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

    async def _answer_forever(self) -> None:
        while True:
            await self._something_waits.wait()
            length, queue = min(
                ((length, queue) for length, queue in self._waiting.items() if queue), key=lambda each: each[1][0].since
            )
            requests = [queue.popleft() for _ in range(min(len(queue), self._programs.batches[-1]))]
            if not self.waiting:
                self._something_waits.clear()
            requests = [request for request in requests if not request.answer.done()]  # others have gone away
            if requests:
                await self._answer(length, requests)

    async def _answer(self, length: int, requests: list[Request]) -> None:
        bucket, start = self._programs.bucket_for(len(requests), length), time.perf_counter()
        run = functools.partial(self._programs.run, bucket, [request.tokens for request in requests])
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except Exception as error:  # whatever it is, somebody waits for an answer
            log.exception("a batch failed")
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        end = time.perf_counter()
        self.answered, self.batches = self.answered + len(requests), self.batches + 1
        full = 100 * sum(len(request.tokens) for request in requests) / (bucket.batch * bucket.length)
        times = 1e3 * (start - requests[0].since), 1e3 * (end - start)
        log.info("%d in %d x %d, %.0f %% full: waited %.1f ms, took %.1f ms", len(requests), *bucket, full, *times)
        for request, row in zip(requests, rows, strict=True):
            if not request.answer.done():
                request.answer.set_result((bucket, row))


# HTTP.

BATCHER: web.AppKey[Batcher] = web.AppKey("batcher")


async def body_of(request: web.Request) -> bytes:
    """A request that has arrived. Nobody waits for a client that stops in its middle, least of all the end of the server."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the request did not arrive within {MOST_SECONDS} s\n") from None


def tokens_of(body: bytes, most: int) -> list[int]:
    """The tokens of a request, or a refusal."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is no JSON\n") from None
    tokens = parsed.get("tokens") if isinstance(parsed, dict) else None
    if not isinstance(tokens, list) or not tokens or not all(type(each) is int and 0 <= each < WORDS for each in tokens):
        raise web.HTTPBadRequest(
            text=f'the body must be {{"tokens": [...]}}, with one integer or more from 0 to {WORDS - 1}\n'
        )
    if len(tokens) > most:
        raise web.HTTPRequestEntityTooLarge(most, len(tokens), text=f"{len(tokens)} tokens; at most {most} are encoded\n")
    return tokens


def application(programs: Programs, most_waiting: int) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        batcher = request.app[BATCHER]
        try:
            tokens = tokens_of(await body_of(request), programs.lengths[-1])
            bucket, embedding = await batcher.answer(tokens)
        except web.HTTPException:
            batcher.refused += 1
            raise
        return web.json_response({"embedding": embedding.tolist(), "bucket": bucket})

    async def health(request: web.Request) -> web.Response:
        batcher = request.app[BATCHER]
        return web.json_response({name: getattr(batcher, name) for name in ("waiting", "answered", "batches", "refused")})

    async def batching(app: web.Application) -> AsyncIterator[None]:
        app[BATCHER] = Batcher(programs, most_waiting)
        yield
        await app[BATCHER].end()

    app = web.Application(client_max_size=MOST_BYTES)
    app.add_routes([web.post("/encode", answer), web.get("/health", health)])
    app.cleanup_ctx.append(batching)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=Path, default=Path("encoder.safetensors"))
    parser.add_argument("--random", action="store_true", help="write random parameters if the file is not there")
    parser.add_argument("--cache", type=Path, help="a folder that keeps compiled programs")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--most-waiting", type=int, default=256)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a thread waits for the result anyway
    if arguments.cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(arguments.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    smallest = Bucket(min(arguments.batches), min(arguments.lengths))
    if not arguments.parameters.exists():
        if not arguments.random:
            parser.error(f"--parameters: {arguments.parameters} is not there; --random writes it")
        write_random(arguments.parameters, smallest)
    log.info("compiling %d programs", len(arguments.batches) * len(arguments.lengths))
    programs = Programs(*quantized(arguments.parameters, smallest), arguments.batches, arguments.lengths)
    app = application(programs, arguments.most_waiting)
    web.run_app(app, host=arguments.host, port=arguments.port, handler_cancellation=True)  # if a client goes away


if __name__ == "__main__":
    main()
