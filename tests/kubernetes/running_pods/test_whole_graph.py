"""A language model, pictures and a cell in one Ray cluster, from one manifest: all three answer over one Service."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from ray_configs.catalog.whole_graph import llm
from ray_configs.catalog.whole_graph import service as whole_graph
from ray_configs.cloud import HUGGING_FACE_TOKEN
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, deployed, with_fields
from tests.kubernetes.services.traffic import Model, count
from tests.kubernetes.services.waiting import SERVICE_S, until

NAMESPACE, PUBLISHED = "graph-test", "/sax/test/small"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SD_REQ = Path(__file__).parents[3] / "clients" / "sd_req.py"
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    metadata = {"name": HUGGING_FACE_TOKEN.secret, "namespace": NAMESPACE}
    data = {HUGGING_FACE_TOKEN.key: "of-the-test"}
    before = [{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}]
    config = with_fields(whole_graph, namespace=NAMESPACE)
    # Of two hosts, the slices of the cell and of the language model would be of one shape.
    with deployed(cluster, config, hosts_per_slice=4, before=before) as running:
        running.wait_until_ready()
        yield running


def test_a_completion_at_the_root(service: Deployed) -> None:
    model = Model(service.url, llm.served_name)
    assert count(100, model.complete, model.stream) == {"200": 100}


def test_pictures_under_their_prefix(service: Deployed, tmp_path: Path) -> None:
    output = tmp_path / "diffusion_results.png"
    command = [
        sys.executable,
        str(SD_REQ),
        "--url",
        f"{service.url}/pictures",
        "--save_pictures",
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SERVICE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Image.open(output).size >= (64, 64)


def test_a_model_is_published_to_the_cell(service: Deployed) -> None:
    with httpx.Client(base_url=f"{service.url}/cell", timeout=SERVICE_S) as client:
        asked = {"model": PUBLISHED, "model_path": PATH, "checkpoint": "None", "replicas": 1}
        assert client.post("/publish", json=asked).status_code == 200

        def active() -> bool:
            answer = client.request("GET", "/listcell", content=json.dumps({"model": PUBLISHED}))
            return answer.json()["active_replicas"] == 1

        until(f"{PUBLISHED} is active", active, SERVICE_S, every_s=2)
        answer = client.post("/generate", json={"model": PUBLISHED, "query": "How many days are in a week?"})
        assert answer.status_code == 200 and answer.json()["generate_response"]
    assert "is ready" in service.status
