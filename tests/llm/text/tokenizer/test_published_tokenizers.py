"""Tokenizers as they are published: more tokens than the model has, ends that only they name, templates elsewhere."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import llguidance
import numpy as np
import pytest
import transformers

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import RequestError
from apps.llm.engine.grammar import child as grammar_child
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.schemas.written import schema_grammar
from apps.llm.text import Engine, EngineConfig
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import SamplingParams
from tests.llm.engine import tiny_models

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
VOCAB = tiny_models.VOCAB


@pytest.fixture(scope="module")
def published(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a token that it has no row for, as fine-tunes add [PAD]; only its tokenizer names its end."""
    folder = tmp_path_factory.mktemp("published") / "model"
    shutil.copytree(llama, folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([f"[unused{i}]" for i in range(len(tokenizer), VOCAB)], special_tokens=True)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    assert tokenizer.pad_token_id == VOCAB
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, VOCAB, 99999]}))
    return folder


@pytest.fixture(scope="module")
def engine(published: Path, compile_cache: str) -> Iterator[Engine]:
    settings = tiny_models.SMALL | {"model": str(published), "compile_cache": compile_cache}
    loaded = Engine.load(EngineConfig(**settings))
    yield loaded
    loaded.shutdown()


def test_such_a_token_in_a_text_is_refused(engine: Engine) -> None:
    for text in ("[PAD]", "the quick [PAD] fox"):
        with pytest.raises(RequestError, match=rf"^prompt: .*\[PAD\].*{VOCAB}") as refused:
            engine.submit(text)
        assert refused.value.field == "prompt"
    with pytest.raises(RequestError, match="prefix"):
        engine.score("[PAD]", ["the"])
    engine.submit("the PAD]").abort()


@pytest.mark.parametrize("end", [0, 1])
def test_an_answer_ends_at_a_zero_and_at_the_tokenizers_own_end(engine: Engine, end: int) -> None:
    """vLLM: the generation config's ends, and the tokenizer's. What no token can be does not keep it from starting."""
    (output,) = engine.submit("the quick", SamplingParams(max_tokens=5, logit_bias={end: 100.0}))
    assert (output.token_ids, output.text, output.finish_reason) == ((end,), "", "stop")


def test_masks_are_those_of_the_tokenizer_without_it(published: Path, llama: Path) -> None:
    masks = []
    for folder in (llama, published):
        tokenizer = ModelTokenizer.of_folder(str(folder), VOCAB)
        (matcher,) = Grammars(tokenizer.fast, VOCAB, (1,)).matchers(schema_grammar(SCHEMA)).result()
        found = [np.array(matcher.allowed())]
        for token in tokenizer.encode_suffix('{"a": 7}'):
            matcher.consume(token)
            found.append(np.array(matcher.allowed()))
        masks.append(found)
    np.testing.assert_array_equal(*masks)


def test_masks_of_other_processes_too(published: Path) -> None:
    tokenizer = ModelTokenizer.of_folder(str(published), VOCAB)
    size = 1 + max(tokenizer.fast.get_vocab().values())
    held = llguidance.LLTokenizer(tokenizer.fast.to_str(), n_vocab=size, eos_token=[1])
    matcher = llguidance.LLMatcher(held, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA)))
    state, mask = grammar_child.Matchers(matcher, VOCAB).first()
    assert (state, len(mask)) == (grammar_child.GOES_ON, VOCAB // 8)


@pytest.mark.parametrize("remote", [False, True])
def test_a_chat_template_of_a_file_of_its_own(llama: Path, tmp_path: Path, remote: bool) -> None:
    """As Mistral Small 3.1 and Pixtral have it; transformers' processor reads the same file."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    place = str(folder)
    if remote:
        import fsspec

        place = "memory://templates"
        fsspec.filesystem("memory").put(str(folder), "/templates", recursive=True)
    with Checkpoint(place).tokenizer_folder() as found:
        tokenizer = ModelTokenizer.of_folder(found)
    assert tokenizer.render([{"role": "user", "content": "Hi"}]) == "<user>Hi<assistant>"
    (folder / "chat_template.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"chat_template\.json"):
        ModelTokenizer.of_folder(str(folder))


def test_a_tokenizer_model_alone_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.llm.text.tokenizer.files.find_spec", lambda name: None)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model.*sentencepiece.*pip install"):
        ModelTokenizer.of_folder(str(tmp_path))
