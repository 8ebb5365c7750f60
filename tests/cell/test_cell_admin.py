"""Publish, update, unpublish and ACLs, as the admin takes them."""

from pathlib import Path
from typing import Any

import pytest

from apps.cell.admin import Admin
from apps.cell.desired.store import Store
from apps.cell.errors import AlreadyTaken, CellError, NotAllowed, NotPublished
from apps.serving.files import Holder
from ray_configs.cell import CellConfig

MODEL = {"model": "/sax/test/m", "model_path": "catalog.local", "checkpoint": "None", "replicas": 2}


def cell(folder: Path, **config: Any) -> Admin:
    store = Store(str(folder), "test")
    admin = Admin(CellConfig(state_uri=str(folder), **config), store, store.lease(Holder("me", "here")))
    admin.open()
    return admin


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return cell(tmp_path)


def test_a_life(admin: Admin) -> None:
    name, model = admin.publish(None, MODEL)
    assert name == "/sax/test/m" and (model.replicas, model.checkpoint) == (2, "None")
    with pytest.raises(AlreadyTaken, match="published already"):
        admin.publish(None, MODEL)
    _, model = admin.update(None, {"model": name, "replicas": 3})
    assert (model.replicas, model.checkpoint, model.overrides) == (3, "None", {})
    _, model = admin.update(None, {"model": name, "checkpoint": "", "overrides": {"max_batch_size": 2}})
    assert (model.replicas, model.checkpoint, model.overrides) == (3, "", {"max_batch_size": 2})
    assert admin.unpublish(None, {"model": name})[0] == name
    for method, body in (
        ("update", {"model": name, "replicas": 1}),
        ("unpublish", {"model": name}),
        ("listed", {"model": name}),
    ):
        with pytest.raises(NotPublished, match="published here: nothing"):
            getattr(admin, method)(*([body] if method == "listed" else [None, body]))
    _, again = admin.publish(None, MODEL)
    assert again.order > model.order, "who comes anew stands at the end"


def test_the_whole_of_saxmls_update(admin: Admin) -> None:
    """Its first generation sends all four fields."""
    admin.publish(None, MODEL)
    _, model = admin.update(None, MODEL | {"replicas": 5})
    assert model.replicas == 5
    with pytest.raises(CellError, match=r"model_path of /sax/test/m is catalog\.local and cannot change"):
        admin.update(None, MODEL | {"model_path": "lm_cloud.LmCloudSpmd2BTest"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "m"}, "must be /sax/test/NAME"),
        ({"model": "/sax/test/M"}, "must be /sax/test/NAME"),
        ({"model": "/sax/test/m/n"}, "must be /sax/test/NAME"),
        ({"model": "/sax/other/m"}, "another cell; this one is /sax/test"),
        ({"model": 7}, "must be /sax/test/NAME"),
        ({"model": None}, "must be /sax/test/NAME"),
        ({"model_path": ""}, "model_path must be a string"),
        ({"model_path": ["catalog.local"]}, "model_path must be a string"),
        ({"checkpoint": 1}, "checkpoint must be a string"),
        ({"replicas": -1}, "replicas must be a whole number"),
        ({"replicas": 1.5}, "replicas must be a whole number"),
        ({"replicas": True}, "replicas must be a whole number"),
        ({"replicas": "two"}, "replicas must be a whole number"),
        ({"overrides": ["x"]}, "overrides must be an object"),
        ({"overrides": {"pages": "many"}}, "pages"),
        ({"replica": 1}, "unknown field 'replica'; known: checkpoint, model"),
        ({"model": "/sax/test/" + "m" * 64}, "has 64 characters; a name can have 63"),
        ({"model": "/sax/test/" + "m" * 300}, "has 300 characters"),
        ({"replicas": "9" * 5000}, "replicas must be a whole number"),
        ({"replicas": "²"}, "replicas must be a whole number"),
        ({"replicas": 10**4000}, "replicas must be a whole number"),
        ({"model_path": "/models/\0"}, "model_path has characters that no name has"),
        ({"model_path": "catalog.local\n"}, "model_path has characters"),
        ({"model_path": "\ud800"}, "model_path has characters"),
        ({"model_path": "/models/" + "x" * 256}, "a part of over 255 bytes"),
        ({"model_path": "/x" * 3000}, "model_path has 6000 characters"),
        ({"checkpoint": "/models/a\x1b[2Jb"}, "checkpoint has characters"),
        ({"model_path": "huggingface:own er/na me"}, "the hub has no such names"),
        ({"model_path": "huggingface:owner/" + "x" * 97}, "the hub has no such names"),
        ({"overrides": {"max_model_len": 10**30}}, "'max_model_len' must be a number below 2147483648"),
        ({"overrides": {"num_cpus": float("inf")}}, "'num_cpus' must be a number below"),
        ({"overrides": {"num_cpus": float("nan")}}, "'num_cpus' must be a number below"),
    ],
)
def test_bad_calls_say_what_is_wrong_and_change_nothing(admin: Admin, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CellError, match=said):
        admin.publish(None, MODEL | change)
    assert admin.state.models == {}


