"""The demo's pictures show what their captions say, and the reader sees it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tools.demo_models.pictures.evaluate import GALLERY, Case, cases, evaluate
from tools.demo_models.pictures.reader import Reading, Seen, place, read, relation
from tools.demo_models.pictures.scenes import (
    COLORS,
    PLACES,
    RELATIONS,
    SHAPES,
    Scene,
    Thing,
    caption,
    combinations,
    draw,
    held_out,
    one_thing,
    training_caption,
    training_scene,
    two_things,
)
from tools.demo_models.pictures.tokenizer import words

pytestmark = pytest.mark.slow


def scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = random.Random(seed)
    return [training_scene(rng) for _ in range(count)]


def test_drawing_is_deterministic():
    assert scenes(20) == scenes(20)
    assert scenes(20) != scenes(20, seed=1)
    for scene in scenes(5):
        assert draw(scene).shape == (64, 64, 3) and draw(scene).dtype == np.uint8
        assert (draw(scene) == draw(scene)).all()
    rng = random.Random(0), random.Random(0)
    assert [training_caption(rng[0], one) for one in scenes(50)] == [
        training_caption(rng[1], one) for one in scenes(50)
    ]


def test_the_background_is_drawn_in_its_color():
    for scene in scenes(50):
        assert tuple(draw(scene)[0, 0]) == COLORS[scene.background]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_drawn_in_its_color_within_the_picture(shape):
    picture = draw(one_thing(random.Random(0), shape, "red", "white", "large"))
    drawn = (picture == COLORS["red"]).all(-1)
    assert drawn.sum() > 300
    assert not drawn[:2].any() and not drawn[-2:].any() and not drawn[:, :2].any() and not drawn[:, -2:].any()


def test_the_reader_reads_drawn_pictures():
    everything = {"count", "background", "color", "shape", "size"}
    right = []
    for scene in scenes(400, seed=5):
        case = Case("", "", scene, frozenset(everything | ({"relation"} if scene.relation else {"place"})))
        right.append(case.judge(read(draw(scene)))["all"])
    assert np.mean(right) >= 0.97


def test_the_reader_bears_some_blur_and_noise():
    rng = np.random.default_rng(0)
    right = []
    for scene in scenes(150, seed=6):
        picture = draw(scene).astype(float)
        blurred = sum(np.roll(picture, shift, (0, 1)) for shift in ((0, 0), (0, 1), (1, 0), (1, 1))) / 4
        noisy = np.clip(blurred + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
        scores = Case("", "", scene, frozenset({"background", "color", "shape"})).judge(read(noisy))
        right.append(scores["all"])
    assert np.mean(right) >= 0.93


def test_the_reader_sees_what_is_not_there():
    empty = read(draw(Scene("green", ())))
    assert empty == Reading("green", ())
    scene = Scene("blue", (Thing("circle", "red", "medium", 32, 32, 15),))
    case = Case("", "", scene, frozenset({"count", "color", "shape", "background", "place"}))
    assert case.judge(empty) == {"count": 0, "color": 0, "shape": 0, "background": 0, "place": 0, "all": 0}
    wrong = Scene("blue", (Thing("square", "red", "medium", 32, 32, 15),))
    assert case.judge(read(draw(wrong))) == {"count": 1, "color": 1, "shape": 0, "background": 1, "place": 1, "all": 0}


def test_a_speck_is_no_thing_but_a_second_patch_is_one():
    picture = draw(Scene("white", (Thing("circle", "red", "medium", 24, 24, 12),))).copy()
    picture[60:62, 60:62] = 0
    assert len(read(picture).things) == 1
    picture[50:60, 50:60] = 0
    assert [one.color for one in read(picture).things] == ["red", "black"]


def test_one_of_two_things_right_is_half_right():
    wanted = two_things(random.Random(0), (("circle", "red"), ("star", "blue")), "white", "above")
    case = Case("", "", wanted, frozenset({"count", "color", "shape", "relation"}))
    assert case.judge(read(draw(wanted)))["all"] == 1
    mixed = two_things(random.Random(0), (("circle", "red"), ("ring", "green")), "white", "above")
    scores = case.judge(read(draw(mixed)))
    assert (scores["color"], scores["shape"], scores["relation"], scores["all"]) == (0.5, 0.5, 1, 0)
    turned = two_things(random.Random(0), (("circle", "red"), ("star", "blue")), "white", "below")
    scores = case.judge(read(draw(turned)))
    assert (scores["color"], scores["shape"], scores["relation"]) == (1, 1, 0)


@pytest.mark.parametrize("name", RELATIONS)
def test_relations_are_drawn_as_said(name):
    scene = two_things(random.Random(1), (("square", "red"), ("heart", "blue")), "white", name)
    first, second = scene.things
    assert {"above": first.y < second.y, "below": first.y > second.y, "left of": first.x < second.x,
            "right of": first.x > second.x}[name]  # fmt: skip
    assert name in caption(scene)
    seen = {one.color: one for one in read(draw(scene)).things}
    assert relation(seen["red"], seen["blue"]) == name


@pytest.mark.parametrize("name", PLACES)
def test_places_are_drawn_as_said(name):
    scene = one_thing(random.Random(2), "ring", "black", "yellow", "small", name)
    assert f" {name} on a yellow background" in caption(scene)
    assert place(read(draw(scene)).things[0]) == name


def test_captions_read_as_people_write():
    thing = Thing("heart", "orange", "medium", 32, 32, 15)
    assert caption(Scene("blue", (thing,))) == "an orange heart on a blue background"
    pair = (Thing("star", "yellow", "small", 32, 16, 7.5), Thing("square", "green", "medium", 32, 48, 10))
    assert caption(Scene("orange", pair, relation="above")) == (
        "a small yellow star above a green square on an orange background"
    )
    assert {training_caption(random.Random(n), Scene("blue", (thing,))) for n in range(200)} >= {
        "an orange heart on a blue background", "orange heart", "orange heart on blue",
    }  # fmt: skip


def test_captions_have_no_words_but_the_tokenizers():
    rng = random.Random(0)
    known = set(words())
    for scene in scenes(2000):
        for text in (caption(scene), training_caption(rng, scene)):
            assert set(text.replace(",", "").split()) <= known, text
    assert all(set(prompt.replace(",", "").split()) <= known for prompt in GALLERY)


def test_the_held_out_combinations_are_a_tenth_and_stay_the_same():
    rng = random.Random(0)
    held = [one for one in combinations() if held_out(one_thing(rng, *one))]
    assert len(combinations()) == 392 and 30 <= len(held) <= 50
    assert held[:3] == [("circle", "red", "yellow"), ("circle", "red", "purple"), ("circle", "green", "orange")]
    # Every word is seen in training, in some other combination.
    seen = set(combinations()) - set(held)
    assert all(len({one[axis] for one in seen}) == count for axis, count in ((0, 7), (1, 8), (2, 8)))


def test_no_training_picture_is_held_out_and_every_case_that_says_so_is():
    assert not any(held_out(scene) for scene in scenes(3000))
    found = cases(42)
    assert found == cases(42) and found != cases(42, seed=1)
    for case in found:
        assert held_out(case.scene) == ("held out" in case.group)
    counts = {group: sum(case.group == group for case in found) for group in {case.group for case in found}}
    assert sorted(counts.values()) == [21, 21, 42, 42, 42]


def test_pairs_are_held_out_whichever_is_named_first():
    rng = random.Random(3)
    for _ in range(200):
        kinds = tuple((rng.choice(SHAPES), rng.choice(("red", "blue", "green"))) for _ in range(2))
        first = two_things(rng, kinds, "white", "above")
        assert held_out(first) == held_out(two_things(rng, kinds[::-1], "white", "right of"))


def test_an_evaluation_of_drawn_pictures_is_all_right():
    asked = cases(20)
    by_prompt = iter(asked)
    report = evaluate(lambda prompts: np.stack([draw(next(by_prompt).scene) for _ in prompts]), asked).summary()
    assert sum(group["cases"] for group in report.values()) == len(asked)
    assert min(group["all"] for group in report.values()) >= 0.9
    assert "relation" in report["two things, held out"] and "place" not in report["two things, held out"]


def test_relation_goes_by_the_longer_way():
    def at(x: float, y: float) -> Seen:
        return Seen("circle", "red", "small", x, y, 1.0)

    assert relation(at(10, 30), at(50, 35)) == "left of"
    assert relation(at(30, 50), at(35, 10)) == "below"
