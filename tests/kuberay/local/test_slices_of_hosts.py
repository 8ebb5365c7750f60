"""A replica on several hosts, as on GKE: Saxml's test model on two slices, one of which loses a host."""

import pytest


@pytest.mark.long
def test_two_slices_of_two_hosts_answer_and_survive(local_run):
    run = local_run("ray_configs.catalog.spmd_175b", "--tiny", "--hosts-per-slice", "2")
    assert run.wait_for(r"slices of v5e:2x4:4t \(2 hosts, 8 chips\) instead of v5e:4x8 \(8 hosts, 32 chips\)")
    run.wait_for(r"ready after \d+ s")
    assert "Ray sees 8 hosts and a head with GKE's labels and resources" in run.output
    assert "did not start" not in run.output
    assert run.ask().json()["response"]
    chat = {"model": "/sax/test/spmd", "prompt": "Hello", "max_tokens": 2}
    assert run.post("/v1/completions", chat).json()["choices"][0]["finish_reason"] == "length"

    killer = local_run(run.config, "--kill-host", "1:1", port=run.port)
    assert killer.process.wait(240) == 0
    run.wait_for("host tpu-v5e-2x4-4t-1-1 was killed; its whole slice of 2 hosts is recreated")
    run.wait_for("slice tpu-v5e-2x4-4t-1 is up again")
    run.wait_for(r"llm UNHEALTHY[^\n]*\n(.*\n)*?[^\n]*llm RUNNING: 4 replicas wanted; 4 RUNNING")  # two of them routers
    assert all(run.ask().status_code == 200 for _ in range(4))

    processes = run.processes()
    assert run.interrupt() == 0
    run.leaves_nothing(processes)
