"""A real Prometheus that scrapes what Ray says is there, and what it answers."""

import math
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port

PERIOD_S = 2
"""Between two scrapes, and two evaluations of a rule."""
missing = next((f"{name} is not installed" for name in ("prometheus", "promtool") if not shutil.which(name)), None)
"""Why these tests are skipped; None: they are not."""


class Prometheus:
    """Scrapes the Ray nodes in a service discovery file of Ray's, under a service's labels, and evaluates rules."""

    def __init__(self, folder: Path, nodes: Path, labels: dict[str, str], groups: list[dict[str, Any]]):
        self.url, self.began = f"http://127.0.0.1:{free_port()}", time.time()
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump({"groups": groups}))
        relabel: list[dict[str, Any]] = [{"target_label": name, "replacement": value} for name, value in labels.items()]
        # The dashboard's own port is on no Pod's list.
        relabel.append({"action": "drop", "source_labels": ["__address__"], "regex": ".*:44227"})
        scrape = {"job_name": "ray", "file_sd_configs": [{"files": [str(nodes)]}], "relabel_configs": relabel}
        config = {
            "global": {"scrape_interval": f"{PERIOD_S}s", "evaluation_interval": f"{PERIOD_S}s"},
            "rule_files": [str(rules)],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(240)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def get(self, path: str, **query: Any) -> Any:
        reply = httpx.get(f"{self.url}/api/v1/{path}", params=query, timeout=60, trust_env=False)
        assert reply.is_success, (query, reply.text)
        return reply.json()["data"]

    def history(self, expression: str, since: float | None = None) -> list[dict[str, str]]:
        """Labels of the series that the expression has had a number for, at any time since then, or the start."""
        began, now = since or self.began, time.time()
        step = max(PERIOD_S, (now - began) / 10_000)
        found = self.get("query_range", query=expression, start=began, end=now, step=step)["result"]
        return [series["metric"] for series in found if any(math.isfinite(float(v)) for _, v in series["values"])]
