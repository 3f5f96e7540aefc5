"""Breaks files at random."""

import json
import math
import random

NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 7, 8, 31, 33, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**64]


def split_header(data: bytes) -> tuple[dict, bytes]:
    """The header of a safetensors file, and the bytes after it."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header: dict, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def key_paths(tree, path: tuple = ()) -> list[tuple]:
    """The keys that lead to each value in a JSON tree."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [keys for key, value in children for keys in [(*path, key), *key_paths(value, (*path, key))]]


def edit(tree, dice: random.Random) -> str:
    """Replaces, removes or swaps one value in a JSON tree, and describes the change."""
    *parents, last = dice.choice(key_paths(tree))
    node = tree
    for key in parents:
        node = node[key]
    value = node[last]
    change = dice.choice(["number", "removed", "type", "swapped"])
    if change == "removed":
        del node[last]
    elif change == "swapped":
        other = dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node[last], node[other] = node[other], node[last]
    elif isinstance(value, int) and change == "number":
        node[last] = dice.choice([*NUMBERS, value + 1, value - 1, 2 * value])
    elif last == "dtype":
        node[last] = dice.choice(
            ["I8", "U8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "BOOL", "C64", "F4"]
        )
    else:
        node[last] = dice.choice([None, [], {}, "x", -1, 0.5, True, 2**70, [value], {"x": value}])
    return f"{change} of {'/'.join(map(str, (*parents, last)))}"


def reshape(header: dict, dice: random.Random) -> str:
    """Gives one tensor in a header of safetensors another shape with as many elements, and describes the change."""
    name = dice.choice(sorted(set(header) - {"__metadata__"}))
    shape = header[name]["shape"]
    sizes = [1] * dice.choice([1, len(shape), len(shape), len(shape) + 1])
    for factor in factors(math.prod(shape)) if sizes else ():
        sizes[dice.randrange(len(sizes))] *= factor
    header[name]["shape"] = sizes if math.prod(sizes) == math.prod(shape) else [math.prod(shape)]
    return f"shape of {name}: {header[name]['shape']}, not {shape}"


def factors(number: int) -> list[int]:
    """Its prime factors."""
    divisor = next((each for each in range(2, math.isqrt(number) + 1) if number % each == 0), number)
    return [] if number < 2 else [divisor, *factors(number // divisor)]


def with_random_bytes(data: bytes, dice: random.Random, first: int, last: int) -> bytes:
    """`data`, with a few of the bytes from `first` to `last` replaced."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 3, 10])):
        changed[dice.randrange(first, last)] = dice.choice([0, 1, 2, 127, 128, 255, dice.randrange(256)])
    return bytes(changed)
