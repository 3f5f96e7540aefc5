"""Shapes of real models as data, by name and with tags: benchmarks, the tuner and tests take theirs from here.

The tag `timed` is for those that `benchmarks.run` and `benchmarks.convolution` measure. The others say which phase of a
model a product is of, or which kind a convolution; command lines that select shapes take names, tags and patterns of either.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from benchmarks import cache


@dataclasses.dataclass(frozen=True)
class Product:
    """A (batch,) M x K matrix times a (batch,) K x N matrix.

    Attributes:
      name: model, layer, and phase where the layer has several.
      layer: which layer, in words.
      batch: the number of products; 1 is a plain matrix product, without a batch dimension.
      weights: whether B is known ahead of the call, so that it can be packed.
      cold: whether the calls take the weights of several layers in turn, which together fit in no cache.
    """

    name: str
    m: int
    k: int
    n: int
    layer: str
    batch: int = 1
    weights: bool = True
    cold: bool = False
    tags: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """How many matrices B the calls take in turn: 1, or for cold calls more than the last-level cache holds."""
        return 1 + cache.last_level() // (self.k * self.n) if self.cold else 1

    @property
    def size(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}({self.m} x {self.k} x {self.n}){f', {self.layers} layers in turn' if self.cold else ''}"

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.k * self.n


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of queries to keys of the same width, in every head of some sequences.

    Attributes:
      name: model, and phase where there are several.
      heads: of one sequence.
      queries: how many tokens ask.
      keys: how many tokens are asked.
      width: of a head.
    """

    name: str
    heads: int
    queries: int
    keys: int
    width: int
    layer: str
    sequences: int = 1
    tags: tuple[str, ...] = ()

    @property
    def scores(self) -> Product:
        """Queries times keys, neither of which is known ahead."""
        return Product(
            name=f"{self.name}.scores",
            m=self.queries,
            k=self.width,
            n=self.keys,
            layer=self.layer,
            batch=self.sequences * self.heads,
            weights=False,
            tags=self.tags,
        )


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution of square images.

    Attributes:
      channels: of the image.
      size: the height and width of the image.
      filters: how many.
      kernel: the height and width of a filter.
      stride: the step from one window to the next.
      groups: the number of groups of channels.
      padded: whether the image is padded by half a filter on every side.
    """

    name: str
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1
    padded: bool = True
    tags: tuple[str, ...] = ()

    @property
    def padding(self) -> int:
        return self.kernel // 2 if self.padded else 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    @property
    def filter_shape(self) -> tuple[int, int, int, int]:
        return self.filters, self.channels // self.groups, self.kernel, self.kernel


ATTENTION = (
    Attention(
        "bert-base",
        heads=12,
        queries=384,
        keys=384,
        width=64,
        layer="BERT base, attention scores of 12 heads, one sequence of 384 tokens",
        tags=("timed", "encoder"),
    ),
    Attention(
        "llama-7b.prefill-16",
        heads=32,
        queries=512,
        keys=512,
        width=128,
        layer="Llama 7B, attention scores of 32 heads, 512 tokens of 16 prompts",
        sequences=16,
        tags=("prefill",),
    ),
)
_BERT, _LLAMA = (attention.scores for attention in ATTENTION)
_QKV = "Llama 7B, query, key or value projection"
_UP, _DOWN = (f"Llama 7B, {way} projection of the feed-forward layer" for way in ("up", "down"))
_DECODE = "timed", "decode"

PRODUCTS = (
    Product("square-1024", 1024, 1024, 1024, "no model; the size that machines are usually compared at", tags=("timed",)),
    Product(
        "bert-base.ffn1",
        384,
        768,
        3072,
        "BERT base, first feed-forward layer, one sequence of 384 tokens",
        tags=("timed", "encoder"),
    ),
    Product(
        "bert-base.ffn2",
        384,
        3072,
        768,
        "BERT base, second feed-forward layer, one sequence of 384 tokens",
        tags=("timed", "encoder"),
    ),
    _BERT,
    Product(
        "resnet50.layer1.conv1x1",
        3136,
        64,
        256,
        "ResNet-50, layer1, expanding 1 x 1 convolution, one image (56 x 56)",
        tags=("timed",),
    ),
    Product("llama-7b.qkv.prefill", 128, 4096, 4096, f"{_QKV}, 128 tokens of a prompt", tags=("timed", "prefill")),
    Product("llama-7b.qkv.decode", 1, 4096, 4096, f"{_QKV}, the next token", tags=_DECODE),
    Product(
        "llama-7b.qkv.decode.cold",
        1,
        4096,
        4096,
        f"{_QKV}, the next token, its weights in no cache",
        cold=True,
        tags=_DECODE,
    ),
    Product("llama-7b.qkv.decode-8", 8, 4096, 4096, f"{_QKV}, the next token of 8 sequences", tags=_DECODE),
    Product(
        "llama-7b.qkv.decode-8.cold",
        8,
        4096,
        4096,
        f"{_QKV}, the next token of 8 sequences, its weights in no cache",
        cold=True,
        tags=_DECODE,
    ),
    Product("llama-7b.down.decode", 1, 11008, 4096, f"{_DOWN}, the next token", tags=_DECODE),
    Product("llama-7b.qkv.decode-16", 16, 4096, 4096, f"{_QKV}, the next token of 16 sequences", tags=("decode",)),
    Product("llama-7b.qkv.decode-100", 100, 4096, 4096, f"{_QKV}, the next token of 100 sequences", tags=("decode",)),
    Product("llama-7b.up.decode-64", 64, 4096, 11008, f"{_UP}, the next token of 64 sequences", tags=("decode",)),
    Product("llama-7b.up.prefill-16", 16 * 512, 4096, 11008, f"{_UP}, 512 tokens of 16 prompts", tags=("prefill",)),
    _LLAMA,
)

_DENSE, _DEPTHWISE = ("timed", "dense"), ("timed", "depthwise")
CONVOLUTIONS = (
    Convolution("ResNet-50, 3 x 3, 56 x 56", 64, 56, 64, kernel=3, tags=_DENSE),
    Convolution("ResNet-50, 3 x 3, 28 x 28", 128, 28, 128, kernel=3, tags=_DENSE),
    Convolution("ResNet-50, 3 x 3, 14 x 14", 256, 14, 256, kernel=3, tags=_DENSE),
    Convolution("ResNet-50, 3 x 3, 7 x 7", 512, 7, 512, kernel=3, tags=_DENSE),
    Convolution("ResNet-50, 1 x 1", 256, 56, 64, kernel=1, tags=_DENSE),
    Convolution("MobileNetV2, depthwise 3 x 3", 144, 56, 144, kernel=3, groups=144, tags=_DEPTHWISE),
    Convolution("MobileNetV3, depthwise 5 x 5, stride 2", 72, 56, 72, kernel=5, stride=2, groups=72, tags=_DEPTHWISE),
    Convolution("ResNet-50, first layer, 7 x 7, stride 2", 3, 224, 64, kernel=7, stride=2, tags=_DENSE),
    Convolution("four groups, 3 x 3", 128, 28, 128, kernel=3, groups=4, tags=("timed", "grouped")),
    Convolution("ViT-B/16, patches", 3, 224, 768, kernel=16, stride=16, padded=False, tags=("dense",)),
)

Shape = TypeVar("Shape", Product, Attention, Convolution)


def tagged(shapes: Iterable[Shape], tag: str) -> dict[str, Shape]:
    """Those with a tag, by name."""
    return {shape.name: shape for shape in shapes if tag in shape.tags}


def named(shapes: Iterable[Shape], name: str) -> Shape:
    """The one of this name."""
    (shape,) = (shape for shape in shapes if shape.name == name)
    return shape