def test_a_model_with_the_longest_name_can_have_an_adapter_with_the_longest(admin: Admin) -> None:
    name = "/sax/test/" + "m" * 63
    admin.publish(None, ADAPTED | {"model": name})
    admin.publish(None, SQL | {"model": f"{name}:{'a' * 63}"})
    with pytest.raises(CellError, match="has 64 characters"):
        admin.publish(None, SQL | {"model": f"{name}:{'b' * 64}"})


def test_what_an_older_version_took_can_be_unpublished(admin: Admin) -> None:
    name = "/sax/test/" + "m" * 300
    _, model = admin.publish(None, MODEL)
    admin.state = admin.state.with_model(name, model)
    assert admin.unpublish(None, {"model": name})[0] == name


def test_more_devices_than_any_slice_of_the_cell_has(tmp_path: Path) -> None:
    admin = cell(tmp_path, slice="v5e:2x4:8t")
    with pytest.raises(CellError, match=r"data_parallel x tensor_parallel is 32 devices, .* have 8 chips"):
        admin.publish(None, MODEL | {"overrides": {"data_parallel": 4, "tensor_parallel": 8}})
    admin.publish(None, MODEL | {"overrides": {"tensor_parallel": 8}})


ADAPTED = MODEL | {"overrides": {"max_adapters": 2}}
SQL = {"model": "/sax/test/m:sql", "model_path": "huggingface:some/adapter"}


def test_the_life_of_an_adapter(admin: Admin, tmp_path: Path) -> None:
    admin.publish(None, ADAPTED)
    for number in (1, 2):  # the second time it is another one
        name, model = admin.publish(None, SQL | {"checkpoint": "None", "replicas": 1})  # as saxutil sends it
        assert name == "/sax/test/m:sql" and model.replicas == 2
        assert admin.registry.adapters(model) == {"sql": {"location": "some/adapter", "version": number}}
        assert list(admin.listed({})) == ["/sax/test/m", name] and admin.listed({"model": name}) == {name: model}
        with pytest.raises(AlreadyTaken, match="m:sql is published already"):
            admin.publish(None, SQL)
        assert admin.unpublish(None, {"model": name}) == (name, model)
        with pytest.raises(NotPublished, match=r"m:sql is not published; published here: /sax/test/m$"):
            admin.unpublish(None, {"model": name})
    admin.publish(None, SQL)
    assert list(cell(tmp_path).listed({})) == ["/sax/test/m", "/sax/test/m:sql"], "it is stored"
    admin.unpublish(None, {"model": "/sax/test/m"})
    assert admin.listed({}) == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "/sax/test/m:"}, "must be /sax/test/NAME"),
        ({"model": "/sax/test/m:a:b"}, "must be /sax/test/NAME"),
        ({"model": "/sax/test/n:sql"}, "/sax/test/n is not published; published here: /sax/test/m, /sax/test/m:one"),
        ({"model_path": 1}, "model_path must be a string"),
        ({"model_path": "/etc"}, "not below any folder that this cell may read"),
        ({"model_path": "catalog.local"}, "not below|is not registered"),
        ({"checkpoint": "/other"}, "checkpoint '/other': an adapter is read from model_path"),
        ({"replicas": 2}, "replicas 2: an adapter .* runs on every replica of /sax/test/m"),
        ({"overrides": {"max_batch_size": 1}}, "leave overrides out"),
    ],
)
def test_adapters_that_are_refused(admin: Admin, change: dict[str, Any], said: str) -> None:
    admin.publish(None, ADAPTED)
    admin.publish(None, SQL | {"model": "/sax/test/m:one"})
    before = admin.state
    with pytest.raises(CellError, match=said):
        admin.publish(None, SQL | change)
    assert admin.state == before


def test_adapters_take_places_of_their_model(admin: Admin) -> None:
    admin.publish(None, MODEL)
    with pytest.raises(CellError, match=r'0 places for adapters, all taken: .* overrides {"max_adapters": N}'):
        admin.publish(None, SQL)
    admin.update(None, {"model": "/sax/test/m", "overrides": {"max_adapters": 1}})
    admin.publish(None, SQL)
    with pytest.raises(CellError, match="1 places"):
        admin.publish(None, SQL | {"model": "/sax/test/m:other"})
    with pytest.raises(CellError, match="0 places"):
        admin.update(None, {"model": "/sax/test/m", "overrides": {}})


