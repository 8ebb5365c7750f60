"""A replica's multi-host TPU slice: one actor on each host, and the executor over them.

    SliceHosts.start(config)   reserves a slice and starts an actor on each of its hosts
    Engine.load(config, hosts.workers) loads the same engine as on a single host; only the executor differs
    await hosts.check()        raises if a host is dead or hangs
    hosts.close()              gives the slice back

The replica's own process has no chip and needs none. The slice fails as a whole: as soon as one host dies, hangs or
fails, every open request gets an error, all hosts are killed and the slice is given back. Serve then starts a new
replica, which takes any free slice. If a host is being drained, the slice is given up too, but requests that have begun
may finish first. Nothing outlives the replica, however it ends: its actor owns the placement groups and the host
actors, and each host's process exits when its connection to the replica closes.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from apps.llm.slice_reservation import ReservedSlice, reserve
from apps.serving import private_ray, progress
from apps.serving.machines import notices
from apps.serving.machines.leaving import LeavingNodes
from ray_configs.llm import LLMConfig
from ray_configs.tpu import TpuSlice

if TYPE_CHECKING:
    from apps.llm.engine.hosts.lockstep import SliceWorkers
    from apps.llm.engines.vllm.hosts import VllmOrders, VllmSlice
    from apps.llm.text import Engine

log = logging.getLogger("podslice")

ACTORS_S = 300
"""Timeout for the actors of a reserved slice to start; the hosts have pulled the images by then."""
SILENCE_S = 10
"""A host that answers no ping for this long counts as hanging."""


def load_engine(config: LLMConfig) -> "tuple[Engine, SliceHosts | None]":
    """Load the config's engine on this process's devices, or on those of a multi-host slice.

    Call it through `apps.serving.replica.host`, because it imports JAX.
    """
    from apps.llm.text import Engine

    hosts = SliceHosts.start(config) if config.spans_hosts else None
    try:
        return Engine.load(config, None if hosts is None else hosts.workers, config.slice), hosts
    except BaseException:
        if hosts is not None:
            hosts.close()
        raise


class SliceHost:
    """The actor on one host. Its main thread only answers calls; steps run in other threads."""

    def meeting_point(self) -> str:
        """The coordinator address for the hosts' JAX processes; called on host 0."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def work(
        self, leader: tuple[str, int], secret: bytes, config: LLMConfig, coordinator: str, rank: int, hosts: int
    ) -> str:
        """Start loading, and then running the calls of the engine at `leader`. Returns TPU_WORKER_ID, to be checked."""
        logging.basicConfig(format=f"host {rank}: %(message)s")
        log.setLevel(logging.INFO)
        # Must be set before jax is imported; the emulation's hosts have it set already.
        os.environ.setdefault("JAX_PLATFORMS", "tpu,cpu")
        from apps.llm.engine.hosts import worker

        engine = worker.Leader(leader, secret)
        notices.pass_on()
        connection = engine.connect(rank)
        worker.exit_with(connection)
        threading.Thread(
            target=worker.work,
            args=(engine, connection, config, coordinator, rank, hosts),
            name="podslice-steps",
            daemon=True,
        ).start()
        return os.environ.get("TPU_WORKER_ID", "")

    def start_vllm(self, config: LLMConfig, orders: "VllmOrders", rank: int) -> str:
        """Start this host's part of vLLM; what it says is in this actor's log. Returns as `work`."""
        logging.basicConfig(format=f"host {rank}: %(message)s")
        log.setLevel(logging.INFO)
        notices.pass_on()
        self._vllm = orders.child(config, rank)
        return os.environ.get("TPU_WORKER_ID", "")

    def node(self) -> str:
        """The host's Ray node id."""
        return private_ray.own_node()

    def ping(self) -> int:
        """Raises RuntimeError when vLLM has ended here."""
        if (vllm := getattr(self, "_vllm", None)) is not None and (how := vllm.ended) is not None:
            raise RuntimeError(how)
        return os.getpid()


