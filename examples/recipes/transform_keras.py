"""A network of Keras 3 on JAX in int8: one of keras.applications.

pip install ".[recipes]"
python examples/recipes/transform_keras.py
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import jax
import jax.numpy as jnp
import keras

from jquant import transform


def main() -> None:
    keras.utils.set_random_seed(0)
    images = jax.random.uniform(jax.random.key(0), (8, 32, 32, 3), minval=-1)
    # Random weights have a softmax that is almost constant, whatever the image: logits are compared.
    model = keras.applications.VGG16(input_shape=(32, 32, 3), weights=None, classes=10, classifier_activation=None)

    params = {variable.path: jnp.array(variable.value) for variable in model.variables}

    def apply(params, images):
        trained = [params[variable.path] for variable in model.trainable_variables]
        others = [params[variable.path] for variable in model.non_trainable_variables]
        return model.stateless_call(trained, others, images)[0]

    quantized_apply, quantized_params = transform.quantize(apply, params, transform.dynamic_int8, images)
    int8_logits = jax.jit(quantized_apply)(quantized_params, images)

    logits = jax.jit(apply)(params, images)
    rows = transform.sites(apply, params, images)
    assert all(row.reason is None for row in rows)
    print(f"{len(rows)} sites, from {rows[0].name} to {rows[-1].name}")
    before, after = (sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (params, quantized_params))
    ratio = 10 * jnp.log10(jnp.sum(logits**2) / jnp.sum((int8_logits - logits) ** 2))
    print(f"{before:,} bytes of parameters -> {after:,}; {ratio:.0f} dB")


if __name__ == "__main__":
    main()
