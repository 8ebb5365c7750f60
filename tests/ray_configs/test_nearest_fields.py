"""An unknown field is refused with the one that was meant. Oracle: each field of a class, one letter changed."""

import json
from collections.abc import Callable

import pytest
from pydantic import BaseModel, ValidationError

from kuberay import Refusal
from podslice.served import read
from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.exposure import Gateway
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError, assignments, explained, load
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig


def refusal(make: Callable[[], object]) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        make()
    return raised.value


@pytest.mark.parametrize("kind", [LLMConfig, StableDiffusionConfig, Service, Job, GoogleCloud, Bucket, Gateway])
def test_a_field_with_a_letter_too_many_is_named(kind: type[BaseModel]) -> None:
    for field in kind.model_fields:
        for wrong in (f"{field}s", field[:-1] + field[-1] * 2, field.replace("_", "-") + "x"):
            if wrong in kind.model_fields or len(field) < 4:
                continue
            errors = refusal(lambda wrong=wrong: kind.model_validate({wrong: 1})).errors()
            (found,) = (error for error in errors if error["loc"] == (wrong,))
            assert found["type"] == "extra_forbidden"
            named = found["msg"].partition("did you mean ")[2].rstrip("?")
            assert named in kind.model_fields and abs(len(named) - len(wrong)) <= 3, (wrong, found["msg"])


def test_a_field_of_another_config_says_whose_it_is() -> None:
    said = str(refusal(lambda: Application(config=LLMConfig(), max_batch_size=4)))
    assert "it is a field of LLMConfig" in said and "EngineConfig" not in said
    few = str(refusal(lambda: Bucket(nonsense=1)))
    assert "there are name, mount" in few


@pytest.mark.parametrize("text", [False, True], ids=["python", "json"])
def test_fields_inside_others_keep_their_place(text: bool) -> None:
    body = {"name": "s", "applications": [{"config": {"modle": "x"}}], "exposure": {"kind": "gateway", "hostnam": "h"}}
    make = (lambda: Service.model_validate_json(json.dumps(body))) if text else (lambda: Service.model_validate(body))
    errors = {error["loc"][-1]: error for error in refusal(make).errors()}
    assert errors["hostnam"]["loc"] == ("exposure", "gateway", "hostnam")
    assert "did you mean hostname?" in errors["hostnam"]["msg"]
    assert errors["modle"]["loc"][:3] == ("applications", 0, "config")


def test_other_errors_stay_as_they_are() -> None:
    both = refusal(lambda: LLMConfig(modle="x", max_batch_size="many", quantize_weights="int9")).errors()
    alone = refusal(lambda: LLMConfig(max_batch_size="many", quantize_weights="int9")).errors()
    assert [error for error in both if error["type"] != "extra_forbidden"] == alone


def test_commands_say_it_too() -> None:
    with pytest.raises(Refusal, match="did you mean model"):
        read("llm", ["modle=x"], None)
    with pytest.raises(ConfigError, match="did you mean max_batch_size=4"):
        assignments(["max_batchsize=4"], LLMConfig)
    with pytest.raises(ConfigError, match=r"ray_configs.catalog.llama3_8b_v5e"):
        load("ray_configs.catalog.lama3_8b_v5e")
    error = refusal(lambda: LLMConfig(modle="x"))
    assert explained(error) == "  LLMConfig.modle: Extra inputs are not permitted: did you mean model? (got 'x')"
