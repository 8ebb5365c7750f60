"""A cell whose keys are in the environment, in a Ray cluster of its own: python guarded_cell.py PORT FOLDER DIRECT.

DIRECT: 1 for HAProxy before the replicas, 0 for Serve's Python proxy. Prints a line when the cell answers, and stops at
the end of its input.
"""

import os
import sys

PORT, FOLDER, DIRECT = sys.argv[1:]
os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = DIRECT

import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.serve.config import HTTPOptions  # noqa: E402

from apps.cell import build  # noqa: E402
from apps.serving.ingress.direct_ingress import prefer_direct_ingress  # noqa: E402
from apps.serving.private_ray import start_ray, start_serve  # noqa: E402
from ray_configs.cell import CellConfig  # noqa: E402

prefer_direct_ingress()
start_ray(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, namespace="serve")
start_serve(http_options=HTTPOptions(host="127.0.0.1", port=int(PORT)))
serve.run(build(CellConfig(name="guarded", state_uri=FOLDER, admins="alice")), name="cell", route_prefix="/")
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
