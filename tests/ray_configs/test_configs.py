"""Every config class: unknown fields, frozenness, docstrings, JSON round trips; and every refusal, with its advice."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import ray_configs
from ray_configs.applications.callers import CallerConfig
from ray_configs.applications.kv_events import KVEvents
from ray_configs.base import Config
from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, GoogleCloud, Identity, MaintenanceWindow, SecretKey
from ray_configs.cluster.deployed import Head
from ray_configs.exposure import ClusterIP, Exposure, Gateway, GatewayRef, IdentityAwareProxy, LoadBalancer
from ray_configs.job import Job
from ray_configs.llm import STORED_RESPONSES, EngineConfig, LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.observability import Observability
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice
from ray_configs.upgrade import Incremental, NewCluster

SECRET = SecretKey(secret="keys", key="PODSLICE_API_KEYS")


def llm(slice: str | None = None, **fields: Any) -> Application:
    """An application for a test; fields that are not an Application's are its LLMConfig's."""
    outer = {name: fields.pop(name) for name in list(fields) if name in Application.model_fields}
    return Application(config=LLMConfig(slice=slice, **fields), **outer)


def cell(route_prefix: str = "/", **fields: Any) -> Application:
    """A cell for a test, with an application name for each route; other fields are its CellConfig's."""
    return Application(
        config=CellConfig(**fields), name=f"cell{route_prefix.replace('/', '-')}x", route_prefix=route_prefix
    )


def service(*applications: Application, name: str = "x", **fields: Any) -> Service:
    return Service(name=name, applications=applications or (llm(),), **fields)


def job(**fields: Any) -> Job:
    return Job(**{"name": "x", "command": ("true",)} | fields)


CONFIGS = (
    OnDemand(),
    Spot(),
    Reservation(name="mine", project="theirs"),
    FlexStart(max_run_hours=3),
    Queued(queue="night"),
    GoogleCloud(project="p-1", zones=("us-west4-a",)),
    Bucket(name="weights", mount=None),
    SECRET,
    Identity(bucket_role="roles/storage.admin"),
    ClusterIP(),
    LoadBalancer(port=8888),
    Gateway(hostname="example.org", certificate="tls"),
    NewCluster(),
    Incremental(gateway_class="istio", step_percent=10),
    GcsFaultTolerance(redis_address="redis:6379"),
    Observability(log_level="DEBUG"),
    EngineConfig(page_size=64, quantize_weights="int8"),
    LLMConfig(model="gs://weights/llama", slice="v5e:2x4:4t", max_replicas=3, compile_cache=None),
    StableDiffusionConfig(sizes=("512x512", "768x768"), slice="v4:2x2x1"),
    CellConfig(name="test", slice="v5e:4x8", model_roots=("gs://b/models", "/gcs"), admins=("alice", "acl/bob")),
    KVEvents(replay_endpoint="tcp://*:6557"),
    CallerConfig(weight=3, max_requests=8),
    TpuSlice("v5e", "4x8"),
    Head(cpus=4, pod={"spec": {"imagePullSecrets": [{"name": "registry"}]}}),
    MaintenanceWindow(start="22:00", days=("MO", "FR")),
    GatewayRef(name="shared", namespace="infra"),
    IdentityAwareProxy(client_id="id", client_secret="oauth"),
    llm("v5e:4x8", capacity=Spot(), route_prefix="/a"),
    service(llm("v5e:2x2", capacity=Queued(queue="night")), exposure=LoadBalancer(), bucket=Bucket(), env={"A": "b"}),
    job(slice="v5e:2x4:4t", capacity=FlexStart(), env={"A": "b"}),
)
SERVE_ARGUMENTS = (EngineConfig, LLMConfig, StableDiffusionConfig, CellConfig)


def named(value: Any) -> str:
    return type(value).__name__ if isinstance(value, BaseModel) else str(value)


