"""vLLM's endpoints beside OpenAI's: /tokenize, /detokenize, /tokenizer_info, /v1/rerank, /v1/score and /metrics."""

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field, ValidationInfo, field_validator, model_validator
from starlette.responses import JSONResponse, Response

from apps.llm.api import MAX_MESSAGES, MAX_TOOLS, Pool
from apps.llm.http.adapters import named
from apps.llm.http.large_json import LargeJSON
from apps.llm.http.openai.messages import Message, ToolBody
from apps.llm.http.openai.requests import MAX_INPUTS, ChatBody
from apps.llm.served.text_model import TextModel
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import OpenAIError, parsed, refusing
from apps.serving.ingress.openapi import json_body

UNIONS = {
    "documents": 'documents must be a list of strings or of {"text": string}',
    "text_1": "text_1 must be a string or a list of strings",
    "text_2": "text_2 must be a string or a list of strings",
}
MOST_JUDGED = 2**26
"""Characters of the pairs of one request: a reranker reads a query once for each document."""
Place = tuple[str, str]
"""A text, and its field in the request."""


class TokenizeBody(Body):
    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """A chat instead of a prompt, tokenized as `/v1/chat/completions` would."""
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    """Whether a prompt gets its special tokens. Default: true. A chat template adds its own."""
    add_generation_prompt: bool | None = None
    """Always true for a chat."""
    continue_final_message: bool | None = None
    """Always false for a chat."""
    return_token_strs: bool | None = None
    """Whether to return the tokens' strings in the vocabulary too."""

    @field_validator("add_generation_prompt", "continue_final_message")
    @classmethod
    def _always(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        wanted = info.field_name == "add_generation_prompt"
        if value not in (None, wanted):
            raise ValueError(f"must be {str(wanted).lower()}: a chat is tokenized as the prompt for its answer")
        return value

    @model_validator(mode="after")
    def _one_of_two(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise OpenAIError(400, "give either prompt or messages", "prompt", "invalid_value")
        return self

    def chat(self) -> ChatBody:
        return ChatBody(messages=self.messages or [], tools=self.tools, chat_template_kwargs=self.chat_template_kwargs)


class DetokenizeBody(Body):
    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    tokens: list[int]


class RerankDocument(Body):
    text: str


class Judging(Body):
    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    pooling: Pool | None = None
    """Extension, for a model that is no reranker: the tokens whose hidden states make the vectors."""
    instruction: str | None = None
    """Extension, for a reranker: what makes a document relevant, in place of its own instruction."""


class RerankBody(Judging):
    query: str
    documents: Annotated[list[str] | list[RerankDocument], Field(min_length=1, max_length=MAX_INPUTS - 1)]
    top_n: Annotated[int, Field(ge=0)] | None = None
    """Number of results. Default, and 0: all."""
    return_documents: bool | None = None
    """Default: true."""

    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]


class PairsBody(Judging):
    text_1: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS // 2)]
    """One text, compared with each of `text_2`; or as many as those, compared one by one."""
    text_2: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS // 2)]

    @model_validator(mode="after")
    def _pairs(self) -> "PairsBody":
        first, second = each(self.text_1), each(self.text_2)
        if len(first) not in (1, len(second)):
            message = f"text_1 has {len(first)} texts and text_2 {len(second)}: give one, or as many"
            raise OpenAIError(400, message, "text_1", "invalid_value")
        return self

    def pairs(self) -> list[tuple[Place, Place]]:
        first, second = (
            [(text, name if isinstance(field, str) else f"{name}[{i}]") for i, text in enumerate(each(field))]
            for name, field in (("text_1", self.text_1), ("text_2", self.text_2))
        )
        return list(zip(first * (len(second) if len(first) == 1 else 1), second, strict=True))


def each(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def vllm_router(model: TextModel, tokenizer_info: bool = False) -> APIRouter:
    """The dialect's routes over this model; with `tokenizer_info`, that one answers."""
    router = APIRouter()

    @router.post("/tokenize", openapi_extra=json_body(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Token ids of a prompt or a chat, in vLLM's format."""
        body = await parsed(TokenizeBody, request)
        served = named(model, body.model)
        if body.prompt is not None:
            with refusing():
                tokens = await served.texts.counted(body.prompt, body.add_special_tokens is not False)
        else:
            chat = body.chat()
            with refusing(chat.names):
                tokens = await served.texts.counted(chat.request())
        pieces = await served.texts.pieces(tokens) if body.return_token_strs else None
        whole = {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens, "token_strs": pieces}
        return await served.texts.written(len(tokens), lambda: LargeJSON(whole))

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included, in vLLM's format."""
        body = await parsed(DetokenizeBody, request)
        served = named(model, body.model)
        with refusing():
            text = await served.texts.decoded(body.tokens, special=True)
        return await served.texts.written(len(text), lambda: LargeJSON({"prompt": text}))

    @router.get("/tokenizer_info")
    async def get_tokenizer_info() -> Response:
        """The tokenizer's config and chat template, if `tokenizer_info` is set in the server's config."""
        if not tokenizer_info:
            raise OpenAIError(404, "not served here: set tokenizer_info in the server's config")
        return JSONResponse(model.tokenizer_info())

    @router.get("/metrics")
    async def metrics() -> Response:
        """This replica's load in Prometheus' text format, under vLLM's names, for inference gateways."""
        return Response(model.exposition(), media_type=CONTENT_TYPE_LATEST)

    @router.post("/rerank", include_in_schema=False)
    @router.post("/v2/rerank", include_in_schema=False)
    @router.post("/v1/rerank", openapi_extra=json_body(RerankBody))
    async def rerank(request: Request) -> Response:
        """Sorts documents by relevance to a query: a reranker's probability that one is relevant, or the cosine
        similarity of any other model's embeddings, -1 to 1.

        The format is that of Cohere, Jina and vLLM. /rerank and /v2/rerank are the same.
        """
        body = await parsed(RerankBody, request, UNIONS)
        served = named(model, body.model)
        documents = body.texts()
        query = body.query, "query"
        scores, tokens = await _relevance(
            served, [(query, (text, f"documents[{i}]")) for i, text in enumerate(documents)], body
        )
        best = np.argsort(-np.asarray(scores), kind="stable")[: body.top_n or None]
        results = [{"index": i, "relevance_score": scores[i]} for i in best.tolist()]
        if body.return_documents is not False:
            results = [result | {"document": {"text": documents[result["index"]]}} for result in results]
        whole = {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }
        return await served.texts.written(sum(map(len, documents)), lambda: LargeJSON(whole))

    @router.post("/v1/score", openapi_extra=json_body(PairsBody))
    async def score(request: Request) -> Response:
        """Scores pairs of texts as `/v1/rerank` scores a query and a document, in vLLM's format."""
        body = await parsed(PairsBody, request, UNIONS)
        served = named(model, body.model)
        scores, tokens = await _relevance(served, body.pairs(), body)
        return JSONResponse(
            {
                "id": f"score-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": served.name,
                "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    return router


async def _relevance(served: TextModel, pairs: Sequence[tuple[Place, Place]], body: Judging) -> tuple[list[float], int]:
    """How relevant the second text of each pair is to the first, and the number of tokens that were read.

    Raises:
        OpenAIError: a text is empty, or too long for the context.
    """
    instruction = len(body.instruction or "")
    if (length := sum(len(first) + len(second) + instruction for (first, _), (second, _) in pairs)) > MOST_JUDGED:
        message = f"the pairs of texts have {length} characters together; one request can have {MOST_JUDGED}"
        raise OpenAIError(400, message, pairs[0][0][1], "invalid_value")
    judged = [served.judgement(first, second, body.instruction) for (first, _), (second, _) in pairs]
    if judged[0] is not None:
        texts = [(prompt or "", field) for prompt, (_, (_, field)) in zip(judged, pairs, strict=True)]
        prompts = await _prompts(served, texts, special=False, after=1)
        with refusing({"prompt": "documents"}):
            return await served.judged(prompts), sum(map(len, prompts))
    if body.instruction is not None:
        raise OpenAIError(400, "instruction is for rerankers, and this model is none", "instruction", "invalid_value")
    places = list(dict.fromkeys(place for pair in pairs for place in pair))
    prompts = await _prompts(served, places)
    with refusing({"prompt": "documents"}):
        vectors = dict(zip(places, await served.embed(prompts, body.pooling), strict=True))
    # Vectors have length 1, so this is the cosine.
    scores = [float(vectors[first] @ vectors[second]) for first, second in pairs]
    return scores, sum(map(len, prompts))


async def _prompts(
    served: TextModel, texts: Sequence[Place], special: bool = True, after: int = 0
) -> list[Sequence[int]]:
    """Token ids of the texts. Raises OpenAIError, naming the field, if one is empty or has no room for `after` more."""
    limits = [TokenLimit(served.max_model_len - after, field) for _, field in texts]
    with refusing():
        prompts = await served.texts.prompts([text for text, _ in texts], limits, special)
    for prompt, (_, field) in zip(prompts, texts, strict=True):
        if not prompt:
            raise OpenAIError(400, f"{field} is empty: it must have at least one token", field, "invalid_value")
    return prompts
