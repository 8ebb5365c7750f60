"""How each dialect names ControlNets and sends their maps, over a backend that draws greys.

What is drawn with them is compared with diffusers in `test_control_pictures.py`. The oracles here: the fields, names
and defaults of the web UI extension's own class (internal_controlnet/args.py), OpenAI's client, and Pillow.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image, ImageOps

from apps.stable_diffusion.engine.controlnets.use import ControlUse, KnownControls
from apps.stable_diffusion.engine.request import PictureRequest
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import LocalServer, local_server, noise, png_of

UNIT = {
    "is_ui": False, "input_mode": "simple", "batch_images": None, "output_dir": "", "loopback": False, "enabled": True,
    "module": "none", "model": "Edges", "weight": 1.0, "resize_mode": "Crop and Resize", "low_vram": False,
    "processor_res": -1, "threshold_a": -1, "threshold_b": -1, "guidance_start": 0.0, "guidance_end": 1.0,
    "pixel_perfect": False, "control_mode": "Balanced", "inpaint_crop_input_image": True, "hr_option": "Both",
    "save_detected_map": True, "advanced_weighting": None, "effective_region_mask": None,
    "pulid_mode": "Fidelity", "ipadapter_input": None, "mask": None,
}  # fmt: skip
"""A unit with the class's defaults, which is on."""
MAP = noise(16, 16, 1)


@pytest.fixture
def server() -> Iterator[tuple[LocalServer, list[PictureRequest]]]:
    """With the ControlNets `Edges` and `depth`, and what was asked of the engine."""
    asked: list[PictureRequest] = []
    backend = LoopBackend(at_start=asked.append, controls=KnownControls(("Edges", "depth")))
    backend.sizes = ((16, 16), (32, 16), (32, 32))
    with local_server(backend) as local:
        yield local, asked


def b64(pixels: Any) -> str:
    return base64.b64encode(png_of(pixels)).decode()


def draw(local: LocalServer, *units: Any, path: str = "txt2img", name: str = "controlnet", **fields: Any) -> Any:
    scripts = {name: {"args": list(units)}}
    body = {"prompt": "a cat", "steps": 2, "alwayson_scripts": scripts, **fields}
    return httpx.post(f"{local.url}/sdapi/v1/{path}", json=body, timeout=60)


def the_use(server: Any, *units: Any, **fields: Any) -> ControlUse:
    local, asked = server
    reply = draw(local, *units, **fields)
    assert reply.status_code == 200, reply.text
    assert "alwayson" not in json.dumps(reply.json()["parameters"])
    [use] = asked.pop().controls
    return use