class TestEveryClass:
    def test_the_list_here_has_them_all(self) -> None:
        for module in pkgutil.walk_packages(ray_configs.__path__, "ray_configs."):
            importlib.import_module(module.name)

        def below(cls: type[Config]) -> set[type[Config]]:
            return {cls}.union(*map(below, cls.__subclasses__())) if cls.__module__.startswith("ray_configs") else set()

        # A class with subclasses and no place of its own in a config is there to be inherited.
        concrete = {cls for cls in below(Config) if not cls.__subclasses__()} | {EngineConfig, TpuSlice}
        assert {type(config) for config in CONFIGS} == concrete

    @pytest.mark.parametrize("config", CONFIGS, ids=named)
    def test_an_unknown_field_is_an_error_that_names_it(self, config: BaseModel) -> None:
        with pytest.raises(ValidationError) as raised:
            type(config)(**dict(config) | {"misspelt": 1})
        assert [(error["type"], error["loc"]) for error in raised.value.errors()] == [
            ("extra_forbidden", ("misspelt",))
        ]

    @pytest.mark.parametrize("config", CONFIGS, ids=named)
    def test_frozen(self, config: BaseModel) -> None:
        for field in type(config).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(config, field, None)

    @pytest.mark.parametrize("config", CONFIGS, ids=named)
    def test_json_round_trip(self, config: BaseModel) -> None:
        assert type(config).model_validate(config.model_dump(mode="json")) == config
        assert type(config).model_validate_json(config.model_dump_json()) == config

    @pytest.mark.parametrize("config", [c for c in CONFIGS if not isinstance(c, Application | Service)], ids=named)
    def test_json_round_trip_without_defaults(self, config: BaseModel) -> None:
        """What manifests carry. Not for a whole service, which nothing reads back: there an application's config
        without its defaults could be any kind's."""
        assert type(config).model_validate(config.model_dump(mode="json", exclude_defaults=True)) == config

    @pytest.mark.parametrize(
        ("field", "kinds"), [(Capacity, CONFIGS[:5]), (Exposure, CONFIGS[9:12])], ids=["capacity", "exposure"]
    )
    def test_a_kind_survives_a_dump_without_defaults(self, field: Any, kinds: tuple[BaseModel, ...]) -> None:
        adapter = TypeAdapter(field)
        for kind in kinds:
            assert adapter.validate_python(adapter.dump_python(kind, mode="json", exclude_defaults=True)) == kind
        with pytest.raises(ValidationError, match=f"'{kinds[0].kind}'"):
            adapter.validate_python({"kind": "free"})

    @pytest.mark.parametrize("name", catalog())
    def test_serve_arguments_of_the_catalog_are_read_back_as_they_were(self, name: str) -> None:
        config = load(name)
        for application in config.applications if isinstance(config, Service) else ():
            arguments = application.config.model_dump(mode="json", exclude_defaults=True)
            assert type(application.config).model_validate(arguments) == application.config
            # A path of the machine that renders means nothing in a container.
            assert str(ray_configs.__path__[0]).removesuffix("ray_configs") not in str(arguments)

    @pytest.mark.parametrize("cls", SERVE_ARGUMENTS, ids=lambda cls: cls.__name__)
    def test_defaults_alone_are_a_config_with_nothing_to_say(self, cls: type[Config]) -> None:
        assert cls().model_dump(mode="json", exclude_defaults=True) == {}

    @pytest.mark.parametrize("cls", [LLMConfig, StableDiffusionConfig, CellConfig])
    def test_keys_are_in_no_dump_and_no_text(self, cls: type[Any]) -> None:
        config = cls(api_keys="open,sesame")
        assert [key.get_secret_value() for key in config.api_keys] == ["open", "sesame"]
        for text in (repr(config), config.model_dump_json(), str(config.model_dump(mode="json"))):
            assert "sesame" not in text


