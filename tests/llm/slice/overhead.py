"""What lockstep costs a step, measured on this machine: python tests/llm/slice/overhead.py [2 4 8]

1. Messages alone: hosts whose device does nothing but take its time. What a step takes longer than its device's time,
   over TCP (what the slice executor does), and over Ray actor calls (what it could do), hosts being processes here.
2. A model: what one process does with four devices, what two hosts of two do by themselves (the price of collectives
   over a network), and what they do in lockstep. The last less the one before is what the messages cost.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ["RAY_AUTH_MODE"] = "disabled"
sys.path.append(str(Path(__file__).parents[3]))

from apps.llm.engine.execute.layout_choice import choose
from apps.llm.engine.execute.local import LocalDevices
from apps.llm.engine.execute.readout import Launched
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Executor, ExecutorProvider, step_shapes
from apps.llm.engine.hosts.rank_workers import RankWorkers
from apps.llm.engine.hosts.wire import NO_DP_RANK, Listener, MessageKind, message
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig
from tests.llm.slice.processes import Processes
from tests.ports import free_port

STEPS = 400
DEVICE_S = 0.004  # of a decode step on a TPU, about
SHAPE = StepShape(64, 64, 256)  # 64 sequences of up to 8192 tokens
COLUMNS = 42  # of a step's samples


class Device:
    """Takes its time for one step after the other."""

    def __init__(self, step_s: float):
        self.step_s, self._free = step_s, 0.0

    def launch(self) -> float:
        self._free = max(self._free, time.perf_counter()) + self.step_s
        return self._free

    @staticmethod
    def wait(ready: float) -> None:
        if (left := ready - time.perf_counter()) > 0:
            time.sleep(left)


def plan() -> HostStep:
    """A decode step of a full batch, each sequence with 64 pages."""
    step = SHAPE.host()
    for row in range(SHAPE.seqs):
        step.add((0,), 2000, range(64), True, row=row, seed=row)
    return step


def milliseconds(launch: Callable[[], Any], read: Callable[[Any], Any], steps: int = STEPS) -> float:
    """Of a step, the next one launched before the last is read, as the engine does; the middle of five rounds."""
    rounds = []
    for _ in range(5):
        pending, began = launch(), time.perf_counter()
        for _ in range(steps // 5):
            following = launch()
            read(pending)
            pending = following
        rounds.append((time.perf_counter() - began) / (steps // 5) * 1e3)
        read(pending)
    return sorted(rounds)[2]


# -- messages alone ---------------------------------------------------------------------------------------------------


def tcp_host(port: int, secret: str, rank: int, step_s: float) -> None:
    from apps.llm.engine.hosts import worker

    class Samples:
        def __init__(self, ready: float):
            self.ready = ready

        def block_until_ready(self) -> None:
            Device.wait(self.ready)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            Device.wait(self.ready)
            return np.zeros((SHAPE.seqs, COLUMNS), np.int32)

    class Executor:
        max_pages, compiles_after_ready, programs_compiled = SHAPE.max_pages, 0, 0

        def __init__(self) -> None:
            self.device = Device(step_s)

        def launch(self, step: HostStep, constraints: None, readout: None) -> Launched:
            return Launched(Samples(self.device.launch()))

    connection = worker.Leader(("127.0.0.1", port), bytes.fromhex(secret)).connect(rank)
    worker.exit_with(connection)
    with contextlib.suppress(ConnectionError):
        worker.Worker(connection, rank, first=rank == 0).run_calls(Executor())


def over_tcp(count: int, step_s: float) -> float:
    listener = Listener("127.0.0.1")
    start = [str(listener.address[1]), listener.secret.hex()]
    processes = [
        subprocess.Popen([sys.executable, __file__, "host", *start, str(rank), str(step_s)]) for rank in range(count)
    ]
    connections = listener.accept([(rank, NO_DP_RANK) for rank in range(count)], 120, 60)
    hosts = RankWorkers(connections, range(count), 60)
    step = plan()

    def launch() -> None:
        used, content = step.trimmed()
        hosts.tell(message(MessageKind.STEP, (SHAPE.tokens, SHAPE.seqs, used, 0), content))

    found = milliseconds(launch, lambda _: hosts.tokens())
    hosts.close()
    for process in processes:
        process.wait(20)
    listener.close()
    return found


def over_ray(count: int, step_s: float) -> float:
    import ray

    @ray.remote(num_cpus=0, max_concurrency=2)
    class Host:
        def __init__(self) -> None:
            self.device = Device(step_s)

        def step(self, content: bytes) -> bytes:
            Device.wait(self.device.launch())
            return bytes(SHAPE.seqs * COLUMNS * 4)

    actors = [Host.remote() for _ in range(count)]
    step = plan()
    ray.get([actor.step.remote(b"") for actor in actors])

    def launch() -> Any:
        content = step.trimmed()[1]
        return [actor.step.remote(content) for actor in actors]

    found = milliseconds(launch, lambda launched: ray.get(launched[0]))
    for actor in actors:
        ray.kill(actor)
    return found


def messages(counts: list[int]) -> None:
    import ray

    local = Device(DEVICE_S)
    base = milliseconds(local.launch, Device.wait)
    instant = Device(0.0)
    idle = milliseconds(instant.launch, Device.wait)
    size = len(plan().trimmed()[1]) / 1024
    print(f"messages alone, {size:.0f} KiB a step; ms added to a step of {DEVICE_S * 1e3:.0f} ms")
    print("(in brackets: ms of a step whose device takes no time, the most steps that can be told)")
    print(f"{'hosts':>6} {'TCP':>16} {'Ray actor calls':>16}")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    for count in counts:
        row = []
        for way in (over_tcp, over_ray):
            row.append(f"{way(count, DEVICE_S) - base:.3f} ({way(count, 0.0) - idle:.3f})")
        print(f"{count:>6} {row[0]:>16} {row[1]:>16}", flush=True)
    ray.shutdown()


# -- a model ----------------------------------------------------------------------------------------------------------


def configuration(tensor_parallel: int | None) -> EngineConfig:
    return EngineConfig(
        tiny=True,
        max_batch_size=8,
        max_step_tokens=16,
        max_model_len=256,
        pages=64,
        compile_cache=None,
        tensor_parallel=tensor_parallel,
    )


def model_step(config: EngineConfig) -> HostStep:
    step = step_shapes(config, 256)[0].host()
    for row in range(8):
        step.add((0,), 60, (row * 2 + 1, row * 2 + 2), True, row=row, seed=row)
    return step


def loaded(config: EngineConfig, place: ExecutorProvider) -> Executor:
    model = Model.open(config)
    layout = choose(config, model.arch, place.devices(config), None)
    (executor,) = place.load(config, model.at_size(config, layout.tensor), layout)
    executor.make_cache([])
    executor.warm_up()
    return executor


def by_itself(coordinator: str, rank: int, hosts: int) -> float:
    """The model's steps on this process's devices, or on those of several which all do this, without a message."""
    from apps.arrays import distributed

    if hosts > 1:
        distributed.join(coordinator, rank, hosts)
    config, place = configuration(4), LocalDevices()
    executor = loaded(config, place)
    step = model_step(config)
    return milliseconds(lambda: executor.launch(step), executor.read)


def alone(hosts: int) -> float:
    coordinator, devices = f"127.0.0.1:{free_port()}", 4 // hosts
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    commands = [[sys.executable, __file__, "alone", coordinator, str(rank), str(hosts)] for rank in range(hosts)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for command in commands
    ]
    printed = [process.communicate()[0] for process in running]
    return json.loads(printed[0].splitlines()[-1])


def in_lockstep(hosts: int) -> float:
    config, place = configuration(None), Processes(hosts, 4 // hosts)
    executor = loaded(config, place)
    step = model_step(config)
    found = milliseconds(lambda: executor.launch(step), executor.read)
    executor.close()
    return found


def main() -> None:
    if sys.argv[1:2] == ["host"]:
        tcp_host(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    elif sys.argv[1:2] == ["alone"]:
        print("\n" + json.dumps(by_itself(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))), flush=True)
        os._exit(0)
    else:
        messages([int(count) for count in sys.argv[1:]] or [2, 4, 8])
        print("\na tiny model on four devices; ms of a step")
        print(f"one process {alone(1):.2f}, two hosts by themselves {alone(2):.2f}, in lockstep {in_lockstep(2):.2f}")


if __name__ == "__main__":
    main()
