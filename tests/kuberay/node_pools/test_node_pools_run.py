"""The scripts as bash runs them: values stay values, a second run makes nothing, deletion spares what is shared."""

import pytest

from kuberay.node_pools import commands, teardown
from ray_configs.capacity import Reservation
from ray_configs.catalog import gemma_7b_it_v5e, llama3_8b_v5e, spmd_175b, whole_graph
from ray_configs.cloud import Bucket, GoogleCloud, SecretKey
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

NASTY = 'it\'s "a" $(touch pwned) `touch pwned` ${HOME} \\ ;&|<>\n# x'


def nasty(**more) -> Service:
    """Also where the config's own rules would refuse it, which are not what keeps a value from being code."""
    app = Application(
        config=LLMConfig(slice="v5e:4x4", min_replicas=1),
        capacity=Reservation(name=NASTY, project=NASTY),
        image=f"us-docker.pkg.dev/{NASTY}/podslice/$(touch pwned):0.1.0",
    )
    cloud = GoogleCloud(location=NASTY, zones=(NASTY,), cluster_version=NASTY, head_machine_type=NASTY)
    fields = {
        "name": "chat",
        "applications": (app,),
        "cloud": cloud.model_copy(update={"project": NASTY}),
        "bucket": Bucket(mount=None).model_copy(update={"name": "b'\" $(touch pwned)"}),
        "hugging_face_token": SecretKey(secret=NASTY, key="KEY $(touch pwned)"),
        "namespace": "models",
    }
    return Service(**(fields | more))


def test_values_of_the_config_are_never_code(run, tmp_path) -> None:
    ran = run(commands(nasty()), HF_TOKEN=NASTY)
    assert ran.status == 0, ran.said
    assert not (tmp_path / "pwned").exists()
    assert ran.project == NASTY
    pool = ran.one("container node-pools create").flags
    assert (pool["location"], pool["node-locations"]) == (NASTY, NASTY)
    assert pool["reservation"] == f"projects/{NASTY}/reservations/{NASTY}"
    cluster = ran.one("container clusters create").flags
    assert (cluster["cluster-version"], cluster["machine-type"]) == (NASTY, NASTY)
    assert cluster["workload-pool"] == f"{NASTY}.svc.id.goog"
    assert ran.one("storage buckets create").words.endswith("gs://b'\" $(touch pwned)")
    secret = ran.one("create secret generic")
    assert secret.arguments[3] == NASTY
    assert secret.flags["from-file"].startswith("KEY $(touch pwned)=")
    assert ran.secrets == [NASTY]
    assert ran.one("create namespace models")
    member = ran.one("iam service-accounts add-iam-policy-binding").flags["member"]
    assert member == f"serviceAccount:{NASTY}.svc.id.goog[models/podslice]"


def test_values_of_the_config_are_never_code_when_deleting(run, tmp_path) -> None:
    ran = run(teardown(nasty()), DELETE_BUCKET="yes")
    assert ran.status == 0, ran.said
    assert not (tmp_path / "pwned").exists()
    assert ran.one("container node-pools delete chat-v5e-4x4-0").flags["location"] == NASTY
    assert ran.one("storage rm").words.endswith("gs://b'\" $(touch pwned)")


def test_a_second_run_makes_nothing(run) -> None:
    ran = run(commands(whole_graph.service), found=True)
    assert ran.status == 0, ran.said
    changing = {call.words for call in ran.calls if not {"describe", "get"} & set(call.arguments)}
    assert {words.split(" gs://")[0].split(" podslice")[0] for words in changing} == {
        "services enable "
        + " ".join(
            f"{name}.googleapis.com"
            for name in ("container", "compute", "iam", "storage", "artifactregistry", "cloudbuild", "tpu")
        ),
        "container clusters get-credentials",
        "storage buckets add-iam-policy-binding",
        "iam service-accounts add-iam-policy-binding",
        "artifacts repositories add-iam-policy-binding",
    }


