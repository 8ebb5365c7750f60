"""The jobs with everything in a bucket: gs:// over HTTP, to something that speaks Cloud Storage's protocol."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

from apps.jobs import generate
from apps.llm.engine.weights.prepared import MANIFEST
from tests.cloud_storage import Storage, cloud_storage

REPOSITORY = Path(__file__).parents[3]
SMALL = ["--set", "max_batch_size=4", "--set", "max_step_tokens=64"]  # as the other tests, so that it is compiled


@pytest.fixture
def storage() -> Iterator[Storage]:
    with cloud_storage() as found:
        yield found


def job(name: str, *arguments: object) -> None:
    command = [sys.executable, "-m", f"apps.jobs.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_prepare(storage: Storage, tiny_llama: Path, tmp_path: Path) -> None:
    for file in tiny_llama.iterdir():
        storage.put("a-bucket", f"models/llama/{file.name}", file.read_bytes())
    job("prepare", "gs://a-bucket/models/llama", "gs://a-bucket/prepared", "--quantize-weights", "int8")
    job("prepare", "--verify", "gs://a-bucket/prepared")
    job("prepare", tiny_llama, tmp_path / "prepared", "--quantize-weights", "int8")
    expected = {file.name: file.read_bytes() for file in (tmp_path / "prepared").iterdir()}
    names = [name.removeprefix("prepared/") for name in storage.names("a-bucket") if name.startswith("prepared/")]
    assert sorted(names) == sorted(expected) and not storage.begun
    for name in set(names) - {MANIFEST}:  # which names the source
        assert storage.objects["a-bucket", f"prepared/{name}"][1] == expected[name]


@pytest.mark.long
def test_generate(ray_cluster: str, storage: Storage, tmp_path: Path) -> None:
    prompts = [f"What is {i} plus {i}?" for i in range(30)]
    lines = [json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0}) for prompt in prompts]
    content = "".join(line + "\n" for line in lines).encode()
    storage.put("a-bucket", "in.jsonl", content)
    # A process and a cluster of its own: that of the other tests knows nothing of the bucket.
    job("generate", "gs://a-bucket/in.jsonl", "gs://a-bucket/out.jsonl", *SMALL)
    assert storage.names("a-bucket") == ["in.jsonl", "out.jsonl"] and not storage.begun, "no parts are left"

    here = tmp_path / "in.jsonl"
    here.write_bytes(content)
    local = CliRunner().invoke(generate.app, [str(here), str(tmp_path / "out.jsonl"), *SMALL], catch_exceptions=False)
    assert local.exit_code == 0, local.stderr
    assert storage.objects["a-bucket", "out.jsonl"][1] == (tmp_path / "out.jsonl").read_bytes()


def test_a_large_file_goes_in_pieces(storage: Storage) -> None:
    """As a layer of a real model, or the answers of a long run, would."""
    storage.put("a-bucket", "something", b"so that there is a bucket")
    content = bytes(range(256)) * 2**16
    with fsspec.open("gs://a-bucket/large", "wb") as file:
        for start in range(0, len(content), 3 * 2**20):
            file.write(content[start : start + 3 * 2**20])
    assert storage.objects["a-bucket", "large"][1] == content and not storage.begun
