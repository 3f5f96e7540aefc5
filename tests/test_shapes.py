"""The shapes of real models that benchmarks and tests share: names are theirs alone, and select them, as tags do."""

import pytest

from benchmarks.selection import select
from benchmarks.shapes import ATTENTION, CONVOLUTIONS, PRODUCTS, named, tagged

SHAPES = {"products": PRODUCTS, "attention": ATTENTION, "convolutions": CONVOLUTIONS}


@pytest.mark.parametrize("kind", SHAPES)
def test_names(kind):
    for shape in SHAPES[kind]:
        assert named(SHAPES[kind], shape.name) is shape
        assert shape.tags
        assert shape.name not in shape.tags


def test_attention():
    """The scores are products: 32 heads of 16 sequences, 512 tokens by 512, 128 numbers each."""
    assert [attention.scores for attention in ATTENTION] == [shape for shape in PRODUCTS if not shape.weights]
    scores = named(PRODUCTS, "llama-7b.prefill-16.scores")
    assert (scores.batch, scores.m, scores.k, scores.n) == (512, 512, 128, 512)


def test_convolutions():
    layer = named(CONVOLUTIONS, "MobileNetV3, depthwise 5 x 5, stride 2")
    assert (layer.image_shape, layer.filter_shape, layer.padding) == ((72, 56, 56), (72, 1, 5, 5), 2)
    assert named(CONVOLUTIONS, "ViT-B/16, patches").padding == 0


def test_selection():
    layers = tagged(CONVOLUTIONS, "timed")
    by_name, by_pattern = select(["MobileNetV2, depthwise 3 x 3"], layers), select(["MobileNet*"], layers)
    assert by_name.keys() < by_pattern.keys() == select(["depthwise"], layers).keys()
    assert select(["*"], layers) == layers
    with pytest.raises(SystemExit, match="'transposed' matches none of ResNet-50"):
        select(["transposed"], layers)
