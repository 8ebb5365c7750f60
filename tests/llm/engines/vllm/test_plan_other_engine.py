"""`podslice plan` of a model that vLLM computes: what its files say, and no more."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apps.plan import other_engine
from apps.plan.commandline import app
from ray_configs.llm import DEMO_MODEL, LLMConfig


def config(**settings: object) -> LLMConfig:
    return LLMConfig(**{"engine": "vllm", "slice": "v5e:2x2", "model": DEMO_MODEL} | settings)


def of(folder: Path, **fields: object) -> LLMConfig:
    shape = {"vocab_size": 100, "hidden_size": 512, "num_hidden_layers": 10, "num_attention_heads": 8}
    Path(folder, "config.json").write_text(json.dumps(shape | fields))
    return config(model=str(folder))


def test_bytes_by_hand() -> None:
    made = other_engine.plan(config())
    assert made.weights_bytes == Path(DEMO_MODEL, "model.safetensors").stat().st_size
    # 4 layers, keys and values, 2 heads of 32 in bfloat16; each of four chips has a head.
    assert made.kv_bytes_per_token == 4 * 2 * 4 * 32 * 2
    assert made.memory_bytes == int(0.9 * 64 * 2**30)
    assert made.fits and not made.planned and made.tokens == (made.memory_bytes - made.weights_bytes) // 2048
    assert other_engine.plan(config(tensor_parallel=2)).kv_bytes_per_token == 1024
    narrow = config(vllm_args={"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.5})
    assert other_engine.plan(narrow).kv_bytes_per_token == 1024
    assert other_engine.plan(narrow).memory_bytes == 32 * 2**30


def test_an_index_says_what_the_files_will_have(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 2**40}, "weight_map": {"a": "model-1.safetensors"}}
    Path(tmp_path, "model.safetensors.index.json").write_text(json.dumps(index))
    made = other_engine.plan(of(tmp_path, num_key_value_heads=8))
    assert (made.weights_bytes, made.fits) == (2**40, False)
    assert made.kv_bytes_per_token == 10 * 2 * 8 * 64 * 2


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    made = other_engine.plan(of(tmp_path, kv_lora_rank=512))
    assert (made.weights_bytes, made.kv_bytes_per_token, made.fits) == (None, None, None)
    assert any("weights are not counted" in note for note in made.notes)
    assert any("KV cache is not counted" in note for note in made.notes)


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*options])
    return done.exit_code, done.output


def test_the_command(tmp_path: Path) -> None:
    file = Path(tmp_path, "mine.py")
    file.write_text(
        "from ray_configs.cluster.application import Application\nfrom ray_configs.llm import LLMConfig\n"
        "from ray_configs.service import Service\n"
        "service = Service(name='mine', applications=[Application(config=LLMConfig(engine='vllm', slice='v5e:2x2'))])\n"
    )
    code, said = run(str(file))
    assert code == 0 and "not planned: another engine" in said and "fits" in said
    code, said = run(str(file), "--json")
    assert code == 0 and json.loads(said)["planned"] is False
    code, said = run(str(file), "--prompt-tokens", "100")
    assert code != 0 and "--prompt-tokens: not planned: another engine" in said
    with pytest.raises(ValueError, match="mount the bucket"):
        other_engine.plan(config(model="memory://nowhere"))
