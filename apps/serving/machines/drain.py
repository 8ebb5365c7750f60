"""Drains nodes that are about to go, by a label, as `ray start` drains its own when Kubernetes ends its Pod.

python -m apps.serving.machines.drain SECONDS LABEL VALUE...   # of the cluster at RAY_ADDRESS
"""

import sys

import ray

from apps.serving import private_ray


def main(seconds: float, label: str, values: set[str]) -> None:
    ray.init(log_to_driver=False)
    for node in private_ray.nodes():
        if node.alive and node.labels.get(label) in values:
            private_ray.drain(node.id, "its Pod is told to stop", seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], set(sys.argv[3:]))
