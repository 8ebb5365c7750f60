"""The jobs with everything in a bucket: gs:// over HTTP, to something that speaks Cloud Storage's protocol."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from cloud_storage import Storage, cloud_storage

from apps.llm.engine import Engine, EngineConfig, SamplingParams

REPOSITORY = Path(__file__).parents[2]
SIZES = {"dtype": "float32", "max_batch_size": 4, "max_step_tokens": 16, "max_model_len": 64, "page_size": 16}
LINES = 20


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    with cloud_storage() as found:
        yield found


def job(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"apps.batch.{name}", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_prepare_and_then_generate(storage: Storage, tiny_llama: Path, tmp_path: Path) -> None:
    for file in tiny_llama.iterdir():
        storage.put("a-bucket", f"models/llama/{file.name}", file.read_bytes())
    options = "--dtype", "float32", "--quantize-weights", "int8"
    prepared = job("prepare", "gs://a-bucket/models/llama", "gs://a-bucket/prepared", *options)
    assert prepared.returncode == 0, prepared.stderr
    assert not storage.begun, "no upload is left open"
    verified = job("prepare", "--verify", "gs://a-bucket/prepared")
    assert verified.returncode == 0, verified.stderr

    prompts = [f"the quick {i}" for i in range(LINES)]
    asked = [{"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True} for prompt in prompts]
    storage.put("a-bucket", "in.jsonl", "".join(json.dumps(line) + "\n" for line in asked).encode())
    sizes = SIZES | {"compile_cache": str(tmp_path / "cache")}
    changes = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
    done = job("generate", "gs://a-bucket/prepared", "gs://a-bucket/in.jsonl", "gs://a-bucket/out.jsonl", *changes)
    assert done.returncode == 0, done.stderr
    assert [name for name in storage.names("a-bucket") if name.startswith("out")] == ["out.jsonl"], "no parts are left"
    found = [json.loads(line) for line in storage.objects["a-bucket", "out.jsonl"][1].splitlines()]
    assert [line["index"] for line in found] == list(range(LINES))

    alone = Engine.load(EngineConfig(model=str(tiny_llama), quantize_weights="int8", **sizes))
    try:
        greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        assert [line["text"] for line in found] == alone.generate(prompts, greedy)
    finally:
        alone.shutdown()


def test_a_large_file_goes_in_pieces(storage: Storage) -> None:
    """As a layer of a real model, or the answers of a long run, would."""
    content = bytes(range(256)) * 2**16
    with fsspec.open("gs://a-bucket/large", "wb") as file:
        for start in range(0, len(content), 3 * 2**20):
            file.write(content[start : start + 3 * 2**20])
    assert storage.objects["a-bucket", "large"][1] == content and not storage.begun
