"""The command line that a config means, against the recorded `vllm serve --help=all`."""

import json
import shlex
from pathlib import Path

import pytest

from apps.llm.engines.vllm.arguments import VllmNode, arguments
from apps.llm.engines.vllm.child import COMMAND, command
from apps.llm.engines.vllm.hosts import VllmOrders
from apps.llm.engines.vllm.model import ServedModel
from apps.llm.engines.vllm.processes import with_devices
from kuberay.check.serve.vllm import known
from ray_configs.applications.kv_events import KVEvents
from ray_configs.applications.second_engine import OURS, SET_HERE
from ray_configs.llm import DEMO_MODEL, LLMConfig


def words(host: VllmNode | None = None, **settings: object) -> list[str]:
    config = LLMConfig(**{"engine": "vllm", "max_batch_size": 8} | settings)
    events = {"endpoint": "ipc:///x", "enable_kv_cache_events": True, "publisher": "zmq"}
    return arguments(config, ServedModel.open(config), {"uds": "/run/http"}, events, host)


def option(line: list[str], name: str) -> str:
    return line[line.index(name) + 1]


@pytest.mark.parametrize("version", known())
def test_every_word_is_an_option_of_every_version(version: str) -> None:
    line = words(VllmNode(1, 4, ("10.0.0.1", 8476)), tiny=True, vllm_args={"enforce_eager": True, "block_size": 128})
    names = [word[2:].replace("-", "_") for word in line if word.startswith("--")]
    assert len(names) > 15 and len(names) == len(set(names))
    assert [name for name in names if name.removeprefix("no_") not in known()[version]] == []
    assert [name for name in (*OURS, *SET_HERE) if name not in known()[version] and name != "model_tag"] == []


def test_what_is_said_of_batches_types_and_the_cache() -> None:
    line = words(dtype="float32", max_step_tokens=256, max_model_len=512, prefix_cache=False)
    assert line[:2] == ["serve", DEMO_MODEL]
    assert (option(line, "--dtype"), option(line, "--max-num-seqs")) == ("float32", "8")
    assert (option(line, "--max-num-batched-tokens"), option(line, "--max-model-len")) == ("256", "512")
    assert "--no-enable-prefix-caching" in line and "--tensor-parallel-size" not in line
    assert "--max-model-len" not in words()


def test_further_arguments_in_all_their_forms() -> None:
    given = {
        "enforce_eager": True,
        "async_scheduling": False,
        "seed": 3,
        "middleware": ["a", "b"],
        "limit": {"image": 0},
    }
    line = words(vllm_args=given)
    assert "--enforce-eager" in line and "--no-async-scheduling" in line
    assert option(line, "--seed") == "3"
    assert line[line.index("--middleware") :][:3] == ["--middleware", "a", "b"]
    assert json.loads(option(line, "--limit")) == {"image": 0}


def test_hosts_of_a_slice_meet_at_the_first_which_alone_listens() -> None:
    first, second = (words(VllmNode(rank, 2, ("10.0.0.1", 8476))) for rank in range(2))
    for rank, line in enumerate((first, second)):
        assert (option(line, "--nnodes"), option(line, "--node-rank")) == ("2", str(rank))
        assert (option(line, "--master-addr"), option(line, "--master-port")) == ("10.0.0.1", "8476")
    assert ("--uds" in first, "--headless" in first) == (True, False)
    assert ("--uds" in second, "--headless" in second) == (False, True)


def test_events_of_several_hosts_are_published_to_nobody_else() -> None:
    config = LLMConfig(engine="vllm", slice="v5e:2x4:4t")
    assert config.slice is not None
    addresses = "10.0.0.1:1", "10.0.0.1:2", "127.0.0.1"
    orders = VllmOrders.of(config, config.slice, *addresses)
    assert orders.events is not None and orders.events.startswith("tcp://127.0.0.1:")
    assert orders.key not in repr(orders)
    with pytest.raises(ValueError, match="kv_events: "):
        VllmOrders.of(config.model_copy(update={"kv_events": KVEvents()}), config.slice, *addresses)


def test_a_slices_chips_share_the_model_unless_the_config_says_otherwise() -> None:
    config = LLMConfig(engine="vllm", slice="v5e:2x4:8t")
    assert with_devices(config, 8).tensor_parallel == 8
    assert with_devices(config.model_copy(update={"tensor_parallel": 4}), 8).tensor_parallel == 4
    assert with_devices(config, None).tensor_parallel is None


def test_a_toy_of_a_model_with_towers_has_few_layers_in_its_decoder(tmp_path: Path) -> None:
    config = {"architectures": ["XForConditionalGeneration"], "text_config": {"vocab_size": 99, "hidden_size": 8}}
    Path(tmp_path, "config.json").write_text(json.dumps(config))
    line = words(model=str(tmp_path), tiny=True)
    assert json.loads(option(line, "--hf-overrides")) == {"text_config": {"num_hidden_layers": 2}}
    assert option(line, "--load-format") == "dummy"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("gs://bucket/model", "mount the bucket"),
        ("lm_cloud.LmCloudSpmd175B32Test", "has no files"),
        ("/nowhere", "no such folder"),
    ],
)
def test_a_model_that_vllm_cannot_read_is_refused(model: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ServedModel.open(LLMConfig(engine="vllm", model=model))


def test_a_config_without_sizes_is_refused_by_the_field(tmp_path: Path) -> None:
    Path(tmp_path, "config.json").write_text('{"hidden_size": 8, "vocab_size": "many"}')
    with pytest.raises(ValueError, match="vocab_size must be a positive whole number, not 'many'"):
        ServedModel.open(LLMConfig(engine="vllm", model=str(tmp_path)))


def test_end_tokens_are_those_of_the_generation_config_within_the_vocabulary(tmp_path: Path) -> None:
    Path(tmp_path, "config.json").write_text('{"hidden_size": 8, "vocab_size": 100, "eos_token_id": 5}')
    assert ServedModel.open(LLMConfig(engine="vllm", model=str(tmp_path))).eos_token_ids == (5,)
    Path(tmp_path, "generation_config.json").write_text('{"eos_token_id": [7, 100, null, true]}')
    assert ServedModel.open(LLMConfig(engine="vllm", model=str(tmp_path))).eos_token_ids == (7,)


def test_the_command_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND, "env A=1 sh -c")
    assert command() == shlex.split("env A=1 sh -c")
    monkeypatch.setenv(COMMAND, "/nowhere/vllm")
    with pytest.raises(FileNotFoundError, match=r"no command '/nowhere/vllm' is on the PATH.*PODSLICE_VLLM="):
        command()
