"""A mixer whose state is by slot fits beside attention, with no part of the engine knowing it.

It is the smallest recurrence: each channel's state decays and takes the token's input. Against SciPy's filter.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax.sharding import PartitionSpec as P

from apps.arrays import distributed
from apps.arrays.layout import Layout
from apps.llm.engine.adapters import stack
from apps.llm.engine.execute.local import LocalExecutor
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model import declaration, decoder
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families.tiny import generic, tiny
from apps.llm.engine.model.mixers.choice import mixer_of
from apps.llm.engine.model.mixers.interface import Capacity, Mixed, StateForm
from apps.llm.engine.model.param import Param, Params, tensor
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import StepContext
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models

KEEP = 0.9
"""What a step leaves of a state."""
A, B = list(range(5, 45)), list(range(60, 90))


@dataclass(frozen=True)
class Decay:
    """The layer's value."""

    rows: int = 0
    owns_cache = True

    @property
    def form(self) -> "Decay":
        return self

    def may_read(self, other: Any) -> bool:
        return False

    def serving(self, longest: int) -> "Decay":
        return self


@dataclass(frozen=True)
class DecayMixer:
    """The `LayerMixer`: y = out @ state, where state = KEEP * state + x."""

    hidden: int

    def declare(self, layer: str) -> Params:
        shape = (self.hidden, self.hidden)
        return {"decay_out": Param(shape, (None, None), tensor(f"{layer}.decay.out.weight", *shape))}

    def adapted(self) -> dict[str, Any]:
        return {}

    def state(self, attention: Any, room: Capacity) -> StateForm:
        return StateForm(jax.ShapeDtypeStruct((room.slots, self.hidden), jnp.float32), P(), held_by="slots")

    def scales(self) -> None:
        return None

    def calibrated(self, observed: Any) -> None:
        return None

    def shared(self, step: StepContext) -> Any:
        """The slot of each token, the last one for padding, and whether the token is its sequence's very first."""

        def made() -> tuple[jax.Array, jax.Array]:
            batch, seq = step.batch, step.batch.sequence_of_token()
            t = jnp.arange(len(batch.tokens))
            first = (t == batch.q_starts[seq]) & (batch.q_lens == batch.kv_lens)[seq]
            return jnp.where(t < step.num_tokens, batch.slots[seq], -1), first

        return step.once("decay", made)

    def apply(
        self, x: jax.Array, layer: Params, state: jax.Array, shared: Any, scales: Any, step: StepContext
    ) -> Mixed:
        def turn(state: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
            x, slot, first = given
            new = KEEP * jnp.where(first, 0.0, state[slot]) + x.astype(jnp.float32)
            return state.at[slot].set(new), new

        state, kept = jax.lax.scan(turn, state, (x, *shared))
        return Mixed(step.product(kept.astype(x.dtype), layer["decay_out"]).astype(x.dtype), state)


def chosen(spec: Any, hidden: int, split: Split) -> Any:
    return DecayMixer(hidden) if isinstance(spec, Decay) else mixer_of(spec, hidden, split)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, compile_cache: str) -> LocalExecutor:
    """Of two layers, the second of which has attention."""
    for module in (decoder, declaration, stack):
        monkeypatch.setattr(module, "mixer_of", chosen)
    arch: Architecture = tiny(generic(192), 1)
    arch = replace(arch, layers=(replace(arch.layers[0], mixer=Decay()), arch.layers[1]), vocab_size=320)
    sizes = {"max_model_len": 192, "max_step_tokens": 64, "random_weights": True, "compile_cache": compile_cache}
    config = EngineConfig(**(tiny_models.SMALL | sizes))
    (mesh,) = distributed.meshes(Layout(1, 1))
    made = LocalExecutor(mesh, config, Model(arch, None, True))
    made.make_cache([])
    return made


def run(executor: LocalExecutor, *parts: tuple[list[int], int, int]) -> list[np.ndarray]:
    """One step of the tokens, the length so far and the slot of each sequence: each one's hidden states."""
    shape = StepShape(64, 4, executor.max_pages)
    step = shape.host()
    starts = [
        step.add(tokens, length, range(1 + 12 * slot, 13 + 12 * slot), decoding=False, row=slot)
        for tokens, length, slot in parts
    ]
    batch = shape.unpack(jnp.asarray(step.packed))
    hidden, executor.caches = executor.decoder.hidden(executor.params, batch, batch.tokens, executor.caches)
    return [np.asarray(hidden)[start : start + len(part[0])] for start, part in zip(starts, parts)]


@pytest.mark.slow
def test_sequences_keep_their_own_states_in_chunks_and_beside_others(executor: LocalExecutor) -> None:
    (whole_a,), (whole_b,) = run(executor, (A, len(A), 0)), run(executor, (B, len(B), 0))
    first_a, first_b = run(executor, (A[:25], 25, 1), (B[:7], 7, 0))
    rest_b, rest_a = run(executor, (B[7:], len(B), 0), (A[25:], len(A), 1))
    np.testing.assert_allclose(np.concatenate([first_a, rest_a]), whole_a, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([first_b, rest_b]), whole_b, atol=1e-5)


def test_the_recurrence_is_a_filter(executor: LocalExecutor) -> None:
    mixer, params = executor.decoder.mixers[0], executor.params["layers"][0]
    shape = StepShape(64, 4, executor.max_pages)
    step = shape.host()
    step.add(A, len(A), range(1, 13), decoding=False, row=2)
    context = StepContext.of(executor.decoder.machine, shape.unpack(jnp.asarray(step.packed)), [params])
    x = np.random.default_rng(0).standard_normal((64, executor.arch.hidden_size)).astype(np.float32)
    mixed = mixer.apply(jnp.asarray(x), params, executor.caches[0], mixer.shared(context), None, context)
    kept = scipy.signal.lfilter([1.0], [1.0, -KEEP], x[: len(A)].astype(np.float64), axis=0)
    np.testing.assert_allclose(np.asarray(mixed.y)[: len(A)], kept @ np.asarray(params["decay_out"]).T, atol=1e-4)
    np.testing.assert_allclose(np.asarray(mixed.state)[2], kept[-1], atol=1e-4)


def test_pages_are_counted_and_cleaned_without_it(executor: LocalExecutor) -> None:
    slots, pages = executor.caches
    assert slots.shape == (executor.config.max_batch_size + 1, executor.arch.hidden_size)
    assert jax.tree.leaves(pages)[0].shape[0] == executor.pages
    cleaned = [key for key in executor.programs.specs if key[0] == "clean"]
    assert cleaned == [("clean", 1)]
    page = replace(executor._specs, pages=1).bytes_held_by("pages")
    assert page * executor.pages == sum(part.nbytes for part in jax.tree.leaves(pages))
    run(executor, (A, len(A), 3))
    before = np.asarray(executor.caches[0])
    executor.clean(range(1, 13))
    np.testing.assert_array_equal(np.asarray(executor.caches[0]), before)
