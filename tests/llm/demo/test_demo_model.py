"""The shipped demo model is whole, says what its card says, and can be made again."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

import apps.llm.demo
from apps.llm.demo.documents import NAMES, NAMES_HELDOUT, RELATIONS, documents, questions_of
from apps.llm.demo.evaluate import (
    PROMISED,
    cases,
    evaluate,
    heldout_questions,
    names_only,
    same_words,
    trained_on,
    without_noise,
)
from apps.llm.demo.generate import greedy
from apps.llm.demo.model import ModelConfig, forward, init_params, load_model, save_weights
from apps.llm.demo.phrasing import expand, normalise
from apps.llm.demo.tokenizer import encode_document, encode_prompt
from apps.llm.demo.train import TrainConfig, packed, train

MODEL = Path(apps.llm.demo.__file__).parent / "model"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads((MODEL / "evaluation.json").read_text())


def test_the_folder_is_a_small_hugging_face_model():
    files = {file.name: file.stat().st_size for file in MODEL.iterdir()}
    assert set(files) == {
        "README.md", "config.json", "evaluation.json", "generation_config.json",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert sum(files.values()) <= 10e6
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"]


def test_the_tokenizer_gives_back_any_text(tokenizer):
    for text in ("How many days are in a week?", "  7+15 = ?\n", "¿Qué? 한국어 \t🙂", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_transformers_and_the_training_agree_on_a_chat(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(MODEL)
    document = next(one for one in documents(3, long=True) if one.messages[0]["role"] == "system")
    messages = list(document.messages)
    ids, _ = encode_document(tokenizer, document)
    assert theirs.apply_chat_template(messages, return_dict=False) == ids
    opened = theirs.apply_chat_template(messages[:2], add_generation_prompt=True, return_dict=False)
    assert opened == encode_prompt(tokenizer, messages[:2])
    assert theirs("seven days").input_ids == encode_prompt(tokenizer, "seven days")
    assert (theirs.bos_token, theirs.eos_token) == ("<|bos|>", "<|eos|>")


def test_transformers_computes_the_same_logits(tokenizer):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config, params = load_model(MODEL)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    document = next(documents(5, long=True))
    tokens = np.array([encode_document(tokenizer, document)[0][:160]])
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    positions = np.arange(tokens.shape[1])[None]
    ours = forward(params, config, tokens, positions, np.zeros_like(tokens))
    np.testing.assert_allclose(ours, expected, atol=2e-3, rtol=1e-3)


def test_the_promised_prompts_are_answered(tokenizer):
    prompts = [*PROMISED, *([{"role": "user", "content": prompt}] for prompt in PROMISED)]
    answers = greedy(*load_model(MODEL), tokenizer, batch=4, max_tokens=32)(prompts)
    for answer, expected in zip(answers, [*PROMISED.values()] * 2, strict=True):
        assert answer.strip() == expected


def test_the_card_reports_the_recorded_evaluation(recorded):
    card, evaluation = (MODEL / "README.md").read_text(), recorded["evaluation"]
    assert evaluation["cases"] == len(cases()) >= 200
    assert f"**{evaluation['score']:.1%}** of {evaluation['cases']} held-out prompts" in card
    table = dict(re.findall(r"^\| ([\w,: -]+) \| (\d+ \| \d+) \|$", card, re.MULTILINE))
    counted = {name: f"{one['right']} | {one['cases']}" for name, one in evaluation["categories"].items()}
    assert table == counted
    right = sum(one["right"] for one in evaluation["categories"].values())
    assert evaluation["score"] == round(right / evaluation["cases"], 4)


@pytest.mark.xfail(strict=True, reason="undertrained: the goal needs more steps than were run")
def test_the_score_reaches_the_goal(recorded):
    assert recorded["evaluation"]["score"] >= 0.9


def test_no_training_template_makes_a_heldout_question():
    assert heldout_questions().isdisjoint(trained_on())
    for case in cases():
        assert trained_on().isdisjoint(without_noise(case.question)), case.question
    assert set(NAMES).isdisjoint(NAMES_HELDOUT)


def test_no_heldout_question_is_in_the_training_text(tokenizer):
    held = heldout_questions()
    batches = islice(packed(tokenizer, TrainConfig(), long=False), 40)
    text = "\n".join(tokenizer.decode(row) for batch in batches for row in batch.tokens)
    text = normalise(text)
    for case in cases():
        if len(case.question.split()) > 4:  # shorter ones are parts of other questions
            assert f" {normalise(case.question)} " not in text
    asked = {normalise(question) for document in islice(documents(11), 3000) for question in questions_of(document)}
    assert len(asked) > 2000
    assert len(asked & held) <= 3  # by a word left out; `packed` passes over such documents


def test_unseen_pairs_are_never_trained_on():
    relations = {relation.name: relation for relation in RELATIONS}
    unseen = [row for row in relations["sum"].rows if relations["sum"].unseen(row)]
    assert unseen
    for row in unseen:
        assert row not in relations["sum"].seen_rows
        mirrored = {"x": row["y"], "y": row["x"]}
        assert relations["sum"].unseen(row | mirrored)


def test_the_same_seed_writes_the_same_text():
    for long in (False, True):
        first, again, other = (list(islice(documents(seed, long), 200)) for seed in (7, 7, 8))
        assert first == again != other


def test_alternatives_of_a_template_nest():
    assert sorted(expand("(a|b (c|d)|) x")) == ["a x", "b c x", "b d x", "x"]


@pytest.mark.parametrize(
    ("relation", "question", "value", "answer", "right"),
    [
        ("sum", "what is 5 plus 0", "5", "5 plus 0 is 5.", True),
        ("sum", "what is 5 plus 0", "5", "5 plus 0 is 0.", False),
        ("sum", "what is 5 plus 2", "7", "5 plus 2 is 7 or 8.", False),
        ("sum", "what is 5 plus 2", "7", "It is seven", True),
        ("parts", "how many hours are in a day", "twenty-four", "24 hours, so four.", False),
        ("parts", "how many seasons are there", "four", "There are twenty-four.", False),
        ("parts", "how many hours are there", "twenty-four", "There are TWENTY-FOUR hours", True),
        ("day after", "which day follows Monday", "Tuesday", "Tuesday comes after Monday.", True),
        ("day after", "which day follows Monday", "Tuesday", "Monday or Tuesday or Friday", False),
        ("larger", "23 or 5: which is more", "23", "23 is larger.", True),
        ("larger", "23 or 5: which is more", "23", "5 is larger.", False),
        ("capital", "France: what is its capital", "Paris", "I do not know.", False),
    ],
)
def test_an_answer_must_name_the_right_fact_and_no_other(relation, question, value, answer, right):
    relation = next(one for one in RELATIONS if one.name == relation)
    assert names_only(answer, question, value, relation) is right


def test_the_evaluation_scores_what_answers_it():
    expected = {id(case.prompt): case.expected for case in cases()}
    perfect = evaluate(lambda prompts: [expected.get(id(prompt), "") for prompt in prompts])
    assert perfect.score == 1.0
    silent = evaluate(lambda prompts: [""] * len(prompts))
    assert silent.score == 0.0
    assert same_words("{a: 7}", "A 7")


def test_packed_rows_hold_whole_documents(tokenizer):
    batch = next(packed(tokenizer, TrainConfig(tokens=1024), long=False))
    assert batch.tokens.shape == (8, 128)
    starts = batch.positions == 0
    for segments, start in zip(batch.segments, starts, strict=True):
        real = segments >= 0
        assert start[real].sum() == segments.max() + 1
    assert set(np.unique(batch.weights[batch.segments < 0])) <= {0.0}


def test_packed_documents_do_not_see_each_other():
    config = ModelConfig(64, 32, 64, 2, 4, 2, 8)
    params = init_params(config, jax.random.key(0))
    one, two = np.arange(5)[None] + 1, np.arange(7)[None] + 20
    both = np.concatenate([one, two], axis=1)
    positions = np.concatenate([np.arange(5), np.arange(7)])[None]
    segments = np.array([[0] * 5 + [1] * 7])
    packed_logits = forward(params, config, both, positions, segments)[:, 5:]
    alone = forward(params, config, two, np.arange(7)[None], np.zeros((1, 7), int))
    np.testing.assert_allclose(packed_logits, alone, atol=1e-5)


def test_weights_survive_saving_in_bfloat16(tmp_path):
    config = ModelConfig(64, 32, 64, 2, 4, 2, 8)
    params = init_params(config, jax.random.key(1))
    save_weights(tmp_path, config, params)
    (tmp_path / "config.json").write_text(json.dumps(config.__dict__))
    loaded_config, loaded = load_model(tmp_path)
    assert loaded_config == config
    for name, value in params.items():
        np.testing.assert_array_equal(loaded[name], value.astype(jnp.bfloat16).astype(jnp.float32))


def test_training_lowers_the_loss(tokenizer):
    losses = []
    config = TrainConfig(steps=24, tokens=512, row=128, long_every=100, warmup=2, learning_rate=3e-2)
    model = ModelConfig(tokenizer.get_vocab_size(), 32, 64, 1, 4, 2, 8)
    train(config, model, tokenizer, lambda step, loss, tokens: losses.append(loss))
    assert len(losses) == 24
    assert losses[0] == pytest.approx(np.log(model.vocab_size), rel=0.1)
    assert np.mean(losses[-4:]) < 0.75 * losses[0]
