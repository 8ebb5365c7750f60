"""Fields of AUTOMATIC1111's API that change a picture are built or refused; at their defaults they change nothing.

The oracles: the fields and defaults of AUTOMATIC1111's own classes (modules/processing.py, modules/api/models.py and
modules/shared_options.py of its 1.10), written down here; the same picture asked for in another way; and Pillow.
"""

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.stable_diffusion.serve.picture_serving import MODEL, far_apart, noise, opened, png_of

BOTH = {
    "prompt": "a red circle", "negative_prompt": "", "styles": [], "seed": 7, "subseed": -1, "subseed_strength": 0,
    "seed_resize_from_h": -1, "seed_resize_from_w": -1, "sampler_name": None, "scheduler": None, "batch_size": 1,
    "n_iter": 1, "steps": 5, "restore_faces": None, "tiling": None, "do_not_save_samples": False,
    "do_not_save_grid": False, "eta": None, "s_min_uncond": None, "s_churn": None, "s_tmax": None, "s_tmin": None,
    "s_noise": None, "override_settings": {}, "override_settings_restore_afterwards": True,
    "refiner_checkpoint": None, "refiner_switch_at": None, "disable_extra_networks": False, "firstpass_image": None,
    "comments": None, "script_name": None, "script_args": [], "send_images": True, "save_images": False,
    "alwayson_scripts": {}, "force_task_id": None, "infotext": None,
}  # fmt: skip
TEXT = BOTH | {
    "denoising_strength": 0, "enable_hr": False, "firstphase_width": 0, "firstphase_height": 0, "hr_scale": 2.0,
    "hr_upscaler": None, "hr_second_pass_steps": 0, "hr_resize_x": 0, "hr_resize_y": 0, "hr_checkpoint_name": None,
    "hr_sampler_name": None, "hr_scheduler": None, "hr_prompt": "", "hr_negative_prompt": "",
}  # fmt: skip
IMAGE = BOTH | {
    "resize_mode": 0, "denoising_strength": 0.75, "image_cfg_scale": None, "mask": None, "mask_blur_x": 4,
    "mask_blur_y": 4, "mask_blur": None, "mask_round": True, "inpainting_fill": 0, "inpaint_full_res": True,
    "inpaint_full_res_padding": 0, "inpainting_mask_invert": 0, "initial_noise_multiplier": None, "latent_mask": None,
    "include_init_images": False,
}  # fmt: skip


def b64(pixels: Any) -> str:
    return base64.b64encode(png_of(pixels)).decode()


NOISE = noise(16, 16)
START = {"init_images": [b64(NOISE)]}


def post(studio: Any, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{studio.url}/sdapi/v1/{path}", json=fields, timeout=60)


def drawn(studio: Any, path: str = "txt2img", **fields: Any) -> str:
    reply = post(studio, path, **{"prompt": "a red circle", "steps": 5, "seed": 7} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["images"][0]


def test_all_of_a_class_s_defaults_change_nothing(studio):
    assert far_apart(drawn(studio, **TEXT), drawn(studio)) <= 1
    assert far_apart(drawn(studio, "img2img", **IMAGE | START), drawn(studio, "img2img", **START)) <= 1
    settings = httpx.get(f"{studio.url}/sdapi/v1/options").json()
    assert far_apart(drawn(studio, override_settings=settings), drawn(studio)) <= 1, "as clients send them back"
    assert post(studio, "options", **settings).status_code == 200


CHANGES: list[dict[str, Any]] = [
    {"subseed_strength": 0.5, "subseed": 3}, {"seed_resize_from_h": 256}, {"seed_resize_from_w": 256}, {"eta": 0.5},
    {"eta": 0, "sampler_name": "Euler a"}, {"s_churn": 0.4}, {"s_min_uncond": 1.0}, {"s_noise": 0.9},
    {"refiner_checkpoint": "refiner", "refiner_switch_at": 0.8}, {"styles": ["anime"]}, {"tiling": True},
    {"restore_faces": True}, {"script_name": "X/Y/Z plot"}, {"infotext": "a cat\nSteps: 3"},
    {"firstphase_width": 8}, {"controlnet_units": [{"model": "canny"}]},
    {"alwayson_scripts": {"ADetailer": {"args": [True, False, {"ad_model": "face"}]}}},
]  # fmt: skip


@pytest.mark.parametrize("fields", CHANGES, ids=lambda fields: "-".join(fields))
@pytest.mark.parametrize("path", ["txt2img", "img2img"])
def test_what_would_change_the_picture_is_refused_by_name(studio, path, fields):
    reply = post(studio, path, prompt="a cat", **START, **fields)
    assert reply.status_code == 400 and reply.json()["detail"].startswith(next(iter(fields))), reply.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLIP_stop_at_last_layers", 13),
        ("CLIP_stop_at_last_layers", "two"),
        ("sd_vae", "v1-5.vae.pt"),
        ("eta_noise_seed_delta", 31337),
        ("tiling", True),
    ],
)
def test_settings_that_would_change_the_picture(studio, name, value):
    reply = post(studio, "txt2img", prompt="a cat", override_settings={name: value})
    assert reply.status_code == 400 and reply.json()["detail"].startswith(f"override_settings.{name}"), reply.text
    assert post(studio, "options", **{name: value}).status_code == 400


