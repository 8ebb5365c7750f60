"""The decoder: pure functions from parameters, a batch and the KV cache to logits, for every supported family."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from apps.llm.engine.attention.spec import AttentionBackend
from apps.llm.engine.execute.step import Batch
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.feed_forward.choice import network_of
from apps.llm.engine.model.layers import LayerSpec, MlpBesideExperts
from apps.llm.engine.model.mixers.choice import mixer_of
from apps.llm.engine.model.mixers.interface import LayerMixer
from apps.llm.engine.model.param import Params
from apps.llm.engine.model.pointwise import activation, norm
from apps.llm.engine.model.products import product, rows
from apps.llm.engine.model.rope import sinusoid_frequencies
from apps.llm.engine.model.rotation import angles
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import Machine, StepContext


class _LayerInputs(NamedTuple):
    """A layer's further inputs, arrays as is everything in them."""

    shared: Any  # its mixer's, with other layers
    scales: Any  # of its state in int8; None: it is not
    extra: jax.Array | None  # [T, width] its further embeddings (Gemma 4)


@dataclass(frozen=True)
class Decoder:
    """The static description of a model on a mesh. Its methods are traced into the compiled steps."""

    arch: Architecture
    split: Split
    page_size: int
    dtype: jnp.dtype
    impl: AttentionBackend
    mesh: Mesh

    @cached_property
    def machine(self) -> Machine:
        return Machine(self.mesh, self.impl, self.page_size)

    @cached_property
    def mixers(self) -> list[LayerMixer]:
        """Each layer's."""
        return [mixer_of(spec.mixer, self.arch.hidden_size, self.split) for spec in self.arch.layers]

    def hidden(
        self,
        params: Params,
        batch: Batch,
        tokens: jax.Array,
        states: list[Any],
        scales: list[Any] | None = None,
        observe: list[Any] | None = None,
        images: jax.Array | None = None,
        outputs: dict[int, Any] | None = None,
    ) -> tuple[jax.Array, list[Any]]:
        """The last layer's output at every token, `[T, hidden]`, and the mixers' states with the step's tokens.

        Args:
            tokens: `[T]`, with the decoding sequences' last samples filled in.
            states: each layer's; None where it has none of its own.
            scales: of states in int8, like them.
            observe: when given, what each layer's mixer observed is appended (calibration).
            images: `[rows, features]`, the encoded ones that the batch's `image_rows` are of.
            outputs: when given, its keys are numbers of layers, from 1, whose output is put there, like the last's.
        """
        step = StepContext.of(self.machine, batch, params["layers"])
        x = self._embedded(params, tokens, step, images)
        extras = self._layer_embeddings(params, tokens, x, step, images is not None)
        states = list(states)

        # A jitted function, so that it is traced and lowered once, not for each layer. Otherwise tracing would take
        # most of the time of a start with a warm compilation cache.
        @partial(jax.jit, static_argnames="spec", inline=False)
        def run_layer(x: jax.Array, layer: Params, state: Any, given: _LayerInputs, spec: LayerSpec) -> Any:
            return self._layer(spec, x, layer, state, given, step)

        for i, (spec, mixer, own) in enumerate(zip(self.arch.layers, self.mixers, self.arch.cache_of)):
            given = _LayerInputs(mixer.shared(step), scales and scales[own], extras[i])
            x, states[own], seen = run_layer(x, params["layers"][i], states[own], given, spec)
            if images is not None and step.batch.image_rows is not None and images.shape[1] > x.shape[1] * (i + 1):
                x = x + self._seen(images, step.batch.image_rows, i + 1, jnp.zeros_like(x))
            if observe is not None:
                observe.append(seen)
            if outputs is not None and i + 1 in outputs:
                outputs[i + 1] = step.whole(x)
        return step.whole(x), states

    def _layer(
        self, spec: LayerSpec, x: jax.Array, layer: Params, state: Any, given: _LayerInputs, step: StepContext
    ) -> tuple[jax.Array, Any, Any]:
        """One layer: its output `[T, hidden]`, its state, and what its mixer observed."""
        mixer = mixer_of(spec.mixer, self.arch.hidden_size, self.split)
        y = step.whole(_norm(spec, x, layer, "attention_norm"))
        y, state, seen = mixer.apply(y, layer, state, given.shared, given.scales, step)
        x = x + _post_norm(spec, y, layer, "post_attention_norm")

        y = self._feed_forward(spec, x, layer, step)
        x = x + _post_norm(spec, y, layer, "post_mlp_norm")

        if spec.inputs is not None:
            assert given.extra is not None  # as this layer takes them
            y = activation(spec.inputs.activation, step.product(x, layer["extra_in"])) * given.extra
            y = step.product(y.astype(x.dtype), layer["extra_out"]).astype(x.dtype)
            x = x + _norm(spec, y, layer, "extra_norm")
        return x * layer["scalar"] if spec.scalar else x, state, seen

    def _feed_forward(self, spec: LayerSpec, x: jax.Array, layer: Params, step: StepContext) -> jax.Array:
        network = network_of(spec, self.arch.hidden_size, self.split)
        if isinstance(spec.feed_forward, MlpBesideExperts):  # each part norms x by itself
            return network.apply(step.whole(x), layer, step)
        return network.apply(step.whole(_norm(spec, x, layer, "mlp_norm")), layer, step)

    def _embedded(self, params: Params, tokens: jax.Array, step: StepContext, images: jax.Array | None) -> jax.Array:
        """The first layer's input, `[T, hidden]`."""
        arch = self.arch
        x = rows(params["embed"], tokens, self.dtype, self.mesh, step.by_token)
        if arch.embedding_norm is not None:
            x = norm(arch.embedding_norm, x)
        if arch.scaled_embeddings:
            # The factor is rounded to the model's type first, as in the reference.
            x = x * jnp.asarray(arch.hidden_size**0.5, self.dtype)
        if images is not None and step.batch.image_rows is not None:
            x = self._seen(images, step.batch.image_rows, 0, x)
        if arch.sinusoids:
            cos, sin = angles(step.batch, self.page_size, sinusoid_frequencies(arch.hidden_size))
            x = x + jnp.concatenate([sin, cos], axis=-1).astype(self.dtype)
        return x

    def _seen(self, images: jax.Array, row: jax.Array, part: int, others: jax.Array) -> jax.Array:
        """What a layer gets of the tokens that stand for an image's, and of others what they have, `[T, hidden]`.

        Args:
            row: `[T]`, of an encoded image's token, from 1.
            part: of a row: 0 is in place of an embedding, 1 for the first layer's output, and so on.
        """
        first = part * self.arch.hidden_size
        seen = images[jnp.maximum(row - 1, 0), first : first + self.arch.hidden_size]
        return jnp.where(row[:, None] > 0, seen.astype(others.dtype), others)

    def _layer_embeddings(
        self, params: Params, tokens: jax.Array, x: jax.Array, step: StepContext, sees: bool
    ) -> list[jax.Array] | list[None]:
        """Gemma 4's further embeddings of each layer, `[T, width]`: from the tokens, and from their embeddings x."""
        layers, inputs = self.arch.num_layers, self.arch.layers[0].inputs
        if inputs is None:
            return [None] * layers
        width = inputs.width
        if sees and step.batch.image_rows is not None:
            tokens = jnp.where(step.batch.image_rows > 0, inputs.for_images, tokens)
        own = rows(params["extra_embed"], tokens, self.dtype, self.mesh, step.by_token)
        own = own * jnp.asarray(width**0.5, self.dtype)
        projected = step.product(x, params["extra_projection"]) * self.arch.hidden_size**-0.5
        projected = norm(self.arch.norm, projected.reshape(-1, layers, width), params["extra_projection_norm"])
        both = (projected.astype(self.dtype) + own.reshape(-1, layers, width)) * jnp.asarray(2**-0.5, self.dtype)
        return [both[:, layer] for layer in range(layers)]

    def logits(self, params: Params, hidden: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """`[rows, hidden]` -> `[rows, vocab]` float32; `num_rows` as `product` takes it."""
        head = params["embed"] if self.arch.tied_embeddings else params["lm_head"]
        logits = product(self.final(params, hidden), head, self.mesh, params.get("lm_head_bias"), num_rows)
        if self.arch.logit_scale != 1:
            logits = logits * self.arch.logit_scale
        if self.arch.final_softcap is not None:
            logits = self.arch.final_softcap * jnp.tanh(logits / self.arch.final_softcap)
        return logits

    def final(self, params: Params, hidden: jax.Array) -> jax.Array:
        """The final norm of the last layer's output, `[rows, hidden]`."""
        return norm(self.arch.norm, hidden, params["final_norm"], params.get("final_norm_bias"))


def _norm(spec: LayerSpec, x: jax.Array, layer: Params, key: str) -> jax.Array:
    """One of a layer's norms."""
    return norm(spec.norm, x, layer[key], layer.get(f"{key}_bias"))


def _post_norm(spec: LayerSpec, y: jax.Array, layer: Params, key: str) -> jax.Array:
    """What a part of a layer adds to the hidden states, normed where the layer has norms for it."""
    return y if spec.post_norm is None else norm(spec.post_norm, y, layer[key], layer.get(f"{key}_bias"))
