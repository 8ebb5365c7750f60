"""Which modules `rank_pattern` and `alpha_pattern` mean. The oracle is PEFT's own `get_pattern_key`."""

import random
import threading

import pytest
from peft.utils.other import get_pattern_key

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.adapters import patterns
from apps.llm.engine.adapters.patterns import Patterns

MODULES = [
    f"{start}layers.{layer}.{target}"
    for start in ("", "model.", "model.language_model.")
    for layer in (0, 1, 10, 21)
    for target in ("self_attn.q_proj", "self_attn.qkv_proj", "mlp.down_proj", "mlp.gate_proj")
]
KEYS = [
    "q_proj",
    "self_attn.q_proj",
    "layers.1.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "^model.layers.1.mlp.down_proj",
    "1.mlp.down_proj",
    "mlp_down_proj",
    "kv_proj",
    "proj",
    "",
    "layers",
    "s.1.self_attn.q_proj",
    r"layers\.(0|1)\.self_attn\.q_proj",
    r"model\.layers\.\d+\.mlp\.(gate|down)_proj",
    r".*\.(q|qkv)_proj",
    r".*",
    r"q_proj|down_proj",
    r"layers\.[12]?[01]\..*_proj",
    r"(?i:MLP)\.gate_proj",
    r"(?!.*mlp).*",
    r"layers\.\d{2}\.mlp\.\w+",
]


def test_they_are_those_that_peft_means() -> None:
    draw, hits = random.Random(3), 0
    for _ in range(400):
        keys = draw.sample(KEYS, draw.randrange(1, 5))
        found = Patterns("file", "rank_pattern", {key: key for key in keys})
        for module in MODULES:
            expected = get_pattern_key(keys, module)
            got = found.of(module, module)
            assert got == expected, (keys, module)
            hits += got != module
    assert hits > 1000
    assert Patterns("file", "rank_pattern", None).of("a", 7) == Patterns("file", "rank_pattern", {}).of("a", 7) == 7


@pytest.mark.parametrize(
    "key", [r"(([a-z_.0-9])+.)+[A-Z]([a-z])+", r"(\w|\w\w)+\.(\w|\w\w)+\.(.|..)+\d", r"((.*)*)*\d"]
)
def test_one_that_takes_for_ever_is_refused_and_holds_nobody(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "BUDGET_S", 0.3)
    beats, ended = 0, threading.Event()

    def work() -> None:
        for module in MODULES:
            found.of(module * 3, None)

    def run() -> None:
        try:
            work()
        except CheckpointError as error:
            problems.append(str(error))
        ended.set()

    problems: list[str] = []
    found = Patterns("adapter_config.json", "rank_pattern", {"first": 1, key: 2})
    thread = threading.Thread(target=run)
    thread.start()
    while not ended.wait(0.01):
        beats += 1
    thread.join()
    if problems:
        assert repr(key) in problems[0] and problems[0].startswith("adapter_config.json: rank_pattern: ")
        assert beats >= 3, "others ran meanwhile"


def test_one_of_them_does_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "BUDGET_S", 0.2)
    found = Patterns("file", "alpha_pattern", {r"(([a-z_.0-9])+.)+[A-Z]([a-z])+": 1})
    with pytest.raises(CheckpointError, match="takes too long"):
        for module in MODULES:
            found.of(module * 3, None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["q_proj"], "must be an object"),
        ("q_proj", "must be an object"),
        ({"(": 1}, "no regular expression"),
        ({"a{2}{3}": 1}, "no regular expression"),
        ({"(" * 900 + ")" * 900: 1}, "may have"),
        ({"(" * 400 + ")" * 400: 1}, "no regular expression"),
        ({"a" * 1001: 1}, "may have"),
        ({str(n): 1 for n in range(20_001)}, "may have"),
    ],
)
def test_what_is_no_pattern_is_refused_by_name(value: object, says: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: rank_pattern.* {says}"):
        Patterns("config.json", "rank_pattern", value)
