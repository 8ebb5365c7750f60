"""Cells that are killed at random moments: python killed_cell.py FOLDER ROUNDS SEED.

Each round is a process of its own (a fork, for what it imports takes longer than what it does): it opens the state and
publishes, updates and unpublishes until it is killed. What it was answered goes through a pipe first. Then the state
is read as the next cell would read it: it must be what was acknowledged, with or without the one call that was cut
short. Prints a line of JSON.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time

from apps.cell.admin import Admin
from apps.cell.desired.state import Published
from apps.cell.desired.store import Store
from apps.serving.files import Holder
from ray_configs.cell import CellConfig

NAMES = [f"/sax/test/{letter}" for letter in "abcde"]
Models = dict[str, tuple[int, dict[str, int]]]


def opened(folder: str) -> Admin:
    store = Store(folder, "test")
    admin = Admin(CellConfig(state_uri=folder), store, store.lease(Holder("this cluster", "here")))
    admin.open()
    return admin


def call_of(chance: random.Random, models: Models) -> tuple[str, dict[str, object]]:
    name = chance.choice(NAMES)
    if name not in models:
        return "publish", {"model": name, "model_path": "catalog.local", "replicas": chance.randint(0, 9)}
    if chance.random() < 0.4:
        return "unpublish", {"model": name}
    return "update", {
        "model": name,
        "replicas": chance.randint(0, 9),
        "overrides": {"max_batch_size": chance.randint(1, 9)},
    }


def after(models: Models, method: str, body: dict[str, object]) -> Models:
    """What the state must be when that call was answered."""
    rest = {name: model for name, model in models.items() if name != body["model"]}
    if method == "unpublish":
        return rest
    overrides = body.get("overrides", {})
    return rest | {body["model"]: (body["replicas"], overrides)}


def plain(models: dict[str, Published]) -> Models:
    return {name: (model.replicas, model.overrides) for name, model in models.items()}


def work(folder: str, seed: int, out: int) -> None:
    """Never returns. Writes each call before it is made, and a line when it is answered."""
    admin, chance = opened(folder), random.Random(seed)
    os.write(out, b"open\n")
    while True:
        method, body = call_of(chance, plain(admin.state.models))
        os.write(out, (json.dumps([method, body]) + "\n").encode())
        getattr(admin, method)(None, body)
        os.write(out, b"ok\n")


def main(folder: str, rounds: int, seed: int) -> None:
    chance, expected = random.Random(seed), Models()
    killed_in_call = answered = kept_unanswered = 0
    for round in range(rounds):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with contextlib.suppress(BrokenPipeError):
                work(folder, seed * 1000 + round, write)
            os._exit(1)
        os.close(write)
        with open(read, "rb") as pipe:
            # After some lines, not some time: on a busy machine nothing might be answered yet.
            lines = [pipe.readline().strip() for _ in range(chance.randint(0, 12))]
            time.sleep(chance.uniform(0, 0.003))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            lines += pipe.read().splitlines()
        open_call = None
        for line in lines:
            if line == b"ok":
                expected, open_call = after(expected, *open_call), None
                answered += 1
            elif line != b"open":
                open_call = json.loads(line)
        found = plain(opened(folder).state.models)
        if open_call is not None:
            killed_in_call += 1
            allowed = after(expected, *open_call)
            kept_unanswered += found == allowed != expected
            assert found in (expected, allowed), f"round {round}: {found}, expected {expected} or {allowed}"
            expected = found
        assert found == expected, f"round {round}: {found}, expected {expected}"
    print(
        json.dumps(
            {"answered": answered, "killed_in_call": killed_in_call, "kept_unanswered": kept_unanswered}
            | {"files": sorted(os.listdir(f"{folder}/test"))}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
