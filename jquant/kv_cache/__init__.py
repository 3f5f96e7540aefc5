"""Attention with a cache of keys and values in int8 or int4, for decoding loops.

`init` makes an empty cache of all layers, `append` writes the keys and values of new tokens into it, and `attend` computes
causal attention of queries to it, with integer products. All are pure functions of arrays:

    cache = kv_cache.append(cache, keys, values, position, layer=layer)
    output = kv_cache.attend(queries, cache, position, layer=layer)
"""

from jquant.kv_cache.append import append
from jquant.kv_cache.attend import attend
from jquant.kv_cache.cache import KeyValueCache, init

__all__ = ["KeyValueCache", "append", "attend", "init"]


def __dir__() -> list[str]:
    return sorted(__all__)
