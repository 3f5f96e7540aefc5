"""Small networks of packages on PyPI, with random weights, as functions of parameters and inputs.

`.ci/networks.txt` has the packages. Each is imported by its own networks alone.
"""

import functools
import os
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, LAYERS, VOCABULARY, CLASSES = 64, 4, 2, 256, 10


class Network(NamedTuple):
    """A function of parameters and inputs, with both."""

    function: Callable[..., jax.Array]
    params: Any
    inputs: tuple[np.ndarray, ...]


def tokens(*shape: int, below: int = VOCABULARY, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bert() -> Network:
    """An encoder; the second text is shorter, and padded."""
    from transformers import BertConfig, FlaxBertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=32,
    )
    model = FlaxBertModel(config, seed=0)
    mask = np.arange(16) < np.array([[16], [10]])

    def function(params, tokens, mask):
        return model(tokens, mask, params=params).last_hidden_state

    return Network(function, model.params, (tokens(2, 16), mask.astype(np.int32)))


def t5() -> Network:
    """An encoder and a decoder, with relative positions."""
    from transformers import FlaxT5ForConditionalGeneration, T5Config
    from transformers.models.t5 import modeling_flax_t5

    # It calls `jnp.clip` by a keyword that no supported jax has any more.
    jnp_with_clip = types.SimpleNamespace(**vars(jnp) | {"clip": lambda x, a_max: jnp.minimum(x, a_max)})
    modeling_flax_t5.jnp = jnp_with_clip  # pyright: ignore[reportAttributeAccessIssue]
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
    )
    model = FlaxT5ForConditionalGeneration(config, seed=0)

    def function(params, tokens, title):
        return model(tokens, decoder_input_ids=title, params=params).logits

    return Network(function, model.params, (tokens(2, 16), tokens(2, 8, seed=1)))


def whisper() -> Network:
    """Convolutions over sound, an encoder and a decoder."""
    from transformers import FlaxWhisperForConditionalGeneration, WhisperConfig

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = FlaxWhisperForConditionalGeneration(config, input_shape=(1, 16, 32), seed=0)

    def function(params, sound, text):
        return model(sound, text, params=params).logits

    return Network(function, model.params, (numbers(2, 16, 32), tokens(2, 8)))


def mobilenet() -> Network:
    """Depthwise and pointwise convolutions with batch norm."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=CLASSES, classifier_activation=None)
    groups = model.trainable_variables, model.non_trainable_variables
    paths = [[variable.path for variable in group] for group in groups]
    params = [{variable.path: variable.value for variable in group} for group in groups]

    def function(params, images):
        weights, statistics = ([group[path] for path in names] for group, names in zip(params, paths, strict=True))
        return model.stateless_call(weights, statistics, images, training=False)[0]

    return Network(function, params, (numbers(2, 32, 32, 3),))


def qwen3() -> Network:
    """A decoder with grouped heads, norms of queries and keys, and rotary positions."""
    from flax import nnx
    from tunix.models.qwen3.model import ModelConfig, Qwen3

    config = ModelConfig(
        num_layers=LAYERS,
        vocab_size=VOCABULARY,
        embed_dim=WIDTH,
        hidden_dim=2 * WIDTH,
        num_heads=HEADS,
        head_dim=WIDTH // HEADS,
        num_kv_heads=HEADS // 2,
        rope_theta=10_000,
        norm_eps=1e-6,
    )
    graph, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))

    def function(params, tokens):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        mask = jnp.broadcast_to(jnp.tri(tokens.shape[1], dtype=bool), (*tokens.shape, tokens.shape[1]))
        return nnx.merge(graph, params)(tokens, places, None, mask)[0]

    return Network(function, params, (tokens(2, 16),))


def graph_network() -> Network:
    """Messages along 40 edges between 12 nodes: perceptrons for the edges, the nodes and the graph."""
    import haiku as hk
    import jraph

    def perceptron(*sizes):
        return jraph.concatenated_args(lambda x: hk.nets.MLP(sizes)(x))

    def network(nodes, edges, senders, receivers):
        counts = np.array([12]), np.array([40])
        graph = jraph.GraphsTuple(nodes, edges, receivers, senders, np.zeros((1, 8), np.float32), *counts)
        updates = perceptron(WIDTH, 32), perceptron(WIDTH, 32), perceptron(WIDTH, CLASSES)
        return jraph.GraphNetwork(*updates)(graph).globals

    inputs = numbers(12, 16), numbers(40, 8, seed=1), tokens(40, below=12), tokens(40, below=12, seed=1)
    transformed = hk.without_apply_rng(hk.transform(network))
    return Network(transformed.apply, transformed.init(jax.random.key(0), *inputs), inputs)


def mamba2() -> Network:
    """State-space layers, in chunks of 8 tokens."""
    from flax import nnx
    from mamba2_jax import Mamba2Config, Mamba2ForCausalLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "state_size": 16, "head_dim": 16, "chunk_size": 8}
    graph, params = nnx.split(Mamba2ForCausalLM(Mamba2Config(**sizes, num_hidden_layers=LAYERS), rngs=nnx.Rngs(0)))

    def function(params, tokens):
        return nnx.merge(graph, params)(tokens)["logits"]

    return Network(function, params, (tokens(2, 16),))


def llama() -> Network:
    """A decoder of named axes."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common

    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=HEADS // 2,
        query_head_multiplier=2,
        embedding_dim=WIDTH,
        projection_dim=WIDTH // HEADS,
        mlp_hidden_dim=2 * WIDTH,
        num_decoder_blocks=LAYERS,
        vocab_size=VOCABULARY,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
    )
    model = llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0), name="llama")
    rest, params = pz.unbind_params(model, freeze=True)

    def function(params, tokens):
        places = pz.nx.wrap(jnp.arange(tokens.shape[1])).tag("seq")
        named = pz.nx.wrap(tokens).tag("batch", "seq")
        return pz.bind_variables(rest, params)(named, token_positions=places).unwrap("batch", "seq", "vocabulary")

    return Network(function, params, (tokens(2, 16),))


