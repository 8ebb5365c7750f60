"""The official client: pictures, edits, streams, and refusals in OpenAI's own form."""

import asyncio
import base64

import httpx
import numpy as np
import openai
import pytest

from tests.stable_diffusion.serve.picture_serving import MODEL, far_apart, noise, opened, png_of


def draw(client: openai.OpenAI, prompt: str = "a red circle", **fields) -> openai.types.ImagesResponse:
    extra = {name: fields.pop(name) for name in list(fields) if name not in ("n", "size", "response_format", "user")}
    return client.images.generate(model=MODEL, prompt=prompt, extra_body=extra, **fields)


def test_a_picture(client):
    reply = draw(client, size="24x16", response_format="b64_json", seed=5.0, steps=3.0, user="me", quality="high")
    assert reply.size == "24x16" and reply.output_format == "png" and reply.background == "opaque" and reply.created
    [image] = reply.data
    picture = opened(image.b64_json)
    assert picture.size == (24, 16) and image.seed == 5
    assert picture.text["parameters"].endswith(f"Seed: 5, Size: 24x16, Model: {MODEL}")
    assert opened(draw(client, size="auto").data[0].b64_json).size == (16, 16)


def test_n_pictures_are_those_of_seeds_that_follow_each_other(client):
    together = draw(client, n=3, seed=4294967294).data
    assert [image.seed for image in together] == [4294967294, 4294967295, 0]
    for image in together:
        [alone] = draw(client, seed=image.seed).data
        assert far_apart(image.b64_json, alone.b64_json) <= 1
    assert far_apart(together[0].b64_json, together[1].b64_json) > 1


def test_what_changes_a_picture(client):
    base = {"seed": 1, "steps": 5}
    [plain] = draw(client, **base).data
    for change in (
        {"negative_prompt": "blue square"},
        {"guidance_scale": 1.0},
        {"clip_skip": 2},
        {"scheduler": "dpm-solver++"},
        {"num_inference_steps": 6, "steps": None},
    ):
        [other] = draw(client, **base | change).data
        assert far_apart(plain.b64_json, other.b64_json) > 0, change


def edit(client: openai.OpenAI, image: bytes, mask: bytes | None = None, **fields) -> str:
    extra = {"seed": "2", "num_inference_steps": "6"} | fields
    files = {"mask": ("mask.png", mask)} if mask else {}
    size = extra.pop("size", "16x16")
    reply = client.images.edit(
        model=MODEL, image=("in.png", image), prompt="a red circle", size=size, extra_body=extra, **files
    )
    return reply.data[0].b64_json


def test_edits(client):
    image = noise(16, 16)
    alpha = np.where(np.arange(16)[None, :] < 8, 0, 255) * np.ones((16, 1))
    mask = png_of(np.dstack([np.zeros((16, 16, 3)), alpha]))
    whole, masked = edit(client, png_of(image)), edit(client, png_of(image), mask)
    assert far_apart(whole, masked) > 0
    assert "Denoising strength: 0.8" in opened(whole).text["parameters"]
    see_through = png_of(np.dstack([image, alpha]))
    assert far_apart(edit(client, see_through), masked) <= 1, "an image that is see-through is its own mask"
    weak, strong = edit(client, png_of(image), strength="0.2"), edit(client, png_of(image), strength="1")
    assert far_apart(weak, strong) > 0 and "strength: 0.2" in opened(weak).text["parameters"]
    large = edit(client, png_of(noise(90, 60)), size="24x16")
    assert opened(large).size == (24, 16)


def test_a_url_is_the_picture_itself(client):
    [named] = draw(client, response_format="url", seed=3).data
    [given] = draw(client, seed=3).data
    prefix, _, data = named.url.partition(",")
    assert prefix == "data:image/png;base64" and named.b64_json is None
    assert far_apart(data, given.b64_json) <= 1


def test_a_variation_is_an_edit_without_words(client, studio):
    image = png_of(noise(16, 16))
    extra = {"seed": "2", "num_inference_steps": "6"}
    [varied] = client.images.create_variation(
        model=MODEL, image=image, size="16x16", response_format="b64_json", extra_body=extra
    ).data
    body = {"init_images": [base64.b64encode(image).decode()], "denoising_strength": 0.8, "steps": 6, "seed": 2}
    same = httpx.post(f"{studio.url}/sdapi/v1/img2img", json=body, timeout=60).json()
    assert far_apart(varied.b64_json, same["images"][0]) <= 1


def test_a_streamed_picture(client):
    stream = client.images.generate(
        model=MODEL,
        prompt="a red circle",
        stream=True,
        partial_images=2,
        extra_body={"seed": 5, "steps": 9, "progress": True},
    )
    events = list(stream)
    partial = [event for event in events if event.type == "image_generation.partial_image"]
    assert [event.partial_image_index for event in partial] == [0, 1]
    assert all(opened(event.b64_json).size == (16, 16) and event.size == "16x16" for event in partial)
    steps = [event.step for event in events if event.type == "image_generation.step"]
    assert steps[-1] == 9 and steps == sorted(set(steps))
    assert events[-1].type == "image_generation.completed"
    [whole] = draw(client, seed=5, steps=9).data
    assert far_apart(events[-1].b64_json, whole.b64_json) <= 1


def test_a_streamed_edit(client):
    stream = client.images.edit(
        model=MODEL, image=png_of(noise(16, 16)), prompt="a cat", stream=True, partial_images=1, extra_body={"n": "1"}
    )
    assert [event.type for event in stream] == ["image_edit.partial_image", "image_edit.completed"]


