"""The programs of an engine: one list of them, which it compiles before its first request.

An engine makes the list from its config and its model's sizes alone, as `ProgramSpec`s. Its `ProgramSet` compiles them;
`apps.plan` compiles the same list for chips that are not there, and `apps.jobs.prepare` keeps it compiled in files.
Nothing else in what serves requests calls `jax.jit` (but for a function inside a program, to trace it once), so no
request can need a program that is not in the list. What runs once while an engine starts, such as reading weights, is
compiled where it is met, by `ProgramSpec.compiled`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

log = logging.getLogger("podslice")

Key = tuple[Any, ...]
"""A program's name in its list: its kind, and then what tells it from others of this kind."""
CPUS_A_PROGRAM = 4
"""XLA has several threads for each program that it compiles."""
MOST_AT_ONCE = 8

_this_thread = threading.local()


@dataclass(frozen=True, eq=False)
class ProgramSpec:
    """A program to compile. The function closes over no arrays: it gets them all as arguments.

    Args:
        function: pure, of the arguments alone.
        arguments: their shapes, types and shardings, as trees of `jax.ShapeDtypeStruct`.
        donate: which arguments' memory the results take over.
        out_shardings: as `jax.jit` has it; None: the compiler chooses.
        options: the compiler's.
    """

    key: Key
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    out_shardings: Any = None
    options: Mapping[str, bool] = field(default_factory=dict)

    def traced(self) -> jax.stages.Traced:
        options = dict(self.options) or None
        jitted = jax.jit(
            self.function, donate_argnums=self.donate, out_shardings=self.out_shardings, compiler_options=options
        )
        return jitted.trace(*self.arguments)

    def lowered(self) -> jax.stages.Lowered:
        return self.traced().lower()

    def compiled(self) -> jax.stages.Compiled:
        return self.lowered().compile()


class ProgramSource(Protocol):
    """Programs that were compiled before: see `apps.arrays.stored_programs`."""

    def take(self, spec: ProgramSpec) -> jax.stages.Compiled | None:
        """The program, to be asked for once; None: it must be compiled."""
        ...


class ProgramSet:
    """Programs by key, compiled.

    Args:
        prepared: where to look for a program before it is compiled.

    Raises:
        KeyError: there is no such program in the list.
    """

    def __init__(self, specs: Iterable[ProgramSpec] = (), prepared: ProgramSource | None = None):
        self._count, self._prepared = CompileCount(), prepared
        self.loaded = 0
        """Programs that were taken from `prepared`."""
        self.compiled = 0
        """Those that this process compiled, or fetched from JAX's cache."""
        self._when_ready: int | None = None
        self._compiled: dict[Key, jax.stages.Compiled] = {}
        self.specs: dict[Key, ProgramSpec] = {}
        for spec in specs:
            if spec.key in self.specs:
                raise ValueError(f"two programs have the key {spec.key}")
            self.specs[spec.key] = spec

    def __getitem__(self, key: Key) -> jax.stages.Compiled:
        """The compiled program; without `compile`, it is compiled at its first use."""
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._made(self.specs[key])
        return found

    def once(self, key: Key) -> jax.stages.Compiled:
        """A program that runs only while the engine starts: compiled, and not kept."""
        spec = self.specs.pop(key)
        return self._compiled.pop(key, None) or self._made(spec)

    def _made(self, spec: ProgramSpec) -> jax.stages.Compiled:
        found = self._taken(spec)
        if found is None:
            self.compiled += 1
            found = spec.compiled()
        return found

    def _taken(self, spec: ProgramSpec) -> jax.stages.Compiled | None:
        found = None if self._prepared is None else self._prepared.take(spec)
        self.loaded += found is not None
        return found

    def missing(self) -> list[ProgramSpec]:
        """What is still to be compiled."""
        return [spec for key, spec in self.specs.items() if key not in self._compiled]

    def compile(self, progress: Callable[[Key, float], None] = lambda key, seconds: None) -> None:
        """Take what is prepared, and compile the rest, several at a time if there are CPUs for it.

        Args:
            progress: called in this thread after each, with its key and the seconds that making it took.
        """

        def run(key: Key, lowered: jax.stages.Lowered, traced_s: float) -> tuple[Key, jax.stages.Compiled, float]:
            began = time.monotonic()
            with warming_up():
                return key, lowered.compile(), traced_s + time.monotonic() - began

        def keep(done: Iterable[Future[tuple[Key, jax.stages.Compiled, float]]]) -> None:
            for each in done:
                key, program, seconds = each.result()
                self._compiled[key] = program
                self.compiled += 1
                progress(key, seconds)

        at_once = max(1, min(MOST_AT_ONCE, (os.cpu_count() or 1) // CPUS_A_PROGRAM))
        pool = ThreadPoolExecutor(at_once, "compiling")
        running = set[Future[tuple[Key, jax.stages.Compiled, float]]]()
        try:
            # Python traces one program while XLA, which needs no interpreter, compiles others or reads them from disk.
            for spec in self.missing():
                began = time.monotonic()
                if (taken := self._taken(spec)) is not None:
                    self._compiled[spec.key] = taken
                    progress(spec.key, time.monotonic() - began)
                    continue
                with warming_up():
                    lowered = spec.lowered()
                running.add(pool.submit(run, spec.key, lowered, time.monotonic() - began))
                done, running = wait(running, timeout=0)
                keep(done)
            keep(as_completed(running))
        finally:
            pool.shutdown(cancel_futures=True)

    def ready(self) -> None:
        """From now on compiling is a defect: see `compiles_after_ready`."""
        if self._prepared is not None:
            log.info("programs: %d prepared ones loaded, %d compiled", self.loaded, self.compiled)
        self._when_ready = self._count.programs

    @property
    def compiles_after_ready(self) -> int:
        """Programs that this process has compiled since `ready`, in this list or not: a defect if not 0."""
        return 0 if self._when_ready is None else self._count.programs - self._when_ready


def zeros(forms: Any) -> Any:
    """Arrays of these forms, a tree of `jax.ShapeDtypeStruct`, inside a program."""
    return jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), forms)


def shardings(forms: Any) -> Any:
    """Those of a tree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda form: form.sharding, forms)


class CompileCount:
    """Counts programs that XLA compiles (or fetches from the persistent cache) in this process."""

    def __init__(self) -> None:
        self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and not getattr(_this_thread, "warms_up", False):
            self.programs += 1


@contextmanager
def warming_up() -> Iterator[None]:
    """Leave this thread's compiles out of every count: an engine that is ready must not count another's warm-up."""
    _this_thread.warms_up = True
    try:
        yield
    finally:
        _this_thread.warms_up = False


def alike(forms: Sequence[Any]) -> list[int | None]:
    """For each layer, the first whose arrays have the same form; None where it has none."""
    first: dict[Any, int] = {}
    trees = [(jax.tree.structure(form), *jax.tree.leaves(form)) for form in forms]
    return [first.setdefault(tree, layer) if tree[1:] else None for layer, tree in enumerate(trees)]


def unlike(forms: Sequence[Any]) -> list[tuple[int, Any]]:
    """One layer of each kind, the first, and its form."""
    return [(layer, forms[layer]) for layer in dict.fromkeys(alike(forms)) if layer is not None]
