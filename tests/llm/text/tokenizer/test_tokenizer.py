"""The byte tokenizer of models that have none: any text there and back, and any id readable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.schemas.written import schema_grammar
from apps.llm.text.tokenizer.detokenizer import Detokenizer
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer

VOCAB = 32000
TOKENIZER = ModelTokenizer.of_bytes(VOCAB)
TEXT = st.text().filter(lambda text: "<s>" not in text and "</s>" not in text)


@given(TEXT)
def test_there_and_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids == [0, *(2 + byte for byte in text.encode())]
    assert TOKENIZER.decode(ids) == text


def test_every_id_is_readable_and_none_like_another() -> None:
    assert TOKENIZER.fast.get_vocab_size() == VOCAB and TOKENIZER.fast.token_to_id("</s>") == 1
    texts = [TOKENIZER.token_text(token) for token in range(258, VOCAB)]
    assert texts[0] == " t258" and texts[-1] == " t31999" and len(set(texts)) == len(texts)
    assert TOKENIZER.decode([0, 31999, 2 + ord("!"), 258, 1]) == " t31999! t258"


@given(TEXT, st.lists(st.integers(258, VOCAB - 1)))
def test_streaming(text: str, numbers: list[int]) -> None:
    answer = [*numbers, *TOKENIZER.encode(text)[1:]]
    stream = Detokenizer(TOKENIZER.fast, TOKENIZER.encode("Q:"), (), keep_stop=False)
    assert "".join(stream.feed(token)[0] for token in answer) + stream.flush() == TOKENIZER.decode(answer)


def test_chat() -> None:
    ids = TOKENIZER.encode_suffix(
        TOKENIZER.render([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    )
    assert ids[0] == 0
    assert TOKENIZER.decode(ids) == "system: Be kind.\nuser: Hi\nassistant:"


@pytest.mark.parametrize("answer", ['{"a": 7}', '{"a":12}'])
def test_a_schema_is_followed_byte_by_byte(answer: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    strict = schema_grammar(json.dumps(schema | {"additionalProperties": False}))
    matcher = Grammars(TOKENIZER.fast, VOCAB, (1,)).matchers(strict).result()[0]

    def allowed() -> list[int]:
        bits = matcher.allowed()
        return [token for token in range(VOCAB) if bits[token // 32] >> (token % 32) & 1]

    for token in TOKENIZER.encode(answer)[1:]:
        assert token in allowed() and 31999 not in allowed()
        matcher.consume(token)
    assert allowed() == [1]