def test_eight_at_a_time_of_different_sizes(studio):
    async def one(client: openai.AsyncOpenAI, index: int) -> tuple[int, str]:
        size = ("16x16", "24x16")[index % 2]
        extra = {"seed": index, "steps": 2 + index % 4, "scheduler": ("ddim", "euler", "lcm")[index % 3]}
        reply = await client.images.generate(model=MODEL, prompt="a cat", size=size, extra_body=extra)
        assert opened(reply.data[0].b64_json).size == ((16, 16), (24, 16))[index % 2]
        return index, reply.data[0].b64_json

    async def all_of_them(width: int) -> list[tuple[int, str]]:
        gate = asyncio.Semaphore(width)

        async def gated(index: int) -> tuple[int, str]:
            async with gate:
                return await one(client, index)

        async with openai.AsyncOpenAI(base_url=f"{studio.url}/v1", api_key="none", timeout=60) as client:
            return await asyncio.gather(*(gated(index) for index in range(16)))

    for (_, crowded), (_, alone) in zip(asyncio.run(all_of_them(8)), asyncio.run(all_of_them(1))):
        assert far_apart(crowded, alone) <= 1, "who else is in the batch makes no difference"


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "podslice"
    with pytest.raises(openai.NotFoundError) as refused:
        client.images.generate(model="dall-e-3", prompt="x")
    assert refused.value.code == "model_not_found" and MODEL in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": 7}, "prompt", "string"),
        ({"n": 0}, "n", "1 to 4"),
        ({"n": 5}, "n", "1 to 4"),
        ({"n": "2"}, "n", "integer"),
        ({"size": "512x512"}, "size", "16x16, 24x16"),
        ({"size": "big"}, "size", "WIDTHxHEIGHT"),
        ({"response_format": "ftp"}, "response_format", "'url'"),
        ({"output_format": "webp"}, "output_format", "'png'"),
        ({"background": "transparent"}, "background", "no transparent"),
        ({"partial_images": 2}, "partial_images", "stream: true"),
        ({"stream": True, "partial_images": 9}, "partial_images", "3"),
        ({"progress": True}, "progress", "stream: true"),
        ({"steps": 1000}, "num_inference_steps", "1 to 100"),
        ({"steps": 0}, "num_inference_steps", "at least 1"),
        ({"seed": -5}, "seed", "from 0"),
        ({"guidance_scale": 99}, "guidance_scale", "0 to 50"),
        ({"scheduler": "k_magic"}, "scheduler", "dpm-solver++"),
        ({"negative_prompt": "x" * 40_000}, "negative_prompt", "32000"),
    ],
)
def test_a_bad_generation_names_the_field(studio, fields, param, says):
    reply = httpx.post(f"{studio.url}/v1/images/generations", json={"prompt": "a cat"} | fields, timeout=60)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert says in error["message"] and error["code"]


GOOD, MASK = png_of(noise(16, 16)), png_of(np.zeros((16, 16, 4)))


@pytest.mark.parametrize(
    ("files", "fields", "param", "says"),
    [
        ({}, {}, "image", "there is none"),
        ([("image[]", GOOD), ("image[]", GOOD)], {}, "image", "there are 2"),
        ({"image": b"no picture"}, {}, "image", "not a readable PNG"),
        ({"image": GOOD[:100]}, {}, "image", "not a readable PNG"),
        ({"image": GOOD, "mask": b"x"}, {}, "mask", "not a readable PNG"),
        ({"image": GOOD, "mask": png_of(noise(8, 8))}, {}, "mask", "the same size"),
        ({"image": GOOD}, {"strength": "0"}, "strength", "above 0"),
        ({"image": GOOD}, {"strength": "much"}, "strength", "number"),
        ({"image": GOOD}, {"n": "many"}, "n", "integer"),
        ({"image": GOOD}, {"prompt": ""}, "prompt", "required"),
        ({"image": GOOD}, {"size": "1x1"}, "size", "16x16"),
        ({"image": GOOD}, {"response_format": "ftp"}, "response_format", "'url'"),
    ],
)
def test_a_bad_edit_names_the_field(studio, files, fields, param, says):
    files = list(files.items()) if isinstance(files, dict) else files
    files = [(name, ("file.png", data)) for name, data in files] or {"nothing": ("n", b"")}
    reply = httpx.post(f"{studio.url}/v1/images/edits", files=files, data={"prompt": "a cat"} | fields, timeout=60)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"--x\r\nwhat?", "multipart/form-data; boundary=x"),
        (b"", ""),
    ],
)
def test_a_form_that_is_none(studio, content, kind):
    reply = httpx.post(f"{studio.url}/v1/images/edits", content=content, headers={"Content-Type": kind})
    assert reply.status_code == 400 and reply.json()["error"]["message"]


@pytest.mark.parametrize("body", ["{bad", "", "[]", '"text"', "\xff"])
def test_a_body_that_is_no_json_object(studio, body):
    reply = httpx.post(f"{studio.url}/v1/images/generations", content=body.encode("latin-1"))
    assert reply.status_code == 400 and reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/images/edits", "/sdapi/v1/img2img"])
def test_a_body_without_end_is_refused(studio, path):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    reply = httpx.post(studio.url + path, content=b" " * (33 * 2**20), headers=headers, timeout=60)
    assert reply.status_code == 413 and "32 MiB" in reply.text


def test_unknown_paths_and_methods(studio):
    missing, wrong = httpx.get(f"{studio.url}/v1/nothing"), httpx.get(f"{studio.url}/v1/images/edits")
    assert missing.status_code == 404 and "/v1/nothing" in missing.json()["error"]["message"]
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