@pytest.mark.parametrize(
    "scripts",
    [
        {"controlnet": {"args": []}},
        {"controlnet": {"args": [{"enabled": False, "model": "canny"}, {"enabled": False}]}},
        {"ADetailer": {"args": [False, False, {"ad_model": "face"}]}},
        {"Refiner": {}},
    ],
)
def test_scripts_that_are_off_do_nothing(studio, scripts):
    assert far_apart(drawn(studio, alwayson_scripts=scripts), drawn(studio)) <= 1


def test_clip_skip(studio):
    """A setting there, a field in some of its forks; 0 and 1 are the last layer."""
    plain = drawn(studio)
    second = drawn(studio, override_settings={"CLIP_stop_at_last_layers": 2})
    assert far_apart(second, plain) > 1
    assert far_apart(drawn(studio, clip_skip=2), second) <= 1
    assert far_apart(drawn(studio, "img2img", **START, clip_skip=2), drawn(studio, "img2img", **START)) > 1
    reply = post(studio, "txt2img", prompt="a cat", override_settings={"CLIP_stop_at_last_layers": 2.0})
    assert "Clip skip: 2" in json.loads(reply.json()["info"])["infotexts"][0]
    for fields in ({"clip_skip": 0}, {"clip_skip": 1}, {"override_settings": {"CLIP_stop_at_last_layers": 1}}):
        assert far_apart(drawn(studio, **fields), plain) <= 1
    assert post(studio, "options", CLIP_stop_at_last_layers=1).status_code == 200
    reply = post(studio, "options", CLIP_stop_at_last_layers=2)
    assert reply.status_code == 400 and "send it with each request" in reply.json()["detail"]
    reply = post(studio, "txt2img", prompt="a cat", clip_skip=4)
    assert reply.status_code == 400 and "text encoder has 3 layers" in reply.json()["detail"]


def test_null_is_absent(studio):
    for path, more in (("txt2img", {}), ("img2img", START)):
        nothing = dict.fromkeys((TEXT if path == "txt2img" else IMAGE).keys() - {"prompt", "steps", "seed"})
        assert far_apart(drawn(studio, path, **more | nothing), drawn(studio, path, **more)) <= 1
    info = json.loads(post(studio, "img2img", prompt="x", **START, denoising_strength=None).json()["info"])
    assert info["denoising_strength"] == 0.75


def test_samplers_by_all_their_names(studio):
    listed = httpx.get(f"{studio.url}/sdapi/v1/samplers").json()
    for sampler in listed:
        own, *others = (httpx.get(f"{studio.url}/imagine", params=imagine(name), timeout=60) for name in names(sampler))
        assert own.status_code == 200, own.text
        assert all(far_apart(own.content, other.content) <= 1 for other in others), sampler
        body = {"prompt": "a red circle", "steps": 4, "seed": 7, "scheduler": sampler["aliases"][-1]}
        given = httpx.post(f"{studio.url}/v1/images/generations", json=body, timeout=60).json()
        assert far_apart(given["data"][0]["b64_json"], own.content) <= 1
        assert far_apart(drawn(studio, steps=4, sampler_name=sampler["aliases"][-1]), own.content) <= 1


