"""The served demo model against plain diffusers, side by side: python tests/stable_diffusion/against_diffusers.py

Rounds alternate, on one machine, so that what else it does disturbs all alike: diffusers' own pipeline called in a
loop, one picture at a time; the same with eight pictures a call; the application over HTTP at concurrency 1 and 8.
The same checkpoint, size, steps, scheduler, guidance and type of numbers. Prints pictures a second, the ratios, and
what HTTP, Serve and PNG add to a picture at concurrency 1: the client's time less the engine's own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).parents[2]))

from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.ports import free_port, serve_ports

CONFIG = StableDiffusionConfig.demo()
PROMPTS = [
    f"a {color} {shape} on a white background" for color in ("red", "blue", "green") for shape in ("circle", "star")
]


def served(port: int) -> None:
    """The application behind Serve, until this process is told to end."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ |= serve_ports()
    from apps.stable_diffusion import app  # before Ray starts: it asks for direct ingress

    import ray  # isort: skip
    from ray import serve

    from apps.serving.private_ray import start_serve

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, namespace="serve")
    start_serve(http_options={"port": port})
    serve.run(app)
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


def diffusers_pipeline() -> Callable[[list[str]], None]:
    import torch
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(CONFIG.model, use_safetensors=True)
    pipeline.set_progress_bar_config(disable=True)

    def draw(prompts: list[str]) -> None:
        generators = [torch.Generator("cpu").manual_seed(i) for i in range(len(prompts))]
        pipeline(
            prompts,
            height=64,
            width=64,
            num_inference_steps=CONFIG.num_inference_steps,
            guidance_scale=CONFIG.guidance_scale,
            generator=generators,
        )

    return draw


def pictures_per_s(count: int, draw: Callable[[], None]) -> float:
    began = time.perf_counter()
    draw()
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=16, help="of each kind in a round (default %(default)s)")
    parser.add_argument("--served-on", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.served_on:
        return served(args.served_on)
    port = free_port()
    command = [sys.executable, __file__, "--served-on", str(port)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        while (line := server.stdout.readline()) and line.strip() != "ready":
            pass
        assert line, "the application did not start; its words are above"
        compare(f"http://127.0.0.1:{port}", args.rounds, args.pictures)
    finally:
        server.stdin.close()
        server.wait(240)
    return None


def compare(url: str, rounds: int, count: int) -> None:
    plain, client, added = diffusers_pipeline(), httpx.Client(base_url=url, timeout=300), []
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(count)]

    def ask(i: int) -> None:
        began = time.perf_counter()
        answer = client.get("/imagine", params={"prompt": prompts[i], "seed": i})
        answer.raise_for_status()
        spent = (time.perf_counter() - began) * 1e3
        timing = dict(part.strip().split(";dur=") for part in answer.headers["Server-Timing"].split(","))
        added.append(spent - float(timing["picture"]))

    def one_at_a_time() -> None:
        for prompt in prompts:
            plain([prompt])

    def eight_at_a_time() -> None:
        for i in range(0, count, 8):
            plain(prompts[i : i + 8])

    def over_http(clients: int) -> None:
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(count)))

    kinds: dict[str, Callable[[], None]] = {
        "diffusers, one at a time": one_at_a_time,
        "application, concurrency 1": lambda: over_http(1),
        "diffusers, eight at a time": eight_at_a_time,
        "application, concurrency 8": lambda: over_http(8),
    }
    for draw in kinds.values():
        draw()  # warm
    found: dict[str, list[float]] = {name: [] for name in kinds}
    alone: list[float] = []
    for i in range(rounds):
        for name, draw in kinds.items():
            added.clear()
            found[name].append(pictures_per_s(count, draw))
            if name == "application, concurrency 1":
                alone += added
        print(f"round {i + 1}: " + ", ".join(f"{name} {rates[-1]:.2f}" for name, rates in found.items()), flush=True)
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    print("\npictures/s, medians")
    for name, rate in middle.items():
        print(f"  {name:30} {rate:.2f}")
    one, app_one, eight, app_eight = middle.values()
    print(f"concurrency 1 over diffusers one at a time:  {app_one / one:.2f}")
    print(f"concurrency 8 over diffusers one at a time:  {app_eight / one:.2f}")
    print(f"concurrency 8 over diffusers eight at a time: {app_eight / eight:.2f}")
    print(f"added to a picture at concurrency 1: median {statistics.median(alone):.1f} ms")


if __name__ == "__main__":
    main()
