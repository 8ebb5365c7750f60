"""What `check` says of cells: will their state last, can it be written, who may publish."""

from typing import Any

import pytest

from kuberay.check import Finding, check
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, Identity, SecretKey
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

KEYS = SecretKey(secret="keys", key="all")
MINE = Bucket(name="mine")
STATE = "gs://mine/cell"


def findings(cell: dict[str, Any], *others: Application, **service: Any) -> list[Finding]:
    apps = (Application(config=CellConfig(**{"state_uri": STATE} | cell)), *others)
    return check((), Service(**{"name": "mine", "applications": apps, "bucket": MINE} | service))


STATE_COMPLAINTS = {
    "in the Pod": (
        {"state_uri": "~/cell"},
        {"bucket": None},
        ("warning", "cell-state", "", "state_uri='gs://BUCKET_NAME/test', and Service(bucket=Bucket())"),
    ),
    "in the Pod, beside a bucket": (
        {"state_uri": "/gcsx/cell", "name": "prod"},
        {},
        ("warning", "cell-state", "", "state_uri='gs://mine/prod'"),
    ),
    "in a mount that refuses writes": (
        {"state_uri": "/gcs/cell"},
        {},
        ("error", "cell-state", "", "state_uri='gs://mine/test'"),
    ),
    "in a mount": (
        {"state_uri": "/gcs/cell"},
        {"bucket": Bucket(name="mine", read_only=False)},
        ("warning", "cell-state", "GCSFuse", "state_uri='gs://mine/test'"),
    ),
    "in a bucket that nobody gives rights in": (
        {},
        {"bucket": None},
        ("warning", "bucket-permission", "gs://mine/cell", "bucket=Bucket(name='mine', mount=None)"),
    ),
    "in another bucket than the service's": (
        {},
        {"bucket": Bucket(name="other")},
        ("warning", "bucket-permission", "gs://other", "state_uri='gs://other/test'"),
    ),
    "in a bucket that may only be read": (
        {},
        {"identity": Identity(bucket_role="roles/storage.objectViewer")},
        ("error", "bucket-permission", "", "bucket_role='roles/storage.objectUser'"),
    ),
}


@pytest.mark.parametrize(("cell", "service", "said"), STATE_COMPLAINTS.values(), ids=STATE_COMPLAINTS)
def test_where_the_state_is_kept(cell: dict[str, Any], service: dict[str, Any], said: tuple[str, ...]) -> None:
    (finding,) = findings(cell, **service)
    severity, rule, fact, instead = said
    assert (finding.severity, finding.rule) == (severity, rule)
    assert fact in finding.why and finding.instead.startswith(instead)


@pytest.mark.parametrize("place", [place for place, said in STATE_COMPLAINTS.items() if "bucket-permission" in said[2]])
def test_batches_are_kept_as_a_cells_state_is(place: str) -> None:
    _, service, (severity, rule, fact, instead) = STATE_COMPLAINTS[place]
    chat = Application(config=LLMConfig(batches="gs://mine/cell"), route_prefix="/chat")
    of_the_cell, of_batches = findings({}, chat, **service)
    assert (of_batches.severity, of_batches.rule) == (severity, rule) and fact in of_batches.why
    assert of_batches.instead.startswith(instead.replace("state_uri='gs://other/test'", "batches='gs://other/batches'"))
    assert of_batches.why != of_the_cell.why
    assert of_batches.where.endswith("identity.bucket_role" if severity == "error" else "config.batches")


def test_nothing_to_complain_of() -> None:
    assert findings({}, Application(config=LLMConfig(batches="gs://mine/batches"), route_prefix="/chat")) == []
    assert findings({}) == []
    assert findings({}, identity=Identity(service_account="writer")) == []
    assert findings({}, bucket=None, identity=Identity()) == [], "its rights were given by hand"
    public = Gateway(gateway_class="gke-l7-global-external-managed", certificate="tls")
    assert findings({"admins": "alice"}, api_keys=KEYS, exposure=public) == []


def test_a_cell_that_keeps_no_slice_still_needs_a_host() -> None:
    idle = {"slice": "v5e:2x2", "min_replicas": 0}
    (finding,) = findings(idle)
    assert (finding.rule, finding.severity) == ("cell-without-host", "warning")
    assert "v5e:2x2" in finding.why and finding.instead.startswith("min_replicas=1")
    chat = Application(config=LLMConfig(), route_prefix="/chat")
    assert findings(idle, chat) == [], "there is a worker anyway"
    assert findings({"slice": "v5e:4x8", "min_replicas": 0}) == [], "beside slices of several hosts there are CPU Pods"


@pytest.mark.parametrize(
    ("exposure", "severity", "reach"),
    [
        (LoadBalancer(), "warning", "VPC"),
        (Gateway(), "warning", "VPC"),
        (LoadBalancer(internal=False), "error", "internet"),
        (Gateway(gateway_class="gke-l7-global-external-managed"), "error", "internet"),
    ],
)
def test_whoever_reaches_a_cell_without_keys_may_publish(exposure: Any, severity: str, reach: str) -> None:
    (finding,) = (each for each in findings({}, exposure=exposure) if each.rule != "proxy-only-subnet")
    assert (finding.rule, finding.severity) == ("no-api-keys", severity)
    assert reach in finding.why and "/sax/test" in finding.why
    assert "SecretKey" in finding.instead and "CellConfig(admins=" in finding.instead


def test_every_key_may_publish_unless_there_are_admins() -> None:
    guarded = CellConfig(name="b", admins="alice", state_uri="gs://mine/b")
    (finding,) = findings({}, Application(config=guarded, name="b", route_prefix="/b"), api_keys=KEYS)
    assert (finding.rule, finding.severity) == ("cell-admins", "note")
    assert "/sax/test" in finding.why and "admins=('alice',)" in finding.instead
