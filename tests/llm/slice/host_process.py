"""One host of a slice as a plain process, for tests without Ray: python host_process.py, its orders on stdin."""

import json
import os
import sys
import threading
from collections import Counter


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    from apps.llm.engine.execute import local, memory
    from apps.llm.engine.hosts import worker
    from apps.llm.engine.weights.checkpoint import Checkpoint
    from ray_configs.llm import EngineConfig

    rank, trouble = orders["rank"], orders["trouble"]
    read: Counter[str] = Counter()
    whole = Checkpoint.stored

    def counting(self, name, rows=slice(None), shape=None):
        found = whole(self, name, rows, shape)
        read[name] += found.nbytes
        return found

    Checkpoint.stored = counting
    if "free_memory" in orders:
        memory.free_host_memory = lambda instead: orders["free_memory"][rank]
    launch = local.LocalExecutor.launch
    steps = 0

    def launched(self, *arguments, **named):
        nonlocal steps
        steps += 1
        if steps == trouble.get("step") and rank == trouble["rank"]:
            if trouble["kind"] == "raise":
                raise RuntimeError("this host's chip is gone")
            if trouble["kind"] == "hang":
                threading.Event().wait()
            os._exit(1)
        return launch(self, *arguments, **named)

    local.LocalExecutor.launch = launched
    leader = worker.Leader(tuple(orders["leader"]), bytes.fromhex(orders["secret"]))
    connection = leader.connect(rank)
    worker.exit_with(connection)

    def told() -> None:
        sys.stdin.readline()  # the test asks what was read
        print(json.dumps(read), flush=True)

    threading.Thread(target=told, daemon=True).start()
    worker.work(leader, connection, EngineConfig(**orders["config"]), orders["coordinator"], rank, orders["hosts"])
    threading.Event().wait()  # the watch on the leader ends this process


if __name__ == "__main__":
    main()
