"""What the library says about itself."""

from calls import BLOCK_PRODUCT, CODED_BLOCK_PRODUCT, CONVOLUTION, DYNAMIC_QUANTIZE, PRODUCT, WEIGHT_ONLY, targets


def test_functions():
    """The newest versions, and those before, which the same functions serve."""
    handlers = targets()
    newest = {PRODUCT, BLOCK_PRODUCT, CODED_BLOCK_PRODUCT, CONVOLUTION, WEIGHT_ONLY, DYNAMIC_QUANTIZE}
    assert set(handlers) == newest | {"jquant_product.1", "jquant_convolution.1"}
    assert len(set(handlers.values())) == 6
    assert handlers[PRODUCT] == handlers["jquant_product.1"]
    assert handlers[CONVOLUTION] == handlers["jquant_convolution.1"]