def names(sampler: dict[str, Any]) -> list[str]:
    return [sampler["name"], *sampler["aliases"]]


def imagine(name: str) -> dict[str, Any]:
    return {"prompt": "a red circle", "num_inference_steps": 4, "seed": 7, "scheduler": name}


def test_karras_as_a_name_and_as_a_field(studio):
    as_name = drawn(studio, sampler_name="DPM++ 2M Karras")
    as_field = drawn(studio, sampler_name="DPM++ 2M", scheduler="Karras")
    as_alias = drawn(studio, sampler_name="k_dpmpp_2m_ka", scheduler="Automatic")
    assert far_apart(as_name, as_field) <= 1 and far_apart(as_name, as_alias) <= 1
    assert far_apart(as_name, drawn(studio, sampler_name="DPM++ 2M")) > 0
    params = imagine("dpm-solver++ karras") | {"num_inference_steps": 5}
    assert far_apart(httpx.get(f"{studio.url}/imagine", params=params, timeout=60).content, as_name) <= 1
    assert "Sampler: DPM++ 2M, Schedule type: Karras," in opened(as_name).text["parameters"]
    for fields in ({"sampler_name": "DDIM Karras"}, {"sampler_name": "LMS Karras"}, {"scheduler": "Exponential"}):
        assert post(studio, "txt2img", prompt="a cat", **fields).status_code == 400


def test_an_empty_prompt_and_a_strength_of_nothing(studio):
    assert opened(drawn(studio, prompt="")).size == (16, 16)
    [back] = post(studio, "img2img", **START, denoising_strength=0, steps=20, seed=1).json()["images"]
    others = [drawn(studio, "img2img", **START, denoising_strength=0.05, steps=20, seed=1, prompt="")]
    assert far_apart(back, others[0]) <= 1, "one step of twenty"


def test_a_mask_keeps_the_rest_pixel_by_pixel(studio):
    """The kept pixels are those of the client's image: no decoder makes noise again."""
    image, mask = noise(60, 40), np.zeros((40, 60), np.uint8)
    mask[10:20, 30:40] = 255
    sent = {"init_images": [b64(image)], "mask": b64(mask), "mask_blur": 0}
    part = np.asarray(opened(drawn(studio, "img2img", **sent)))
    assert part.shape == image.shape, "only masked: the image's own size"
    assert (part[mask == 0] == image[mask == 0]).all() and (part[mask > 0] != image[mask > 0]).any()
    padded = np.asarray(opened(drawn(studio, "img2img", **sent, inpaint_full_res_padding=8)))
    assert (padded[mask == 0] == image[mask == 0]).all() and (padded[mask > 0] != part[mask > 0]).any()
    whole = np.asarray(opened(drawn(studio, "img2img", **sent, inpaint_full_res=False, width=24, height=16)))
    small = np.asarray(Image.fromarray(image).resize((24, 16), Image.Resampling.LANCZOS))
    assert whole.shape == small.shape and (whole[:3] == small[:3]).all() and (whole[5, 13] != small[5, 13]).any()
    for change in ({"mask_blur": 4}, {"inpainting_fill": 1}, {"inpainting_mask_invert": 1}):
        assert far_apart(drawn(studio, "img2img", **sent | change), drawn(studio, "img2img", **sent)) > 0, change
    assert post(studio, "img2img", prompt="x", **sent, inpainting_fill=2).status_code == 400


def test_a_mask_of_another_size_is_stretched(studio):
    mask = np.zeros((16, 16), np.uint8)
    mask[:, :8] = 255
    large = np.asarray(Image.fromarray(mask).resize((64, 64), Image.Resampling.NEAREST))
    fields = START | {"mask_blur": 0, "inpaint_full_res": False, "inpainting_fill": 1}
    same, stretched = (
        np.asarray(opened(drawn(studio, "img2img", **fields, mask=b64(each))), np.int16) for each in (mask, large)
    )
    beside = [*range(6), *range(10, 16)]  # at its edge, a mask that was stretched is not as sharp
    assert np.abs(same - stretched)[:, beside].max() <= 1


