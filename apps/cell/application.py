"""What `serve run` starts: the cell's admin and the front that clients talk to."""

from ray import serve

from apps.cell.server import deployment
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
from ray_configs.cell import CellConfig

prefer_direct_ingress()


def build(config: CellConfig) -> serve.Application:
    """The application for one config. `serve run` and Serve's YAML pass their arguments through CellConfig."""
    return deployment(config)


app = build(CellConfig())
