"""Streams while replicas, hosts and whole slices are killed, stand still or are cut off, in an order that is drawn.

The oracle is the undisturbed answer, as in `podslice local --kill-slice`. The environment's HARM_MINUTES (3) and
HARM_SEED (1) say how long, and in which order.
"""

import os
import random
import shutil
import time
from itertools import groupby

import pytest

from kuberay.local.drill.streams import DrillCounts, Streams
from tests.kuberay.local.drill.harm import Victim, do_harm, hosts, of_hosts, of_process, processes_named
from tests.kuberay.local.local_runs import REPOSITORY, LocalRun, wait_until

MINUTES, SEED = float(os.environ.get("HARM_MINUTES", 3)), int(os.environ.get("HARM_SEED", 1))
BETWEEN_S = 20.0, 40.0
ENGINE = "ServeReplica:llm:LLMEngine"


def victims(run: LocalRun) -> list[Victim]:
    """Every engine, host of a slice and slice that there is just now."""
    found = [of_process(f"engine {pid}", pid) for pid in processes_named(run.process.pid, ENGINE)]
    containers = {name: pid for name, pid in sorted(hosts(run.process.pid).items()) if name.startswith("tpu-")}
    found += [of_hosts(f"host {name}", [pid]) for name, pid in containers.items()]
    for slice, names in groupby(containers, key=lambda name: name.rpartition("-")[0]):
        found.append(of_hosts(f"slice {slice}", [containers[name] for name in names]))
    return found


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="networks are cut by nft, as root")
def test_nothing_is_lost_whatever_happens_to_slices(local_run):
    run = local_run(str(REPOSITORY / "examples" / "spot_slices.py"), "--tiny")
    run.wait_for(r"ready after \d+ s", 900)
    counts, draw = DrillCounts(), random.Random(SEED)
    streams = Streams(run.url, "Meta-Llama-3-8B", None, counts)
    streams.record()
    streams.start()

    def say(event: str) -> None:
        told = f"{counts.answers} answers, {counts.lost} lost, {counts.wrong} wrong"
        print(time.strftime("%H:%M:%S"), f"{event} ({told}; longest pause {counts.longest_pause_s:.0f} s)", flush=True)

    ends = time.monotonic() + 60 * MINUTES
    while time.monotonic() < ends:
        time.sleep(draw.uniform(*BETWEEN_S))
        if there := victims(run):
            do_harm(draw, draw.choice(there), say)
    say("harm is over")
    streams.stop()
    wait_until(lambda: not streams.running, 1200, lambda: run.process.poll() is not None, run)
    say("all streams have ended")
    assert (counts.lost, counts.wrong, streams.failures) == (0, 0, [])
    wait_until(lambda: streams.pages_used() == 0, 120, lambda: False, run)
    wait_until(lambda: len(processes_named(run.process.pid, ENGINE)) == 2, 600, lambda: False, run)
    wait_until(lambda: run.answers(), 600, lambda: False, run)
    processes = run.processes()
    assert run.interrupt() == 0, run.output
    run.leaves_nothing(processes)
