"""Names of pages, and the news about them: whoever follows the news knows what the cache holds."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from apps.llm.api import CacheNews
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.weights.digest import SAMPLE, SAMPLES, model_digest
from apps.llm.engine.weights.model import Model
from apps.llm.page_names import model_root, page_name, page_root
from apps.llm.placement.cache_log import KEPT
from apps.llm.text import Engine, SamplingParams
from ray_configs.llm import EngineConfig


class Follower:
    """Knows a cache by its news alone."""

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.number = 0

    def read(self, news: CacheNews) -> None:
        self.names = set(news.stored) if news.whole else self.names - set(news.forgotten) | set(news.stored)
        self.number = news.number


@pytest.mark.parametrize("seed", range(5))
def test_who_follows_the_news_knows_the_names(seed: int) -> None:
    """However often each looks; the truth is what the pool finds by name."""
    draw, pool = random.Random(seed), PagePool(40)
    often, seldom, held = Follower(), Follower(), list[list[int]]()
    names = [bytes([i]) for i in range(120)]
    for turn in range(3000):
        if held and draw.random() < 0.5:
            pages = held.pop(draw.randrange(len(held)))
            if draw.random() < 0.05:
                pool.spoil(pages)
            pool.release(pages)
        elif (pages := pool.allocate(draw.randrange(1, 8))) is not None:
            held.append(pages)
            for page in pages:
                pool.publish(page, draw.choice(names))
        followers = [often] if turn % 700 else [often, seldom]
        for follower in followers:
            follower.read(pool.news.since(follower.number))
            assert follower.names == {name for name in names if pool.named([name])}


def test_who_has_missed_too_much_is_told_all() -> None:
    pool = PagePool(3)
    follower = Follower()
    follower.read(pool.news.since(0))
    for i in range(KEPT):
        (page,) = pool.allocate(1) or ()
        pool.publish(page, i.to_bytes(4, "little"))
        pool.release([page])
    news = pool.news.since(1)
    assert news.whole and len(news.stored) <= 2
    assert pool.news.since(news.number) == CacheNews(number=news.number)
    assert pool.news.since(news.number + 5).whole, "of an engine that was there before this one"


def test_a_name_stands_for_the_whole_prefix() -> None:
    assert page_name(b"", [1, 2]) == page_name(b"", (1, 2))
    assert page_name(page_name(b"", [1]), [3]) != page_name(page_name(b"", [2]), [3])


def test_roots_differ_and_are_the_same_everywhere() -> None:
    """Equal inputs give equal roots in every process: a router finds a prefix by its pages' names."""
    model = b"model"
    roots = [
        page_root(model),
        page_root(b"other"),
        page_root(model, b"\1" * 16),
        page_root(model, b"", ("key a", "")),
        page_root(model, b"", ("", "key a")),
        page_root(model, b"", ("key ab", "")),
        page_root(model, b"", ("key a", "b")),
        page_root(model, b"\1" * 16, ("key a", "b")),
        model_root(model, 8, ("bfloat16", "none", "none")),
        model_root(model, 16, ("bfloat16", "none", "none")),
        model_root(model, 16, ("bfloat16", "none", "int8")),
        model_root(model, 16, ("bfloat16", "int8", "none")),
    ]
    assert len(set(roots)) == len(roots)
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in (model, b"", b"key a", b"b"))
    assert page_root(model, b"", ("key a", "b")) == hashlib.blake2b(framed, digest_size=16).digest()


def test_an_engine_says_which_pages_of_a_prompt_it_has(load: Callable[..., Engine]) -> None:
    engine = load(page_size=16)
    prompt = list(range(7, 7 + 50))
    root, wanted = page_root(engine.capabilities.page_root, b"", ("", "")), list[bytes]()
    for first in range(0, 48, 16):
        wanted.append(page_name(wanted[-1] if wanted else root, prompt[first : first + 16]))
    (before,) = engine.tokens.cache_news()
    assert not set(wanted) & set(before.stored)
    list(engine.submit(prompt, SamplingParams(max_tokens=2)))
    (news,) = engine.tokens.cache_news([before.number])
    assert set(wanted) <= set(news.stored)


def digest(folder: Path, **fields: Any) -> bytes:
    return model_digest(Model.open(EngineConfig(model=str(folder), **fields)))


def test_a_models_digest_is_of_its_files(llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(llama, copy)
    assert digest(llama) == digest(copy)
    weights = copy / "model.safetensors"
    tensors = safetensors.numpy.load_file(weights)
    name = max(tensors)
    tensors[name] = np.nextafter(tensors[name], np.float32(9), dtype=np.float32)  # a fine-tune of one tensor
    safetensors.numpy.save_file(tensors, weights, {"format": "pt"})
    assert digest(copy) != digest(llama)
    shutil.copy(llama / "model.safetensors", weights)
    assert digest(copy) == digest(llama)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": config["rms_norm_eps"] * 2}))
    assert digest(copy) != digest(llama)


def test_the_longest_sequence_counts_where_the_frequencies_depend_on_it(llama: Path, tmp_path: Path) -> None:
    scaled = tmp_path / "scaled"
    shutil.copytree(llama, scaled)
    config = json.loads((scaled / "config.json").read_text())
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    kept = {name: value for name, value in config.items() if not name.startswith("rope")}
    (scaled / "config.json").write_text(json.dumps(kept | {"rope_parameters": scaling}))
    for folder, alike in ((llama, True), (scaled, False)):
        assert (digest(folder) == digest(folder, max_model_len=32)) == alike


def test_of_a_large_file_pieces_are_read(llama: Path, tmp_path: Path) -> None:
    """Training changes all of them; the last bytes are among them."""
    copy = tmp_path / "large"
    shutil.copytree(llama, copy)
    weights = copy / "model.safetensors"
    tensors = safetensors.numpy.load_file(weights)
    tensors["padding"] = np.zeros(2 * SAMPLES * SAMPLE, np.uint8)
    safetensors.numpy.save_file(tensors, weights, {"format": "pt"})
    before = digest(copy)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert digest(copy) != before
