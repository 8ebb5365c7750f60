"""GET /imagine: the tutorial's request, and a picture's making as server-sent events."""

import base64

import httpx
import pytest

from tests.stable_diffusion.serve.picture_serving import MODEL, events_of, far_apart, opened


def test_the_tutorials_request(studio):
    reply = httpx.get(f"{studio.url}/imagine", params={"prompt": "a red circle"}, timeout=60)
    assert reply.status_code == 200 and reply.headers["content-type"] == "image/png"
    picture = opened(reply.content)
    assert picture.size == (16, 16) and picture.mode == "RGB"
    assert picture.text["seed"] == reply.headers["x-seed"]
    again = httpx.get(f"{studio.url}/imagine", params={"prompt": "a red circle"}, timeout=60)
    assert again.headers["x-seed"] != reply.headers["x-seed"], "each has a seed of its own"


def test_every_parameter_and_what_the_picture_says_of_itself(studio):
    asked = {
        "prompt": "a cat, \u00e9t\u00e9 \u2603",
        "negative_prompt": "blue",
        "size": "24x16",
        "seed": "4294967295",
        "num_inference_steps": "3",
        "guidance_scale": "5.5",
        "scheduler": "euler-ancestral",
    }
    reply = httpx.get(f"{studio.url}/imagine", params=asked, timeout=60)
    assert reply.status_code == 200, reply.text
    picture = opened(reply.content)
    assert picture.size == (24, 16)
    assert picture.text["parameters"] == (
        "a cat, \u00e9t\u00e9 \u2603\nNegative prompt: blue\n"
        f"Steps: 3, Sampler: Euler a, CFG scale: 5.5, Seed: 4294967295, Size: 24x16, Model: {MODEL}"
    )
    own = {key: picture.text[key] for key in ("prompt", "seed", "steps", "model")}
    assert own == {"prompt": asked["prompt"], "seed": "4294967295", "steps": "3", "model": MODEL}
    same = httpx.get(f"{studio.url}/imagine", params=asked | {"size": "auto", "width": "24"}, timeout=60)
    assert same.status_code == 200 and opened(same.content).size == (16, 16), "size goes before width"


def test_a_long_prompt_is_cut_and_said_so(studio):
    reply = httpx.get(f"{studio.url}/imagine", params={"prompt": "red circle " * 40}, timeout=60)
    assert reply.status_code == 200 and "prompt" in reply.headers["x-warnings"]


@pytest.mark.parametrize(
    ("params", "param", "says"),
    [
        ({}, "prompt", "prompt is empty"),
        ({"prompt": ""}, "prompt", "say what the picture should show"),
        ({"prompt": " \n"}, "prompt", "prompt is empty"),
        ({"prompt": "x" * 32_001}, "prompt", "32000"),
        ({"size": "17x16"}, "size", "16x16, 24x16"),
        ({"size": "large"}, "size", "WIDTHxHEIGHT"),
        ({"width": "512"}, "size", "16x16, 24x16"),
        ({"num_inference_steps": "0"}, "num_inference_steps", "at least 1"),
        ({"num_inference_steps": "101"}, "num_inference_steps", "1 to 100"),
        ({"num_inference_steps": "ten"}, "num_inference_steps", "integer"),
        ({"guidance_scale": "-1"}, "guidance_scale", "0 to 50"),
        ({"guidance_scale": "nan"}, "guidance_scale", "finite"),
        ({"seed": "-1"}, "seed", "from 0"),
        ({"seed": "4294967296"}, "seed", "4294967295"),
        ({"scheduler": "magic"}, "scheduler", "euler-ancestral"),
        ({"steps": "5"}, "steps", "not permitted"),
    ],
)
def test_a_bad_request_is_told_why(studio, params, param, says):
    reply = httpx.get(f"{studio.url}/imagine", params={"prompt": "a cat"} | params if params else {})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param and says in error["message"], error


@pytest.mark.parametrize("how", [{"params": {"stream": "true"}}, {"headers": {"Accept": "text/event-stream"}}])
def test_progress(studio, how):
    asked = {"prompt": "a cat", "seed": "3", "num_inference_steps": "9", "previews": "2"}
    reply = httpx.get(
        f"{studio.url}/imagine", params=asked | how.get("params", {}), headers=how.get("headers"), timeout=60
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.text)
    names = [name for name, _ in events]
    assert names[0] == "queued" and names[-2:] == ["picture", "end"]
    steps = [data["step"] for name, data in events if name == "step"]
    assert steps == sorted(set(steps)) and steps[-1] == 9
    assert all(data["steps"] == 9 and data["picture"] == 0 for name, data in events if name == "step")
    previews = [data for name, data in events if name == "preview"]
    assert [(p["number"], p["step"]) for p in previews] == [(0, 3), (1, 6)]
    assert all(opened(p["b64_json"]).size == (16, 16) for p in previews)
    picture = events[-2][1]
    assert picture["seed"] == 3 and picture["parameters"] == opened(picture["b64_json"]).text["parameters"]
    del asked["previews"]
    alone = httpx.get(f"{studio.url}/imagine", params=asked, timeout=60)
    assert far_apart(base64.b64decode(picture["b64_json"]), alone.content) <= 1


def test_a_stream_that_cannot_begin_has_its_own_status(studio):
    reply = httpx.get(f"{studio.url}/imagine", params={"prompt": "", "stream": "true"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "prompt"
