"""The processes of a routed service under Ray Serve, and what its engines hold."""

import os

import httpx


def replicas(app: str, deployment: str) -> dict[str, int]:
    """Process ids of a deployment's replicas that run, by their actors' names."""
    import ray

    found = dict[str, int]()
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["name"].startswith(f"SERVE_REPLICA::{app}#{deployment}#"):
            try:
                handle = ray.get_actor(actor["name"], namespace="serve")
                found[actor["name"]] = ray.get(handle.__ray_call__.remote(lambda _: os.getpid()), timeout=20)
            except (ValueError, ray.exceptions.RayError):  # it ends just now, or is frozen
                continue
    return found


def pages_used(url: str) -> float:
    (line,) = [
        line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{")
    ]
    return float(line.rsplit(" ", 1)[1])