class TestDocstrings:
    @pytest.mark.parametrize(
        "cls", sorted({type(config) for config in CONFIGS}, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__
    )
    def test_every_field_says_what_it_means(self, cls: type[BaseModel]) -> None:
        assert inspect.getdoc(cls)
        silent = {
            field
            for ancestor in cls.__mro__
            if ancestor.__module__.startswith("ray_configs")
            for field, said in fields_and_docstrings(ancestor)
            if not said and field in cls.model_fields
        }
        # `kind` tells the classes of a union apart; each class says what it is.
        assert silent - {"kind"} == set()

    @pytest.mark.parametrize("module", [m.name for m in pkgutil.walk_packages(ray_configs.__path__, "ray_configs.")])
    def test_every_module_says_what_it_is(self, module: str) -> None:
        assert importlib.import_module(module).__doc__


def fields_and_docstrings(cls: type) -> list[tuple[str, bool]]:
    """Annotated fields in a class's source, ClassVars left out, and whether a string follows each."""
    body = ast.parse(inspect.getsource(cls)).body[0].body
    return [
        (node.target.id, isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
        for node, after in zip(body, [*body[1:], None])
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    ]


REFUSED: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    # What is wrong: how one gets there, and what the message must hold (the field or value, then what to do).
    "a name with capitals": (lambda: service(name="X_y"), ("name", "[a-z]([-a-z0-9]*[a-z0-9])?")),
    "a name too long for any DNS label": (lambda: Queued(queue="q" * 64), ("queue", "at most 63 characters")),
    "a cluster's name too long for GKE": (lambda: GoogleCloud(cluster="c" * 41), ("cluster", "at most 40 characters")),
    "a service account's name too short for IAM": (
        lambda: Identity(service_account="me"),
        ("service_account", "at least 6 characters"),
    ),
    "a service's name too long": (lambda: service(name="x" * 48), ("name", "48 characters", "47")),
    "a service's name too long for host names": (
        lambda: service(llm("v5e:4x8"), name="x" * 36),
        ("name", "36 characters", "35", "tpu-v5e-4x8"),
    ),
    "a job's name too long for host names": (
        lambda: job(name="x" * 58, slice="v5e:4x8"),
        ("name", "58 characters", "57"),
    ),
    "a Ray job's name too long": (lambda: job(name="x" * 48, ray=True), ("name", "48 characters", "47")),
    "a Ray job's name too long for host names": (
        lambda: job(name="x" * 36, ray=True, slice="v5e:4x8"),
        ("name", "36 characters", "35"),
    ),
    "no application": (lambda: Service(name="x", applications=()), ("applications", "at least 1")),
    "two applications of one name": (
        lambda: service(llm(), llm(route_prefix="/b")),
        ("name 'llm'", "give each its own name"),
    ),
    "two applications on one route": (
        lambda: service(llm(name="a"), llm(name="b")),
        ("route_prefix '/'", "give each its own route_prefix"),
    ),
    "a route without a slash": (lambda: llm(route_prefix="a"), ("route_prefix", "start with /")),
    "a route that ends with a slash": (lambda: llm(route_prefix="/a/"), ("route_prefix", "not end with one")),
    "a route that Serve takes for a pattern": (lambda: llm(route_prefix="/{a}"), ("route_prefix", "braces")),
    "one slice, two capacities": (
        lambda: service(llm("v5e:2x2"), llm("v5e:2x2", name="b", route_prefix="/b", capacity=Spot())),
        ("v5e 2x2", "capacity", "Give them the same"),
    ),
    "one slice, two images": (
        lambda: service(llm("v5e:2x2"), llm("v5e:2x2", name="b", route_prefix="/b", image="other:1")),
        ("v5e 2x2", "image", "Give them the same"),
    ),
    "one shape, two machine types": (
        lambda: service(llm("v5e:2x4:8t"), llm("v5e:2x4:4t", name="b", route_prefix="/b")),
        ("v5e 2x4", "machine type", "two services"),
    ),
    "api_keys in a service": (lambda: llm(api_keys="sesame"), ("api_keys", "Service(api_keys=SecretKey(...))")),
    "flex-start on v4": (
        lambda: llm("v4:2x2x1", capacity=FlexStart()),
        ("flex-start", "ct4p-hightpu-4t", "v4:2x2x1", "use on-demand, spot or reservation"),
    ),
    "queued on v4, in a job": (lambda: job(slice="v4:2x2x1", capacity=Queued()), ("queued", "use on-demand")),
    "flex-start without a slice": (
        lambda: llm(capacity=FlexStart()),
        ("flex-start", "without a slice use on-demand or spot"),
    ),
    "a slice that Ray does not know": (lambda: llm("7x:1x1x1"), ("Ray does not know 7x 1x1x1", "it knows 2x2x1")),
    "a slice that Ray's autoscaler does not know": (lambda: llm("v3:4x4"), ("autoscaler", "tpu-v3-slice")),
    "a Ray job on such a slice": (
        lambda: job(slice="v3:4x4", ray=True),
        ("tpu-v3-slice", "Without ray=True the slice can be used"),
    ),
    "several slices without Ray": (lambda: job(slice="v5e:2x2", slices=2), ("slices", "ray=True")),
    "a job without a command": (lambda: Job(name="x", command=()), ("command", "at least 1")),
    "two queues": (
        lambda: service(
            llm("v5e:2x2", capacity=Queued(queue="a")),
            llm("v5e:1x1", name="b", route_prefix="/b", capacity=Queued(queue="b")),
        ),
        ("queue", "name the same queue in every application"),
    ),
    "two cells of one name": (
        lambda: service(cell(), cell("/b", state_uri="/b")),
        ("two cells have name 'test'", "/sax/test", "give each its own CellConfig(name=...)"),
    ),
    "two cells with one state": (
        lambda: service(cell(state_uri="gs://b/s"), cell("/b", name="prod", state_uri="gs://b/s/")),
        ("two cells have state_uri 'gs://b/s'", "one cell at a time", "give each its own CellConfig(state_uri=...)"),
    ),
    "admins of a cell without keys": (
        lambda: service(cell(admins="alice,bob")),
        ("admins of cell 'test'", "everyone could publish", "Service(api_keys=SecretKey(...))", "NAME=KEY"),
    ),
    "a cell's name with capitals": (lambda: CellConfig(name="Test"), ("name", "[a-z][a-z0-9_-]*")),
    "an admin who can be no key's name": (lambda: CellConfig(admins=("Alice",)), ("admins.0", "[a-z][a-z0-9_-]*")),
    "nowhere to keep the state": (lambda: CellConfig(state_uri=""), ("state_uri", "at least 1 character")),
    "a model in a bucket that is not there": (
        lambda: service(llm(model="/gcs/llama")),
        ("'/gcs/llama'", "bucket=Bucket(...)"),
    ),
    "an adapter in a bucket that is not there": (
        lambda: service(llm(adapters={"sql": "/gcs/sql"})),
        ("sql '/gcs/sql'", "bucket=Bucket(...)"),
    ),
    "a model in a bucket that is not mounted": (
        lambda: service(llm(model="/gcs/llama"), bucket=Bucket(mount=None)),
        ("'/gcs/llama'", "bucket=Bucket(...)"),
    ),
    "a bucket's URL for its name": (lambda: Bucket(name="gs://weights"), ("bucket name 'gs://weights'", "no gs://")),
    "a path for a bucket's name": (lambda: Bucket(name="weights/llama"), ("'weights/llama'", "no path")),
    "a relative mount": (lambda: Bucket(mount="gcs"), ("mount 'gcs'", "absolute folder, such as /gcs")),
    "the root as mount": (lambda: Bucket(mount="/"), ("mount '/'", "such as /gcs")),
    "more replicas at least than at most": (
        lambda: LLMConfig(min_replicas=3, max_replicas=2),
        ("max_replicas (2)", "below min_replicas (3)"),
    ),
    "more adapters than places": (
        lambda: EngineConfig(adapters={"a": "/a", "b": "/b"}, max_adapters=1),
        ("adapters names 2", "max_adapters is 1: raise it"),
    ),
    "an adapter without a name": (lambda: EngineConfig(adapters={"": "/a"}), ("adapters", "must not be empty")),
    "an adapter with its model's name": (
        lambda: LLMConfig(model="/models/llama", adapters={"llama": "/a"}),
        ("adapters: llama is the model's own name",),
    ),
    "a rank that no step is compiled for": (lambda: EngineConfig(max_adapter_rank=12), ("max_adapter_rank", "8, 16")),
    "too many places for adapters": (lambda: EngineConfig(max_adapters=257), ("max_adapters", "256")),
    "adapters loaded without a place": (lambda: LLMConfig(adapter_loading=True), ("adapter_loading", "max_adapters")),
    "adapters loaded by one of two replicas": (
        lambda: LLMConfig(adapter_loading=True, max_adapters=1, max_replicas=2),
        ("adapter_loading", "max_replicas 1", "name the adapters in `adapters`"),
    ),
    "a page that is no power of two": (lambda: EngineConfig(page_size=48), ("page_size", "16, 32 or 64")),
    "a step too small for the batch": (
        lambda: EngineConfig(max_step_tokens=32, max_batch_size=64),
        ("max_step_tokens (32)", "at least max_batch_size (64)"),
    ),
    "no picture size": (lambda: StableDiffusionConfig(sizes=()), ("sizes", "such as 512x512")),
    "a picture size that is no multiple of 8": (
        lambda: StableDiffusionConfig(sizes=("512x512", "513x512")),
        ("sizes", "'513x512'", "multiples of 8 from 64 to 2048"),
    ),
    "a picture too large": (lambda: StableDiffusionConfig(sizes=("4096x64",)), ("'4096x64'", "from 64 to 2048")),
    "a picture size of one number": (lambda: StableDiffusionConfig(sizes=("512",)), ("'512'", "WIDTHxHEIGHT")),
    "more default steps than are allowed": (
        lambda: StableDiffusionConfig(num_inference_steps=200),
        ("num_inference_steps (200)", "max_inference_steps (100)"),
    ),
    "a run longer than the scheduler allows": (lambda: FlexStart(max_run_hours=169), ("max_run_hours", "168")),
    "a reservation without a name": (lambda: Reservation(name=""), ("name", "at least 1")),
    "a port out of range": (lambda: LoadBalancer(port=0), ("port", "greater than or equal to 1")),
    "a slice in a config": (lambda: LLMConfig(slice="v5e:2x4"), ("slice", "write v5e:2x4:8t", "or v5e:2x4:4t")),
}


@pytest.mark.parametrize(("build", "said"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_field_and_the_remedy(build: Callable[[], object], said: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as raised:
        build()
    errors = raised.value.errors()
    assert len(errors) == 1
    text = f"{'.'.join(map(str, errors[0]['loc']))}: {errors[0]['msg']}"
    for part in said:
        assert part in text


class TestLimitsAllow:
    """The largest that is allowed is allowed: the refusals above are not one too strict."""

    def test_names(self) -> None:
        assert service(name="x" * 47)
        assert service(llm("v5e:2x4:8t"), name="x" * 47)
        assert service(llm("v5e:4x8"), name="x" * 35)
        assert job(name="x" * 63, slice="v5e:2x2")
        assert job(name="x" * 57, slice="v5e:4x8")
        assert job(name="x" * 35, slice="v5e:4x8", ray=True)

    @pytest.mark.parametrize("route", ["/", "/a", "/a/b", "/v1.0/a-b_c"])
    def test_routes(self, route: str) -> None:
        assert llm(route_prefix=route).route_prefix == route

    def test_two_applications_on_one_kind_of_slice_share_a_group(self) -> None:
        both = service(
            llm("v5e:2x2", min_replicas=1, max_replicas=2), llm("v5e:2x2", name="b", route_prefix="/b", num_cpus=4)
        )
        group, routers = both.worker_groups
        assert (group.name, group.minimum, group.maximum, group.cpus) == ("tpu-v5e-2x2", 2, 3, 4)
        assert (routers.name, routers.minimum, routers.maximum) == ("routers", 2, 2), "of the one that scales"
        assert both.elastic

    def test_two_cells_that_keep_apart(self) -> None:
        both = service(cell(state_uri="gs://b/one"), cell("/b", name="prod_2", state_uri="gs://b/two"))
        assert [app.config.state_bucket for app in both.applications] == ["b", "b"]
        assert CellConfig().state_bucket is None

    def test_admins_who_hold_keys(self) -> None:
        guarded = service(cell(admins="acl/alice, bob", model_roots="gs://b/models,/gcs"), api_keys=SECRET)
        config = guarded.applications[0].config
        assert config.admins == ("alice", "bob") and config.model_roots == ("gs://b/models", "/gcs")

    def test_a_job_may_use_what_ray_cannot(self) -> None:
        assert job(slice="v3:4x4").worker_groups[0].hosts == 4
        assert job(slice="7x:1x1x1").worker_groups[0].hosts == 1

    def test_one_queue_for_two_applications(self) -> None:
        queued = Queued(queue="night")
        assert service(
            llm("v5e:2x2", capacity=queued), llm("v5e:1x1", name="b", route_prefix="/b", capacity=queued)
        ).worker_groups

    def test_an_identity_comes_with_a_bucket(self) -> None:
        assert service().service_account is None
        assert service(llm(model="/gcs/llama"), bucket=Bucket()).service_account == Identity()
        assert job(identity=Identity(service_account="my-own")).service_account == Identity(service_account="my-own")

    def test_sizes_as_serve_run_passes_them(self) -> None:
        assert StableDiffusionConfig(sizes="512x512,768x512").sizes == ("512x512", "768x512")

    def test_a_picture_models_name(self) -> None:
        assert StableDiffusionConfig().served_name == "stable-diffusion-v1-4"
        assert StableDiffusionConfig(model="gs://bucket/models/mine/").served_name == "mine"
        assert StableDiffusionConfig(model_id="yours").served_name == "yours"
        assert StableDiffusionConfig.demo(max_batch_size=2).served_name == "podslice-sd-demo"

    def test_only_a_single_replica_keeps_responses_unasked(self) -> None:
        assert LLMConfig().kept_responses == 1000 and LLMConfig(stored_responses=0).kept_responses == 0
        assert LLMConfig(max_replicas=2).kept_responses == 0
        assert LLMConfig(max_replicas=2, stored_responses=9).kept_responses == 9


def test_routers_keep_responses_and_need_cpus() -> None:
    assert LLMConfig(routers=1, min_replicas=4, max_replicas=4).kept_responses == STORED_RESPONSES
    assert LLMConfig(routers=2, min_replicas=4, max_replicas=4).kept_responses == 0
    assert LLMConfig(routers=3, min_replicas=2, max_replicas=4, num_cpus=2).all_cpus == 4 * 2 + 3 * 2
