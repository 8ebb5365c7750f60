"""The Serve config: the applications, each with its config as `args`."""

from typing import Any

from ray_configs.service import Service

SERVE_PORT = 8000


def serve_config(service: Service) -> dict[str, Any]:
    """The config for `serve run`, `serve deploy` and a RayService's serveConfigV2.

    `args` hold the fields that the config sets, without defaults; the typed builder at `import_path` reads them back.
    """
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},
        "logging_config": {
            "encoding": service.observability.log_encoding,
            "log_level": service.observability.log_level,
        },
        "applications": [
            {
                "name": app.serve_name,
                "import_path": app.config.import_path,
                "route_prefix": app.route_prefix,
                "args": app.config.model_dump(mode="json", exclude_unset=True),
            }
            for app in service.applications
        ],
    }
