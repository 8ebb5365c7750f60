"""Rerankers over HTTP: scores as transformers' own models give them, from tiny random checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import AddedToken

from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.text.reranker import INSTRUCTION, PROMPT, Reranker
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.serve.serving import MODEL, LocalServer, local_server

DOCUMENTS = ["Sun in Nice.", "Rain {in} Lyon?", "", "Rain in Lyon."]
CAUSAL, ONE_LABEL, TWO_LABELS = "Qwen3-Reranker-tiny", "one label", "two labels"
Reference = transformers.PreTrainedModel


def made(kind: str, folder: Path) -> Reference:
    tiny_models.save_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("yes", "no")])
    tokenizer.save_pretrained(folder)
    model = tiny_models.make("qwen3", tie_word_embeddings=kind == ONE_LABEL)
    if kind != CAUSAL:
        model.config.num_labels, model.config.pad_token_id = 1 + (kind == TWO_LABELS), 0
        torch.manual_seed(1)
        classifier = transformers.Qwen3ForSequenceClassification(model.config).eval()
        classifier.model.load_state_dict(model.model.state_dict())
        torch.nn.init.normal_(classifier.score.weight, std=0.1)
        model = classifier
    tiny_models.save(model, folder)
    return model


@pytest.fixture(scope="module", params=[CAUSAL, ONE_LABEL, TWO_LABELS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("reranker") / request.param
    reference = made(request.param, folder)
    sizes = {"dtype": "float32", "pages": 128, "page_size": 16, "max_model_len": 512}
    with local_server(model=str(folder), **sizes) as server:
        yield server, reference
        assert server.engine.stats().compiles_after_ready == 0


def test_a_reranker_is_known_by_its_config_or_name(tmp_path: Path) -> None:
    made(ONE_LABEL, tmp_path)
    tokenizer = ModelTokenizer.of_folder(str(tmp_path))
    plain = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu"}
    plain |= tiny_models.SIZES
    yes, no = (tokenizer.fast.token_to_id(word) for word in ("yes", "no"))
    classifier = plain | {"architectures": ["Qwen3ForSequenceClassification"]}
    for config, settings, found in (
        (plain, {}, None),
        (plain, {"model": "Qwen/Qwen3-Reranker-0.6B"}, (yes, no)),
        (plain, {"reranker": "qwen3"}, (yes, no)),
        (plain | {"classifier_from_token": ["yes", "no"]}, {}, (no, yes)),
        (classifier, {}, (1, 0)),
        (classifier | {"id2label": {"0": "LABEL_0"}}, {}, (0, 1)),
        (classifier, {"reranker": "none"}, None),
        (plain | {"model_type": "llama"}, {"model": "Qwen3-Reranker"}, None),
    ):
        reranker = Reranker.of(EngineConfig(**settings), from_hf_config(config), tokenizer)
        assert (reranker and (reranker.yes, reranker.no)) == found
    with pytest.raises(ValueError, match=r"reranker: 'maybe' is \d tokens"):
        arch = from_hf_config(plain | {"classifier_from_token": ["no", "maybe"]})
        Reranker.of(EngineConfig(), arch, tokenizer)
    with pytest.raises(UnsupportedModel, match="3 labels"):
        from_hf_config(classifier | {"id2label": {"0": "a", "1": "b", "2": "c"}})


def ask(server: LocalServer, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{server.url}{path}", json={"model": MODEL} | body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def ids_of(server: LocalServer, query: str, document: str, instruction: str = INSTRUCTION) -> list[int]:
    prompt = PROMPT.replace("{instruction}", instruction).replace("{query}", query).replace("{document}", document)
    return server.engine.tokenizer.encode_suffix(prompt)


def probability(server: LocalServer, reference: Reference, ids: list[int]) -> float:
    """Of yes, by transformers' model."""
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0]
    if "Causal" in type(reference).__name__:
        logits = logits[-1][[server.engine.tokenizer.fast.token_to_id(word) for word in ("no", "yes")]]
    elif len(logits) == 1:
        logits = torch.stack([torch.zeros(()), logits[0]])
    return float(logits.softmax(-1)[1])


@pytest.mark.slow
def test_scores_are_those_of_transformers(served: Any) -> None:
    server, reference = served
    prompts = [ids_of(server, "Rain?", document) for document in DOCUMENTS]
    wanted = [probability(server, reference, ids) for ids in prompts]
    assert max(wanted) - min(wanted) > 2e-3
    told = ask(server, "/v1/score", text_1="Rain?", text_2=DOCUMENTS)
    assert [entry["score"] for entry in told["data"]] == pytest.approx(wanted, abs=1e-4)
    assert told["usage"]["prompt_tokens"] == sum(map(len, prompts))
    ranked = ask(server, "/v1/rerank", query="Rain?", documents=DOCUMENTS)["results"]
    for alias in ("/rerank", "/v2/rerank"):  # Cohere's, Jina's and vLLM's other paths
        again = ask(server, alias, query="Rain?", documents=DOCUMENTS)["results"]
        assert [entry["document"] for entry in again] == [entry["document"] for entry in ranked]
        # Not to the bit: where there is no AVX-512, XLA's products of float32 round by the number of rows.
        scores = [entry["relevance_score"] for entry in ranked]
        assert [entry["relevance_score"] for entry in again] == pytest.approx(scores, abs=1e-5)
    assert [result["index"] for result in ranked] == sorted(range(4), key=lambda i: -wanted[i])
    assert [result["relevance_score"] for result in ranked] == pytest.approx(sorted(wanted)[::-1], abs=1e-4)


def test_an_instruction_says_what_is_relevant(served: Any) -> None:
    server, reference = served
    wanted = probability(server, reference, ids_of(server, "Rain?", "Sun", "Find the opposite"))
    (told,) = ask(server, "/v1/score", text_1="Rain?", text_2="Sun", instruction="Find the opposite")["data"]
    assert told["score"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "x", "documents": ["x", "y " * 3000]}, "documents[1]"),
        ("/v1/score", {"text_1": "x", "text_2": ["x", "y " * 3000]}, "text_2[1]"),
        ("/v1/score", {"text_1": "x", "text_2": "x", "instruction": 3}, "instruction"),
    ],
)
def test_a_bad_body_names_the_field(served: Any, path: str, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(f"{served[0].url}{path}", json={"model": MODEL} | body, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_a_long_query_is_not_written_once_for_each_of_many_documents(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte for each of 2,000 documents would be 2 GB."""
    server, _ = served
    written: list[int] = []
    prompt = Reranker.prompt

    def counting(self: Reranker, query: str, document: str, instruction: str | None) -> str:
        written.append(len(query) + len(document))
        return prompt(self, query, document, instruction)

    monkeypatch.setattr(Reranker, "prompt", counting)
    long, texts = "a " * 500_000, ["b"] * 1000
    for path, body, field in (
        ("/v1/rerank", {"query": long, "documents": texts}, "query"),
        ("/v1/score", {"text_1": long, "text_2": texts}, "text_1"),
        ("/v1/rerank", {"query": "a", "documents": texts, "instruction": long}, "query"),
    ):
        reply = httpx.post(f"{server.url}{path}", json=body, timeout=60)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == field
    assert not written
