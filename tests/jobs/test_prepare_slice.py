"""Hosts of a slice load a prepared model: each reads what its own devices hold, and the answers are the same."""

from pathlib import Path

import pytest

from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.weights.prepared import open_checkpoint
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.slice.processes import Processes

HOSTS, DEVICES = 2, 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_host_reads_its_own_bytes(tmp_path: Path) -> None:
    model, output = tmp_path / "model", tmp_path / "prepared"
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 1}
    tiny_models.save(tiny_models.make("llama3", **sizes), model)
    tiny_models.save_tokenizer(model)
    wanted = PrepareArguments(str(model), str(output), "float32", "int8", tensor_parallel=HOSTS * DEVICES)
    prepare(wanted)
    settings = tiny_models.SMALL | {"max_step_tokens": 16, "max_batch_size": 16, "compile_cache": str(tmp_path / "c")}
    greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    prompts = ["the quick brown fox", "x"]

    alone = Engine.load(EngineConfig(model=str(model), quantize_weights="int8", **settings))
    expected = alone.generate(prompts, greedy)
    alone.shutdown()
    place = Processes(HOSTS, DEVICES)
    together = Engine.load(EngineConfig(model=str(output), **settings), place)  # that it is int8, the model says
    try:
        assert together.config.quantize_weights == "int8"
        assert together.generate(prompts, greedy) == expected
        read = place.bytes_read()
    finally:
        together.shutdown()
    checkpoint = open_checkpoint(str(output))
    assert set(read[0]) == set(read[1]) == set(checkpoint.tensors)
    for name, entry in checkpoint.tensors.items():
        size, found = entry.stop - entry.start, [host[name] for host in read]
        kind = name.rsplit(".", 1)[-1] if not name.endswith(".scale") else f"{name.split('.')[-2]}.scale"
        if "qkv" in kind:  # two heads for four devices: each host reads the head that its devices have copies of
            assert found[0] == found[1] <= size * 3 // 4, name
        elif "norm" in kind or kind in ("out.scale", "down.scale"):
            assert found[0] == found[1] >= size, f"{name} is everywhere"
        else:
            assert found == [size // HOSTS] * HOSTS, name