@pytest.mark.parametrize("script", [commands, teardown])
def test_a_script_without_its_project_calls_nothing(run, script) -> None:
    """gcloud would take PROJECT_ID for a project of that name, and fail at one thing after another."""
    ran = run(script(gemma_7b_it_v5e.service), project="PROJECT_ID")
    assert (ran.status, ran.calls) == (2, []) and "--project ID" in ran.said


def test_a_failed_command_ends_the_script(run) -> None:
    ran = run(commands(spmd_175b.service), FAILS="clusters create")
    assert ran.status == 9
    assert ran.calls[-1].words == "container clusters create saxml"


def test_a_secret_that_is_not_in_the_environment_is_asked_for(run) -> None:
    ran = run(commands(llama3_8b_v5e.service), stdin="typed\n")
    assert ran.secrets == ["typed"]
    assert run(commands(llama3_8b_v5e.service)).status != 0  # nobody there to answer


def test_two_entries_of_one_secret_are_made_together(run) -> None:
    keys = {"hugging_face_token": SecretKey(secret="all", key="HF"), "api_keys": SecretKey(secret="all", key="API")}
    ran = run(commands(gemma_7b_it_v5e.service.model_copy(update=keys)), HF_TOKEN="t", PODSLICE_API_KEYS="a,b")
    assert len(ran.made("create secret")) == 1
    assert ran.secrets == ["t", "a,b"]


def test_images_are_built_once_and_only_the_projects_own(run) -> None:
    build = run(commands(spmd_175b.service)).one("builds submit .")
    assert build.flags == {"config": "kuberay/image/cloudbuild.yaml"}
    assert not run(commands(nasty())).made("builds submit")


def test_pools_come_last_and_go_first(run) -> None:
    made = run(commands(gemma_7b_it_v5e.service))
    assert made.calls[-1].words == "container node-pools create gemma-7b-it-v5e-2x4-8t"
    gone = run(teardown(gemma_7b_it_v5e.service), DELETE_BUCKET="yes")
    deletions = [call.words for call in gone.calls if {"delete", "rm"} & set(call.arguments)]
    assert deletions == [
        "container node-pools delete gemma-7b-it-v5e-2x4-8t",
        "container clusters delete podslice",
        "iam service-accounts delete podslice@a-project.iam.gserviceaccount.com",
        "artifacts repositories delete podslice",
        "storage rm gs://BUCKET_NAME",
    ]


def test_deletion_keeps_the_bucket_unless_told(run) -> None:
    ran = run(teardown(gemma_7b_it_v5e.service))
    assert not ran.made("storage rm")
    assert "gs://BUCKET_NAME stays" in ran.said


def test_deletion_leaves_a_cluster_that_others_use(run) -> None:
    ran = run(teardown(gemma_7b_it_v5e.service), other_pools="theirs", DELETE_BUCKET="yes")
    assert ran.status == 0
    assert [call.words for call in ran.calls if {"delete", "rm"} & set(call.arguments)] == [
        "container node-pools delete gemma-7b-it-v5e-2x4-8t"
    ]


@pytest.mark.parametrize(("listed", "list_status", "status"), [("", 0, 0), ("", 1, 1)])
def test_deletion_of_what_is_gone_is_quiet_but_blindness_is_not(run, listed, list_status, status) -> None:
    ran = run(teardown(gemma_7b_it_v5e.service), listed=listed, list_status=list_status)
    assert ran.status == status
    assert not [call for call in ran.calls if "delete" in call.arguments]


def test_deletion_of_a_workload_policy(run) -> None:
    app = Application(config=LLMConfig(slice="7x:2x2x2"))
    service = Service(name="chat", applications=(app,), cloud=GoogleCloud(location="us-east5-b"))
    policy = run(teardown(service)).one("compute resource-policies delete chat-7x-2x2x2")
    assert policy.flags == {"region": "us-east5"}