def resnet() -> Network:
    """Four stages of a block each, with batch norm, whose state is one of the parameters."""
    import haiku as hk

    def network(images, is_training):
        sizes = {"bottleneck": False, "channels_per_group": (16, 16, 32, 32)}
        return hk.nets.ResNet([1, 1, 1, 1], CLASSES, **sizes)(images, is_training)

    transformed = hk.without_apply_rng(hk.transform_with_state(network))
    images, generator = numbers(2, 32, 32, 3), np.random.default_rng(0)

    def drawn(module, name, x):
        if name == "w":  # Haiku's are zeros in the last layer
            return (generator.normal(size=x.shape) * np.sqrt(2 / np.prod(x.shape[:-1]))).astype(np.float32)
        return np.full(x.shape, name == "scale" or "var_ema" in module, x.dtype)

    types = jax.eval_shape(functools.partial(transformed.init, is_training=True), jax.random.key(0), images)
    variables = tuple(hk.data_structures.map(drawn, group) for group in types)

    def function(variables, images):
        return transformed.apply(*variables, images, is_training=False)[0]

    return Network(function, variables, (images,))


def vision_transformer() -> Network:
    """Patches, attention and dropout, which is off; each layer gets a key."""
    import equinox as eqx

    class Transformer(eqx.Module):
        patches: eqx.nn.Conv2d
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        dropout: eqx.nn.Dropout
        head: eqx.nn.MLP

        def __init__(self, *, key):
            keys = jax.random.split(key, 3)
            self.patches = eqx.nn.Conv2d(3, WIDTH, 4, stride=4, key=keys[0])
            self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, dropout_p=0.1, key=keys[1])
            self.norm, self.dropout = eqx.nn.LayerNorm(WIDTH), eqx.nn.Dropout(0.1)
            self.head = eqx.nn.MLP(WIDTH, CLASSES, 2 * WIDTH, 2, key=keys[2])

        def __call__(self, image, *, key):
            keys = jax.random.split(key, 4)
            x = self.patches(image, key=keys[0]).reshape(WIDTH, -1).T
            x = jax.vmap(self.norm)(x + self.attention(x, x, x, key=keys[1]))
            return self.head(self.dropout(x, key=keys[2]).mean(0), key=keys[3])

    model = eqx.nn.inference_mode(Transformer(key=jax.random.key(0)))
    params, rest = eqx.partition(model, eqx.is_array)

    def function(params, images):
        keys = jax.random.split(jax.random.key(1), len(images))
        return jax.vmap(lambda image, key: eqx.combine(params, rest)(image, key=key))(images, keys)

    return Network(function, params, (numbers(2, 3, 16, 16),))


class Source(NamedTuple):
    """Where a network comes from: the package on PyPI, and the function that makes it."""

    package: str
    make: Callable[[], Network]


NETWORKS = {
    "BERT": Source("transformers", bert),
    "T5": Source("transformers", t5),
    "Whisper": Source("transformers", whisper),
    "MobileNetV2": Source("keras", mobilenet),
    "Qwen3": Source("google-tunix", qwen3),
    "graph network": Source("jraph", graph_network),
    "Mamba2": Source("mamba2-jax", mamba2),
    "Llama": Source("penzai", llama),
    "ResNet": Source("dm-haiku", resnet),
    "vision transformer": Source("equinox", vision_transformer),
}
