"""Matrix products of real models, by name: the shapes that are measured."""

import dataclasses

from benchmarks import cache


@dataclasses.dataclass(frozen=True)
class Shape:
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


SHAPES = (
    Shape("square-1024", 1024, 1024, 1024, "no model; the size that machines are usually compared at"),
    Shape("bert-base.ffn1", 384, 768, 3072, "BERT base, first feed-forward layer, one sequence of 384 tokens"),
    Shape("bert-base.ffn2", 384, 3072, 768, "BERT base, second feed-forward layer, one sequence of 384 tokens"),
    Shape(
        "bert-base.scores",
        384,
        64,
        384,
        "BERT base, attention scores of 12 heads, one sequence of 384 tokens",
        batch=12,
        weights=False,
    ),
    Shape("resnet50.layer1.conv1x1", 3136, 64, 256, "ResNet-50, layer1, expanding 1 x 1 convolution, one image (56 x 56)"),
    Shape("llama-7b.qkv.prefill", 128, 4096, 4096, "Llama 7B, query, key or value projection, 128 tokens of a prompt"),
    Shape("llama-7b.qkv.decode", 1, 4096, 4096, "Llama 7B, query, key or value projection, the next token"),
    Shape(
        "llama-7b.qkv.decode.cold",
        1,
        4096,
        4096,
        "Llama 7B, query, key or value projection, the next token, its weights in no cache",
        cold=True,
    ),
    Shape("llama-7b.qkv.decode-8", 8, 4096, 4096, "Llama 7B, query, key or value projection, the next token of 8 sequences"),
    Shape(
        "llama-7b.qkv.decode-8.cold",
        8,
        4096,
        4096,
        "Llama 7B, query, key or value projection, the next token of 8 sequences, its weights in no cache",
        cold=True,
    ),
    Shape("llama-7b.down.decode", 1, 11008, 4096, "Llama 7B, down projection of the feed-forward layer, the next token"),
)
