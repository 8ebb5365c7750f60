"""The catalog's other services, as toys of their shapes: each gets Ready and answers everybody."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ray_configs.catalog import gemma_7b_it_v5e, llama3_8b_v5e, local, spmd_175b, stable_diffusion_v4
from ray_configs.cloud import HUGGING_FACE_TOKEN
from ray_configs.service import Service
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, Object, deployed, with_fields
from tests.kubernetes.services.traffic import Model, count
from tests.kubernetes.services.waiting import SERVICE_S

SD_REQ = Path(__file__).parents[3] / "clients" / "sd_req.py"
WHOLE_SLICES = 8
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * SERVICE_S)]


def in_its_own_namespace(service: Service) -> Service:
    return with_fields(service, namespace=f"{service.name}-test")


def hugging_face_token(service: Service) -> Object:
    metadata = {"name": HUGGING_FACE_TOKEN.secret, "namespace": service.namespace}
    data = {HUGGING_FACE_TOKEN.key: "of-the-test"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def served_name(running: Deployed, service: Service) -> str:
    assert "is ready" in running.status
    return service.applications[0].config.served_name


@pytest.mark.parametrize("module", [llama3_8b_v5e, gemma_7b_it_v5e, local], ids=lambda module: module.service.name)
def test_a_language_model(cluster: Cluster, module: ModuleType) -> None:
    service = in_its_own_namespace(module.service)
    with deployed(cluster, service, before=[hugging_face_token(service)]) as running:
        running.wait_until_ready()
        running.wait_for_replicas(service.applications[0].config.min_replicas)
        model = Model(running.url, served_name(running, service))
        assert count(400, model.complete, model.stream) == {"200": 400}


def test_pictures(cluster: Cluster, tmp_path: Path) -> None:
    service = in_its_own_namespace(stable_diffusion_v4.service)
    with deployed(cluster, service) as running:
        running.wait_until_ready()
        assert served_name(running, service)
        command = [sys.executable, str(SD_REQ), "--url", running.url, "--save_pictures", "--num_requests", "400"]
        output = tmp_path / "diffusion_results.png"
        said = subprocess.run(
            [*command, "--batch_size", "8", "--output", str(output)], capture_output=True, text=True, timeout=SERVICE_S
        )
        assert said.returncode == 0, said.stdout + said.stderr
        assert output.exists()


def test_slices_of_eight_hosts(cluster: Cluster) -> None:
    """Seven of eight Pods of each have no proxy; nobody is sent there."""
    service = in_its_own_namespace(spmd_175b.service)
    with deployed(cluster, service, hosts_per_slice=WHOLE_SLICES) as running:
        running.wait_until_ready()
        running.wait_for_replicas(2)
        assert {name: len(pods) for name, pods in running.slices.items()} == dict.fromkeys(running.slices, WHOLE_SLICES)
        assert "2 of 2 slices serve" in running.status
        model = Model(running.url, served_name(running, service))
        assert count(400, model.complete, model.stream) == {"200": 400}
        assert len(running.endpoints) == 5  # the head, and where processes of Serve run: two replicas and two routers