class SliceHosts:
    """All hosts of one slice, for one replica."""

    def __init__(self, reservation: ReservedSlice, actors: list[Any]):
        self.slice_name = reservation.slice_name
        self._reservation, self._actors = reservation, actors
        self._slice: SliceWorkers | VllmSlice | None = None  # set once the hosts have connected
        self.leaving: LeavingNodes | None = None  # set once they load
        self._closing = threading.Lock()

    @classmethod
    def start(cls, config: LLMConfig) -> "SliceHosts":
        """Reserve a slice and start its actors. Blocks for minutes, so do not call it in an event loop.

        Raises:
            RuntimeError, TimeoutError: a host did not start; the slice is given back.
        """
        wanted = config.slice
        assert wanted is not None  # it spans hosts
        reservation = reserve(wanted, _owner())
        log.info("reserved slice %s: %s", reservation.slice_name, wanted)
        hosts = cls(reservation, [])
        try:
            hosts._start_actors(wanted, config)
        except BaseException:
            hosts.close()
            raise
        return hosts

    def _start_actors(self, wanted: TpuSlice, config: LLMConfig) -> None:
        host = ray.remote(num_cpus=0, resources={"TPU": wanted.chips_per_host}, max_restarts=0)(SliceHost)
        self._actors = [
            host.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._reservation.group, placement_group_bundle_index=i
                )
            ).remote()
            for i in range(wanted.hosts)
        ]
        coordinator = ray.get(self._actors[0].meeting_point.remote(), timeout=ACTORS_S)
        if config.engine == "vllm":
            self._start_vllm(wanted, config, coordinator)
        else:
            self._start_workers(wanted, config, coordinator)
        nodes = ray.get([actor.node.remote() for actor in self._actors], timeout=ACTORS_S)
        self.leaving = LeavingNodes(nodes)

    def _start_vllm(self, wanted: TpuSlice, config: LLMConfig, coordinator: str) -> None:
        from apps.llm.engines.vllm.hosts import VllmOrders, VllmSlice

        api = ray.get(self._actors[0].meeting_point.remote(), timeout=ACTORS_S)
        orders = VllmOrders.of(config, wanted, coordinator, api, ray.util.get_node_ip_address())
        begun = [actor.start_vllm.remote(config, orders, i) for i, actor in enumerate(self._actors)]
        self._in_order(ray.get(begun, timeout=ACTORS_S))
        self._slice = VllmSlice(orders, self._release, self._lost_host)

    def _lost_host(self) -> str | None:
        """Which host is dead or silent, and how. Blocks, at most for `SILENCE_S` a host."""
        for rank, actor in enumerate(self._actors):
            try:
                ray.get(actor.ping.remote(), timeout=SILENCE_S)
            except ray.exceptions.GetTimeoutError:
                return f"host {rank} has not answered for {SILENCE_S} s"
            except Exception as error:
                return f"host {rank} has died ({progress.reason(error)})"
        return None

    def _start_workers(self, wanted: TpuSlice, config: LLMConfig, coordinator: str) -> None:
        from apps.llm.engine.hosts.lockstep import SliceWorkers
        from apps.llm.engine.hosts.wire import Listener

        listener = Listener(ray.util.get_node_ip_address())
        try:
            orders = listener.address, listener.secret, config, coordinator
            begun = [actor.work.remote(*orders, i, wanted.hosts) for i, actor in enumerate(self._actors)]
            self._in_order(ray.get(begun, timeout=ACTORS_S))
            self._slice = SliceWorkers(listener, wanted.hosts, ACTORS_S, config.health_step_deadline_s, self._release)
        except BaseException:
            listener.close()
            raise

    def _in_order(self, workers: list[str]) -> None:
        """Raises RuntimeError unless each actor is on the host of its rank."""
        if workers != [str(i) for i in range(len(self._actors))]:
            raise RuntimeError(f"hosts of slice {self.slice_name} are out of order: TPU_WORKER_IDs are {workers}")

    @property
    def workers(self) -> "SliceWorkers | VllmSlice":
        """The provider for `Engine.load`."""
        assert self._slice is not None, "the hosts must connect before anything is loaded"
        return self._slice

    # -- health and end -----------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Ping all hosts at the same time.

        Raises:
            RuntimeError: a host is dead or silent, or the slice has failed before; open requests have already got
                their errors, because the engine is told first. Or a host is being drained; open requests may finish,
                but new ones must go elsewhere, because the slice is about to be lost.
        """
        if self.workers.failure is None:
            pings = [asyncio.ensure_future(_answer(actor)) for actor in self._actors]
            await asyncio.wait(pings, timeout=SILENCE_S)
            for rank, ping in enumerate(pings):
                if not ping.done():
                    ping.cancel()
                    self.workers.fail(f"host {rank} has not answered for {SILENCE_S} s")
                elif (error := ping.exception()) is not None:
                    self.workers.fail(f"host {rank} has died ({str(error).strip().splitlines()[0]})")
        if self.workers.failure is not None:
            raise RuntimeError(f"slice {self.slice_name}: {self.workers.failure}")
        if self.leaving is not None and (ranks := self.leaving.ranks):
            raise RuntimeError(f"slice {self.slice_name} is going away: its hosts {ranks} are being drained")

    def close(self) -> None:
        """Stop the hosts and give the slice back. Idempotent and thread-safe."""
        if self._slice is None:
            self._release()
        else:
            self._slice.close()

    def _release(self) -> None:
        if self.leaving is not None:
            self.leaving.close()
        with self._closing:
            for actor in self._actors:
                with contextlib.suppress(Exception):
                    ray.kill(actor)
            with contextlib.suppress(Exception):
                self._reservation.release()


async def _answer(actor: Any) -> int:
    return await actor.ping.remote()


def _owner() -> str:
    """The deployment that this replica belongs to: `SERVE_REPLICA::app#deployment#id` without the replica's own id.

    For an actor without a name, such as Ray Data's, its actor id, which it keeps through restarts."""
    context = ray.get_runtime_context()
    name = context.get_actor_name() or context.get_actor_id() or "script"
    return name.rsplit("#", 1)[0]
