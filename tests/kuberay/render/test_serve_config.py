"""serveConfigV2: what Ray Serve itself makes of it, and the typed builders of its arguments."""

import importlib.util
from importlib import import_module
from typing import Any, get_type_hints

import pytest
from ruamel.yaml import YAML

from kuberay.render import render, serve_config
from ray_configs.loading import catalog, load
from ray_configs.service import Service

SERVICES = [name for name in catalog() if isinstance(load(name), Service)]


def written(name: str) -> dict[str, Any]:
    """What KubeRay reads: the YAML inside the RayService."""
    (ray_service,) = [item for item in render(load(name)) if item["kind"] == "RayService"]
    return YAML(typ="safe").load(ray_service["spec"]["serveConfigV2"])


@pytest.mark.parametrize("name", SERVICES)
def test_serve_accepts_it(name: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(written(name))
    assert [app.name for app in schema.applications] == [app.serve_name for app in load(name).applications]
    assert written(name) == serve_config(load(name))


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_in_it_is_unknown_to_serve(name: str) -> None:
    """Serve ignores unknown keys silently."""
    from ray.serve.schema import LoggingConfig, ServeApplicationSchema, ServeDeploySchema

    config = written(name)
    assert config.keys() <= ServeDeploySchema.model_fields.keys()
    assert config["logging_config"].keys() <= LoggingConfig.model_fields.keys()
    for app in config["applications"]:
        assert app.keys() <= ServeApplicationSchema.model_fields.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_arguments_read_back_as_the_same_config(name: str) -> None:
    for app, said in zip(load(name).applications, written(name)["applications"], strict=True):
        assert type(app.config).model_validate(said["args"]) == app.config


@pytest.mark.parametrize("name", SERVICES)
def test_the_typed_builder_takes_the_arguments(name: str) -> None:
    from ray import serve

    for said in written(name)["applications"]:
        module, _, attribute = said["import_path"].partition(":")
        if importlib.util.find_spec(module) is None:
            continue  # `check` warns of it
        builder = getattr(import_module(module), attribute)
        (config_type,) = (hint for parameter, hint in get_type_hints(builder).items() if parameter != "return")
        config = config_type.model_validate(said["args"])
        assert isinstance(builder(config), serve.Application)