def test_transparent_pictures_are_on_white(studio):
    """Pillow's own composition."""
    alpha = np.where(np.arange(16)[:, None] < 8, 0, 200).astype(np.uint8) * np.ones((1, 16), np.uint8)
    picture = Image.fromarray(np.dstack([NOISE, alpha]), "RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    seen, flat = (
        drawn(studio, "img2img", init_images=[b64(each)], denoising_strength=0.2)
        for each in (np.asarray(picture), np.asarray(white.convert("RGB")))
    )
    assert far_apart(seen, flat) <= 1


SYNTAX = ["[red:blue:0.5] circle", "[red::3] circle", "[red|blue] circle", "[a (red) cat:.5]", "<hypernet:x:1> a",
          "red AND blue", "((red|white) [blue|green])"]  # fmt: skip
WEIGHTED = ["a (red:1.5) circle", "a (red circle:.8)", "((red)) circle", "a [red] circle", "a photo (small): red",
            "a (red (big) circle: 1.2 )", "a smile :)", "[red:blue] circle", "red|blue"]  # fmt: skip
LETTERS = ["at 10:30, wide", "a coffee break", "1 < 2 > 0", r"miku \(vocaloid\)",
           r"a \[red\] circle", r"a \(red:1.5\) circle"]  # fmt: skip


def test_what_changes_words_between_steps_is_refused(studio):
    for prompt in SYNTAX:
        for field in ("prompt", *(["negative_prompt"] if "AND" not in prompt else [])):
            reply = post(studio, "txt2img", **{"prompt": "a cat", field: prompt})
            assert reply.status_code == 400 and reply.json()["detail"].startswith(f"{field} has "), (prompt, reply.text)
    network = "a circle <lora:shapes:0.7>"
    assert "this server has no LoRA" in post(studio, "txt2img", prompt=network).json()["detail"]
    refused = post(studio, "txt2img", prompt="a cat", negative_prompt=network).json()["detail"]
    assert refused.startswith("negative_prompt has "), "networks are named in the prompt, as there"


def test_weights_are_read(studio):
    """As in `conditioning/test_emphasis.py`; the other dialects read them when they are asked to."""
    letters = drawn(studio, prompt="a red circle")
    for prompt in WEIGHTED:
        reply = post(studio, "txt2img", prompt=prompt, steps=1)
        assert reply.status_code == 200, (prompt, reply.text)
        info = json.loads(reply.json()["info"])
        assert info["warnings"] == [] and info["prompt"] == prompt and info["infotexts"][0].startswith(prompt)
    for prompt in LETTERS:
        assert json.loads(post(studio, "txt2img", prompt=prompt, steps=1).json()["info"])["warnings"] == []
    weighted = drawn(studio, prompt="a (red:3) circle")
    assert far_apart(weighted, letters) > 5
    asked = {"prompt": "a (red:3) circle", "seed": 7, "num_inference_steps": 5}
    assert far_apart(httpx.get(f"{studio.url}/imagine", params=asked | {"emphasis": "true"}).content, weighted) <= 1
    body = {"prompt": "a (red:3) circle", "seed": 7, "steps": 5, "emphasis": True}
    [image] = httpx.post(f"{studio.url}/v1/images/generations", json=body, timeout=60).json()["data"]
    assert far_apart(base64.b64decode(image["b64_json"]), weighted) <= 1 and "warnings" not in image
    plain = httpx.get(f"{studio.url}/imagine", params=asked | {"prompt": "(red)"})
    assert far_apart(drawn(studio, prompt=r"\(red\)"), plain.content) <= 1
    parts = post(studio, "txt2img", prompt="red BREAK blue").json()["detail"]
    assert parts.startswith("prompt has 2 parts between BREAKs") and "max_prompt_tokens=150" in parts
    negative = {"negative_prompt": "(a cat:1.2.3)"}
    for reply in (
        post(studio, "txt2img", prompt="a cat", **negative),
        httpx.post(f"{studio.url}/v1/images/generations", json=body | negative, timeout=60),
    ):
        assert reply.status_code == 400 and "negative_prompt: the weight '1.2.3' is no number" in reply.text


