"""A cell: models are published, updated and unpublished over HTTP while it runs, each onto its own slices.

serve run apps.cell:app                      # a cell on this machine
serve run apps.cell:build name=prod state_uri=gs://BUCKET/cell

The life of a publish: a dialect (`http/saxml.py`) reads the call. The admin (`admin.py`), which owns the desired state,
checks it against the registry and writes the new state (`store.py`) before it answers. The reconcile loop
(`reconcile.py`) compares the desired state with what Ray Serve runs (`serve_apps.py`) and asks Serve for the
difference: one Serve application of engines for each published model. Its text is made in the front (`server.py`,
`apps/cell/words.py`), which gives the tokens to those engines.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `app` and `build` lazily, so that the state can be read and tested without Ray."""
    if name in ("app", "build"):
        from apps.cell.server import build
        from apps.serving.ingress.direct_ingress import prefer_direct_ingress
        from apps.serving.shutdown import finish_requests_first
        from ray_configs.cell import CellConfig

        prefer_direct_ingress()  # before `serve run` starts Ray
        finish_requests_first()
        return build if name == "build" else build(CellConfig())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