@pytest.mark.parametrize("name", ["controlnet", "ControlNet"])
def test_the_class_s_defaults(server: Any, name: str) -> None:
    use = the_use(server, UNIT | {"image": b64(MAP)}, name=name)
    assert (use.name, use.weight, use.start, use.end, use.mode) == ("Edges", 1.0, 0.0, 1.0, "balanced")
    assert np.array_equal(use.image, MAP) and use.second_image is None


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"model": "edges [d14c016b]"}, {"name": "Edges"}),
        ({"weight": 0.7, "guidance_start": 0.2, "guidance_end": 0.6}, {"weight": 0.7, "start": 0.2, "end": 0.6}),
        ({"control_mode": "My prompt is more important"}, {"mode": "prompt"}),
        ({"control_mode": 2}, {"mode": "control"}),
        ({"control_mode": "ControlNet is more important"}, {"mode": "control"}),
        ({"module": None, "processor_res": 512, "lowvram": True}, {}),
    ],
)
def test_fields(server: Any, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    use = the_use(server, UNIT | {"image": b64(MAP)} | fields)
    for name, value in wanted.items():
        assert getattr(use, name) == value, name


def test_older_names(server: Any) -> None:
    """`input_image` and `guidance`: `legacy_field_alias` of the class. Without `enabled` a unit is on, as once."""
    use = the_use(server, {"input_image": f"data:image/png;base64,{b64(MAP)}", "guidance": 0.5, "model": "depth"})
    assert use.name == "depth" and use.end == 0.5 and np.array_equal(use.image, MAP)
    assert np.array_equal(the_use(server, UNIT | {"image": {"image": b64(MAP), "mask": None}}).image, MAP)


@pytest.mark.parametrize("module", ["invert (from white bg & black line)", "Invert"])
def test_inverted(server: Any, module: str) -> None:
    use = the_use(server, UNIT | {"image": b64(MAP), "module": module})
    assert np.array_equal(use.image, 255 - MAP)


WIDE = noise(48, 16, 2)


@pytest.mark.parametrize(
    "mode, theirs",
    [
        ("Just Resize", lambda image: image.resize((16, 16), Image.Resampling.LANCZOS)),
        (0, lambda image: image.resize((16, 16), Image.Resampling.LANCZOS)),
        ("Crop and Resize", lambda image: ImageOps.fit(image, (16, 16), Image.Resampling.LANCZOS)),
        ("Inner Fit (Scale to Fit)", lambda image: ImageOps.fit(image, (16, 16), Image.Resampling.LANCZOS)),
    ],
)
def test_a_map_of_another_size(server: Any, mode: Any, theirs: Any) -> None:
    use = the_use(server, UNIT | {"image": b64(WIDE), "resize_mode": mode})
    assert np.array_equal(use.image, np.asarray(theirs(Image.fromarray(WIDE))))


def test_resize_and_fill(server: Any) -> None:
    """The whole map, on the median color of its sides."""
    flat = np.full((16, 48, 3), (9, 8, 7), np.uint8)
    flat[6:10, 20:28] = 200
    use = the_use(server, UNIT | {"image": b64(flat), "resize_mode": "Resize and Fill"})
    assert tuple(use.image[0, 0]) == tuple(use.image[-1, -1]) == (9, 8, 7)
    assert {tuple(color) for color in use.image.reshape(-1, 3).tolist()} == {(9, 8, 7), (200, 200, 200)}


def test_a_map_of_few_colors_gets_no_others(server: Any) -> None:
    areas = np.kron(np.arange(9).reshape(3, 3), np.ones((7, 7))).astype(np.uint8)[..., None].repeat(3, 2) * 20
    use = the_use(server, UNIT | {"image": b64(areas), "resize_mode": "Just Resize"})
    assert use.image.shape == (16, 16, 3) and set(use.image.ravel()) <= set(areas.ravel())


def test_a_second_pass(server: Any) -> None:
    """`hr_option`: HiResFixOption of the extension."""
    big = noise(32, 32, 3)
    for option, first, second in (("Both", 1, 1), ("Low res only", 1, 0), ("High res only", 0, 1)):
        unit = UNIT | {"image": b64(big), "hr_option": option}
        local, asked = server
        reply = draw(local, unit, enable_hr=True, hr_resize_x=32, denoising_strength=0.5)
        assert reply.status_code == 200, reply.text
        [use] = asked[0].controls
        assert (use.image is not None, use.second_image is not None) == (first, second), option
        assert len(asked) == 2, "both passes"
        assert len(asked[1].controls) == second
        if second:
            assert np.array_equal(use.second_image, big) and np.array_equal(asked[1].controls[0].image, big)
        asked.clear()


def test_the_image_of_image_to_image_is_the_default_map(server: Any) -> None:
    use = the_use(server, UNIT, path="img2img", init_images=[b64(MAP)])
    assert np.array_equal(use.image, MAP)
    local, _ = server
    reply = draw(local, UNIT)
    assert reply.status_code == 400 and "a unit has no image" in reply.json()["detail"]


def test_only_masked_cuts_the_map_as_the_image(server: Any) -> None:
    """The mask's surroundings are painted at the model's size: the map's same part goes with them."""
    image, mask = noise(64, 64, 4), np.zeros((64, 64), np.uint8)
    mask[24:40, 24:40] = 255
    fields = {"init_images": [b64(image)], "mask": b64(mask), "mask_blur": 0, "inpaint_full_res_padding": 0}
    use = the_use(server, UNIT | {"image": b64(image)}, path="img2img", **fields)
    assert np.array_equal(use.image, image[24:40, 24:40])
    whole = the_use(server, UNIT | {"image": b64(image)}, path="img2img", inpaint_full_res=False, **fields)
    assert np.array_equal(whole.image, np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.LANCZOS)))