def test_an_adapter_has_its_models_settings_and_admins(tmp_path: Path) -> None:
    admin = cell(tmp_path, admins=("alice",))
    admin.publish("alice", ADAPTED)
    with pytest.raises(NotAllowed):
        admin.publish("bob", SQL)
    admin.set_acl("alice", {"model": "/sax/test/m", "acl": "bob"})
    admin.publish("bob", SQL)
    for method, body in (
        ("update", {"model": "/sax/test/m:sql", "replicas": 1}),
        ("set_acl", {"model": "/sax/test/m:sql", "acl": "bob"}),
    ):
        with pytest.raises(CellError, match=r"m:sql is an adapter, .* name /sax/test/m$"):
            getattr(admin, method)("bob", body)
    admin.unpublish("bob", {"model": "/sax/test/m:sql"})


def test_without_keys_everyone_may_do_everything(tmp_path: Path) -> None:
    admin = cell(tmp_path, admins=("alice",))
    admin.publish(None, MODEL)
    admin.unpublish(None, {"model": "/sax/test/m"})


def test_the_configs_admins_alone_change_the_cell(tmp_path: Path) -> None:
    admin = cell(tmp_path, admins=("alice",))
    with pytest.raises(NotAllowed, match="bob may not do this; the cell's admins are alice"):
        admin.publish("bob", MODEL)
    admin.publish("alice", MODEL)
    for method, body in (
        ("update", {"model": "/sax/test/m", "replicas": 1}),
        ("unpublish", {"model": "/sax/test/m"}),
        ("set_acl", {"model": "/sax/test/m", "acl": "bob"}),
        ("set_acl", {"sax_cell": "/sax/test", "acl": "bob"}),
    ):
        with pytest.raises(NotAllowed):
            getattr(admin, method)("bob", body)


def test_a_models_own_admins(tmp_path: Path) -> None:
    admin = cell(tmp_path, admins=("alice",))
    admin.publish("alice", MODEL)
    admin.set_acl("alice", {"model": "/sax/test/m", "acl": "acl/bob, carol"})
    admin.update("bob", {"model": "/sax/test/m", "replicas": 1})
    admin.set_acl("carol", {"model": "/sax/test/m", "method": "lm.score", "acl": "dave"})
    assert admin.get_acl({"model": "/sax/test/m"})["acls"] == {
        "admin": "bob,carol",
        "lm.generate": "",
        "lm.generate_stream": "",
        "lm.score": "dave",
        "lm.embed": "",
    }
    assert admin.get_acl({"model": "/sax/test/m", "method": "lm.score"})["acls"] == {"lm.score": "dave"}
    with pytest.raises(NotAllowed):
        admin.publish("bob", MODEL | {"model": "/sax/test/n"})


def test_who_sets_the_cells_admins_stays_one(tmp_path: Path) -> None:
    admin = cell(tmp_path)
    with pytest.raises(CellError, match="would lock out alice, who sets it"):
        admin.set_acl("alice", {"sax_cell": "/sax/test", "acl": "bob"})
    admin.set_acl("alice", {"sax_cell": "/sax/test", "acl": "alice,bob"})
    assert cell(tmp_path).admin_acl == "alice,bob", "kept with the state"
    with pytest.raises(NotAllowed):
        admin.publish("carol", MODEL)
    admin.set_acl("bob", {"sax_cell": "/sax/test", "acl": "*"})
    admin.publish("carol", MODEL)


def test_saxmls_create_takes_the_cell_that_is_there(tmp_path: Path) -> None:
    admin = cell(tmp_path)
    for body, said in (
        ({"sax_cell": "/sax/other"}, "not this cell: /sax/test"),
        ({"sax_cell": "/sax/test", "fs_root": "gs://elsewhere"}, "is not this cell's state_uri"),
    ):
        with pytest.raises(CellError, match=said):
            admin.create("alice", body)
    body = {"sax_cell": "/sax/test", "fs_root": str(tmp_path), "admin_acl": "acl/alice"}
    assert admin.create("alice", body)["admin_acl"] == "alice"
    with pytest.raises(AlreadyTaken, match="has admins already: alice"):
        admin.create("bob", body | {"admin_acl": "bob"})


@pytest.mark.parametrize("acl", ["Alice", "a b", "alice,,bob", 7, None, "a/b", "acl/"])
def test_an_acl_is_names(admin: Admin, acl: object) -> None:
    admin.publish(None, MODEL)
    with pytest.raises(CellError, match=r"acl .*(a key's name|names of keys)"):
        admin.set_acl(None, {"model": "/sax/test/m", "acl": acl})


def test_methods_have_names(admin: Admin) -> None:
    admin.publish(None, MODEL)
    with pytest.raises(CellError, match=r"method 'lm.run' must be one of lm.generate"):
        admin.set_acl(None, {"model": "/sax/test/m", "method": "lm.run", "acl": "*"})
    with pytest.raises(CellError, match="a cell has only an admin ACL"):
        admin.set_acl(None, {"sax_cell": "/sax/test", "method": "lm.score", "acl": "*"})
