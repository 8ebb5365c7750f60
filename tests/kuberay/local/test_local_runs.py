"""Real runs: raylets, chips that are CPU devices, Serve, HAProxy, and deaths of all kinds.

Runs of several hosts a slice are in test_slices_of_hosts.py.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kuberay.local.local_runs import alive, wait_until

LOCAL = "ray_configs.catalog.local"
SMALL = "max_batch_size=4, max_step_tokens=8"


def in_shared_memory(processes: set[int]) -> set[str]:
    """Files there that these have mapped. (Other tests' clusters come and go meanwhile.)"""
    mapped = (Path(f"/proc/{pid}/maps") for pid in processes)
    lines = (line for maps in mapped if maps.exists() for line in maps.read_text().splitlines())
    return {line[line.index("/dev/shm/") :].removesuffix(" (deleted)") for line in lines if "/dev/shm/" in line}


@pytest.mark.slow
def test_two_at_once_answer_and_ctrl_c_leaves_nothing(local_run, config_file):
    one = local_run(config_file(SMALL, "one"))
    two = local_run(config_file(f"model='nobody/tiny', slice='v5e:2x2', {SMALL}", "two"), "--tiny")
    for run in (one, two):
        run.wait_for(r"ready after \d+ s")
        assert run.ask().json()["response"]
    assert "Ray sees 1 host and a head with GKE's labels and resources" in two.output
    assert "instead of nobody/tiny" in two.output and "4 JAX CPU devices for chips" in two.output

    # A second one on the same port says so; and a wish for a host that is not there is refused where it runs.
    taken = local_run(one.config, port=one.port)
    assert taken.process.wait(240) == 2 and f"a service runs on port {one.port} already" in taken.output
    wrong = local_run(one.config, "--kill-host", "7:0", port=one.port)
    assert wrong.process.wait(240) == 0
    one.wait_for("'7:0' must be SLICE:HOST")

    # The host with the chips dies; its slice comes back, and answers.
    killer = local_run(two.config, "--kill-host", "0:0", port=two.port)
    assert killer.process.wait(240) == 0 and f"asked the run on port {two.port}" in killer.output
    two.wait_for("host tpu-v5e-2x2-0-0 was killed; it is recreated")
    two.wait_for("slice tpu-v5e-2x2-0 is up again")
    wait_until(two.answers, 120, lambda: two.process.poll() is not None, two)
    assert one.ask().json()["response"]

    # Ctrl-C, and the terminal that closes: everything goes, files too.
    for run, number in ((one, signal.SIGINT), (two, signal.SIGHUP)):
        processes = run.processes()
        shared = in_shared_memory(processes)
        assert len(processes) > 10 and shared
        assert run.interrupt(number) == 0, run.output
        run.leaves_nothing(processes)
        assert not [path for path in shared if Path(path).exists()]


@pytest.mark.slow
def test_a_crash_of_the_supervisor_leaves_no_process(local_run):
    run = local_run(LOCAL)
    run.wait_for("CPU worker 0 cpu-0: 1 of 1 hosts up|Ray sees")
    processes = run.processes()
    run.process.kill()
    wait_until(lambda: not [pid for pid in processes if alive(pid)], 60)
    # What it could not remove, the next one on the port does.
    after = local_run(LOCAL, port=run.port)
    after.wait_for("head: starting")
    assert after.interrupt() == 130
    assert not list(Path("/tmp").glob(f"podslice-{os.getuid()}/{run.port}*"))


@pytest.mark.slow
def test_ctrl_c_while_it_starts(local_run):
    run = local_run(LOCAL)
    run.wait_for("head: starting")
    time.sleep(1)
    processes = run.processes()
    assert run.interrupt() == 130
    run.leaves_nothing(processes)


@pytest.mark.slow
def test_a_deployment_that_fails_is_told_and_ends_it(local_run, config_file):
    run = local_run(config_file("model='/no/such/folder'"))
    run.wait_for("failed to deploy")
    assert run.process.wait(240) == 1
    assert "/no/such/folder" in run.output and "stopped after" in run.output
