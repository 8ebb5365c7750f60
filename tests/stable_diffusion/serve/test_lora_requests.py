"""How each dialect names LoRAs, and LoRAs that come and go: with real files, over a backend that draws greys.

AUTOMATIC1111's rule is that of `ExtraNetworkLora.activate`: name, the text encoders' weight, the UNet's, which is the
former by default; `te=` and `unet=` set either.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import safetensors.numpy

from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.loras.layers import LoraLayer
from apps.stable_diffusion.engine.loras.names import LoraNames
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import LocalServer, local_server, noise, opened, png_of

LAYER = "mid_block.attentions.0.proj_in"


def write(path: Path, **metadata: str) -> None:
    key = f"lora_unet_{LAYER.replace('.', '_')}"
    tensors = {f"{key}.lora_down.weight": np.ones((2, 4), "f"), f"{key}.lora_up.weight": np.ones((6, 2), "f")}
    safetensors.numpy.save_file(tensors, path, metadata)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[LocalServer, list[PictureRequest]]]:
    """With the LoRAs `ink` and `face` in a folder, and what was asked of the engine."""
    (folder := tmp_path / "loras").mkdir()
    write(folder / "ink.safetensors", ss_output_name="Ink v2")
    write(folder / "face.safetensors")
    known = KnownLoras(LoraNames({"unet": {LAYER: LoraLayer(1, 4, 6)}}, "unet"), 8, str(folder))
    known.refresh()
    asked: list[PictureRequest] = []
    backend = LoopBackend(at_start=asked.append, loras=known)
    with local_server(backend, lora_folder=str(folder), lora_loading=True, model_roots=(str(folder),)) as local:
        yield local, asked


def draw(local: LocalServer, prompt: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{local.url}/sdapi/v1/txt2img", json={"prompt": prompt, "steps": 2, **fields}, timeout=60)


@pytest.mark.parametrize(
    "prompt, words, uses",
    [
        ("a cat <lora:ink>", "a cat ", [("ink", 1.0, 1.0)]),
        ("a cat<lora:ink:0.8>, red", "a cat, red", [("ink", 0.8, 0.8)]),
        ("<lora:ink:0.5:0.75>a cat", "a cat", [("ink", 0.75, 0.5)]),
        ("a <lora:ink:te=0.5:unet=-2> cat", "a  cat", [("ink", -2.0, 0.5)]),
        ("a <lora:ink:0.25:unet=1> cat", "a  cat", [("ink", 1.0, 0.25)]),
        ("<lyco:face:0.1><lora:Ink v2:2>a cat", "a cat", [("face", 0.1, 0.1), ("Ink v2", 2.0, 2.0)]),
    ],
)
def test_marks_as_automatic1111_reads_them(server: Any, prompt: str, words: str, uses: list) -> None:
    local, asked = server
    reply = draw(local, prompt)
    assert reply.status_code == 200, reply.text
    [request] = asked
    assert request.prompt == words and request.loras == tuple(LoraUse(*use) for use in uses)
    info = json.loads(reply.json()["info"])
    again = draw(local, info["infotexts"][0].split("\nSteps")[0])
    assert again.status_code == 200 and asked[1].loras == request.loras, "what metadata say can be asked for again"


def test_marks_that_are_refused(server: Any) -> None:
    local, asked = server
    for prompt, message in (
        ("<lora:pencil:1>", "prompt: there is no LoRA 'pencil'; choose one of: face, ink"),
        ("<lora:ink:much>", "write <lora:name:0.8>"),
        ("<lora:ink:1:1:8>", "write <lora:name:0.8>"),
        ("<lora:ink:nan>", "weight of 'ink' is nan"),
        ("<lora:ink:1><hypernet:x:1>", "<hypernet:x:1>"),
    ):
        reply = draw(local, prompt)
        assert reply.status_code == 400 and message in reply.json()["detail"], (prompt, reply.text)
    refused = draw(local, "a cat", negative_prompt="<lora:ink:1>")
    assert refused.status_code == 400 and "negative_prompt" in refused.json()["detail"]
    assert asked == []


def test_the_lists(server: Any, tmp_path: Path) -> None:
    local, _ = server

    def listed() -> dict[str, Any]:
        return {each.pop("name"): each for each in httpx.get(f"{local.url}/sdapi/v1/loras").json()}

    metadata = {"ss_output_name": "Ink v2"}
    assert listed()["ink"] == {"alias": "Ink v2", "path": "ink.safetensors", "metadata": metadata}
    write(tmp_path / "loras" / "pencil.safetensors")
    assert "pencil" not in listed()
    assert httpx.post(f"{local.url}/sdapi/v1/refresh-loras").status_code == 200
    assert listed()["pencil"]["alias"] == "pencil" and draw(local, "<lora:pencil:1>").status_code == 200


def test_openai_and_imagine(server: Any) -> None:
    local, asked = server
    with openai.OpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        body = {"loras": [{"name": "ink", "weight": 0.5}, {"name": "face", "weight": 1, "text_weight": 0}], "steps": 2}
        client.images.generate(prompt="a cat", extra_body=body)
        form = {"loras": json.dumps([{"name": "ink"}]), "steps": 2}
        client.images.edit(image=("a.png", png_of(noise(16, 16))), prompt="a cat", extra_body=form)
        for wrong, message in (
            ([{"name": "pencil"}], "there is no LoRA 'pencil'"),
            ([{"name": "ink", "weight": 1000}], "it can be -100 to 100"),
            ([{"weight": 1}], "name"),
            ("{", "loras"),
        ):
            with pytest.raises(openai.BadRequestError, match=message) as caught:
                client.images.generate(prompt="a cat", extra_body={"loras": wrong})
            assert caught.value.param.startswith("loras")
    params = {"prompt": "a cat", "loras": "ink:0.5,face", "num_inference_steps": 2}
    picture = httpx.get(f"{local.url}/imagine", params=params)
    assert "<lora:ink:0.5> <lora:face:1>" in opened(picture.content).text["parameters"]
    assert [request.loras for request in asked] == [
        (LoraUse("ink", 0.5, 0.5), LoraUse("face", 1.0, 0.0)),
        (LoraUse("ink"),),
        (LoraUse("ink", 0.5, 0.5), LoraUse("face")),
    ]
    wrong = httpx.get(f"{local.url}/imagine", params=params | {"loras": "ink:x"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "loras"


def test_loading_and_unloading(server: Any, tmp_path: Path) -> None:
    local, _ = server

    def ask(verb: str, **body: str) -> httpx.Response:
        return httpx.post(f"{local.url}/v1/{verb}_lora_adapter", json=body, timeout=60)

    path = str(tmp_path / "loras" / "ink.safetensors")
    assert ask("load", lora_name="sketch", lora_path=path).status_code == 200
    assert draw(local, "<lora:sketch:1>").status_code == 200
    assert "already" in ask("load", lora_name="sketch", lora_path=path).json()["error"]["message"]
    assert ask("unload", lora_name="sketch").status_code == 200
    assert draw(local, "<lora:sketch:1>").status_code == 400 == ask("unload", lora_name="sketch").status_code
    write(tmp_path / "outside.safetensors")
    (tmp_path / "loras" / "pickle.pt").write_bytes(b"")
    for place, message in (
        (str(tmp_path / "outside.safetensors"), "lora_path: must be on the hub, or below"),
        (str(tmp_path / "loras" / "pickle.pt"), "is a pickle"),
        (str(tmp_path / "loras" / "absent.safetensors"), "no such"),
    ):
        refused = ask("load", lora_name="other", lora_path=place)
        assert refused.status_code == 400 and message in refused.json()["error"]["message"]
    with local_server(LoopBackend()) as closed:
        answer = httpx.post(f"{closed.url}/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "a/b"})
        assert answer.status_code == 404 and "lora_loading is not set" in answer.json()["error"]["message"]