def test_other_dialects_say_that_they_read_letters(studio):
    body = {"prompt": "a (red:1.5) circle", "steps": 1}
    [image] = httpx.post(f"{studio.url}/v1/images/generations", json=body, timeout=60).json()["data"]
    assert any("(red:1.5)" in warning for warning in image["warnings"])
    shown = httpx.get(f"{studio.url}/imagine", params={"prompt": "<lora:x:1> cat", "num_inference_steps": 1})
    assert "<lora:x:1>" in shown.headers["x-warnings"]


def test_what_clients_ask_when_they_start(studio):
    """Paths and shapes: AUTOMATIC1111's modules/api/api.py, and its Lora extension's."""

    def get(path: str) -> Any:
        reply = httpx.get(f"{studio.url}/sdapi/v1/{path}")
        assert reply.status_code == 200, path
        return reply.json()

    lists = ("loras", "sd-vae", "hypernetworks", "face-restorers", "realesrgan-models", "prompt-styles", "script-info",
             "extensions")  # fmt: skip
    assert all(get(path) == [] for path in lists)
    assert get("upscalers")[0]["name"] == "None" and get("embeddings") == {"loaded": {}, "skipped": {}}
    assert get("scripts") == {"txt2img": [], "img2img": []} and get("cmd-flags")["api"] is True
    ram = get("memory")["ram"]
    assert 0 < ram["used"] < ram["total"] and ram["free"] == ram["total"] - ram["used"]
    assert [each["label"] for each in get("schedulers")] == ["Automatic", "Karras"]
    for what in ("checkpoints", "vae", "loras"):
        assert httpx.post(f"{studio.url}/sdapi/v1/refresh-{what}").json() is None


def test_png_info_reads_what_was_drawn(studio):
    fields = {"negative_prompt": "blue, dark", "steps": 3, "seed": 11, "cfg_scale": 6.5}
    reply = post(studio, "png-info", image=drawn(studio, **fields)).json()
    read = reply["parameters"]
    assert read["Prompt"] == "a red circle" and read["Negative prompt"] == "blue, dark"
    assert (read["Steps"], read["Seed"], read["CFG scale"], read["Model"]) == ("3", "11", "6.5", MODEL)
    assert (read["Size-1"], read["Size-2"]) == ("16", "16") and reply["items"]["seed"] == "11"
    nothing = post(studio, "png-info", image=b64(NOISE)).json()
    assert nothing == {"info": "", "items": {}, "parameters": {}}
    assert post(studio, "png-info", image="%%%").status_code == 400


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
@pytest.mark.parametrize("encoding", ["UNICODE", "ASCII", ""])
def test_png_info_reads_the_comment_of_exif(studio, kind, encoding):
    """As AUTOMATIC1111's read_info_from_image. The bytes are those that piexif, with which it writes them, makes."""
    name = "caf\u00e9 \u65e5\u672c" if encoding != "ASCII" else "cafe"
    text = f"{name}\nNegative prompt: blue\nSteps: 3, Sampler: Euler, Seed: 11, Size: 16x24"
    exif = Image.Exif()
    written = text.encode("utf-16-be" if encoding == "UNICODE" else "utf-8")
    start = encoding.encode().ljust(8, b"\0") if encoding else b""
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = start + written
    exif[ExifTags.Base.Orientation] = 6
    file = io.BytesIO()
    Image.new("RGB", (24, 16)).save(file, kind, exif=exif)
    reply = post(studio, "png-info", image=base64.b64encode(file.getvalue()).decode()).json()
    assert reply["info"] == text and reply["items"]["exif comment"] == text
    assert (reply["parameters"]["Prompt"], reply["parameters"]["Seed"]) == (name, "11")


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*" + b"\xff" * 40])
def test_png_info_survives_broken_exif(studio, exif):
    file = io.BytesIO()
    Image.new("RGB", (24, 16)).save(file, "JPEG", exif=exif)
    reply = post(studio, "png-info", image=base64.b64encode(file.getvalue()).decode())
    assert reply.status_code == 200 and reply.json()["info"] == ""