@pytest.mark.parametrize(
    "unit, says",
    [
        ({"model": "canny"}, "there is no ControlNet 'canny'; choose one of: Edges, depth"),
        ({"model": None}, "alwayson_scripts.controlnet.args[0].model"),
        ({"module": "canny"}, "'canny' is not run here: send the map that it makes, and module none"),
        ({"weight": 3}, "args[0].weight"),
        ({"weight": "many"}, "args[0].weight"),
        ({"guidance_start": 0.8, "guidance_end": 0.2}, "start is 0.8 and end is 0.2"),
        ({"control_mode": "Mine"}, "'Mine' is not one of 'Balanced', 'My prompt"),
        ({"resize_mode": 7}, "7 is not one of 'Just Resize'"),
        ({"image": "no picture"}, "alwayson_scripts.controlnet"),
        ({"image": b64(MAP)[:60]}, "is not a readable PNG"),
        ({"image": {"image": b64(MAP), "mask": b64(MAP)}}, "a mask is not offered here"),
        ({"mask": b64(MAP)}, "mask is not offered here; leave it out"),
        ({"effective_region_mask": b64(MAP)}, "effective_region_mask is not offered here"),
        ({"advanced_weighting": [1.0] * 13}, "advanced_weighting is not offered here"),
        ({"hr_option": "None"}, "hr_option"),
    ],
)
def test_what_is_refused(server: Any, unit: dict[str, Any], says: str) -> None:
    reply = draw(server[0], UNIT | {"image": b64(MAP)} | unit)
    assert reply.status_code == 400 and says in reply.json()["detail"], reply.text


def test_more_units_than_a_picture_can_have(server: Any) -> None:
    unit = UNIT | {"image": b64(MAP)}
    reply = draw(server[0], *[unit] * 4)
    assert reply.status_code == 400 and "4 units are on; a picture can have 3" in reply.json()["detail"]
    off = unit | {"enabled": False}
    assert draw(server[0], *[unit] * 3, *[off] * 7).status_code == 200
    assert len(server[1][-1].controls) == 3


def test_the_lists(server: Any) -> None:
    """What clients of the extension ask first: scripts/api.py."""
    url = f"{server[0].url}/controlnet"
    assert httpx.get(f"{url}/version").json()["version"] >= 2
    assert httpx.get(f"{url}/model_list").json() == {"model_list": ["Edges", "depth"]}
    modules = httpx.get(f"{url}/module_list").json()
    assert "none" in modules["module_list"] and set(modules["module_detail"]) == set(modules["module_list"])
    assert httpx.get(f"{url}/settings").json() == {"control_net_unit_count": 3}
    [every] = httpx.get(f"{url}/control_types").json()["control_types"].values()
    assert {"module_list", "model_list", "default_option", "default_model"} == set(every)


def test_openai_s_client(server: Any) -> None:
    local, asked = server
    with openai.OpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        one = {"name": "Edges", "image": b64(MAP)}
        two = {"name": "depth", "image": b64(WIDE), "weight": 0.5, "end": 0.8, "mode": "control", "resize": "fill"}
        client.images.generate(prompt="a cat", size="16x16", extra_body={"controlnets": [one, two]})
        first, second = asked.pop().controls
        assert np.array_equal(first.image, MAP) and first.weight == 1.0
        assert (second.name, second.weight, second.end, second.mode) == ("depth", 0.5, 0.8, "control")
        form = {"controlnets": json.dumps([one])}
        client.images.edit(prompt="a cat", image=("in.png", png_of(MAP)), size="16x16", extra_body=form)
        assert [use.name for use in asked.pop().controls] == ["Edges"]
        for wrong, says in (
            ([{"name": "Edges"}], "controlnets[0].image"),
            ([one | {"mode": "both"}], "controlnets[0].mode"),
            ([one] * 4, "controlnets"),
            ("edges", "must be JSON, such as"),
            ([one | {"name": "pose"}], "there is no ControlNet 'pose'"),
        ):
            with pytest.raises(openai.BadRequestError, match=says.replace("[", r"\[").replace("]", r"\]")):
                client.images.generate(prompt="a cat", size="16x16", extra_body={"controlnets": wrong})


def test_a_server_without_any() -> None:
    with local_server(LoopBackend()) as local:
        reply = draw(local, UNIT | {"image": b64(MAP)})
        assert reply.status_code == 400
        assert "this server has no ControlNet; set controlnets in its config" in reply.json()["detail"]
        assert httpx.get(f"{local.url}/controlnet/model_list").json() == {"model_list": []}
