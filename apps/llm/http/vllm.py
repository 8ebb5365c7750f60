"""vLLM's endpoints beside OpenAI's: /tokenize, /detokenize, /tokenizer_info, /v1/rerank and /metrics."""

import uuid
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field, field_validator, model_validator
from starlette.responses import JSONResponse, Response

from apps.llm.api import Pool
from apps.llm.engine_model import EngineModel
from apps.llm.http.adapters import named
from apps.llm.http.openai_messages import Message, ToolBody
from apps.llm.http.openai_requests import MAX_INPUTS, ChatBody
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.openai_errors import OpenAIError, parsed, refusing
from apps.serving.ingress.openapi import json_body

UNIONS = {"documents": 'documents must be a list of strings or of {"text": string}'}


class TokenizeBody(Body):
    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    """A chat instead of a prompt, tokenized as `/v1/chat/completions` would."""
    tools: list[ToolBody] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    """Whether a prompt gets its special tokens. Default: true. A chat template adds its own."""
    add_generation_prompt: bool | None = None
    """Always true for a chat."""
    return_token_strs: bool | None = None
    """Whether to return the tokens' strings in the vocabulary too."""

    @field_validator("add_generation_prompt")
    @classmethod
    def _always(cls, value: bool | None) -> bool | None:
        if value is False:
            raise ValueError("must be true: a chat is tokenized as the prompt for its answer")
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


class RerankBody(Body):
    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    query: str
    documents: Annotated[list[str] | list[RerankDocument], Field(min_length=1, max_length=MAX_INPUTS - 1)]
    top_n: Annotated[int, Field(ge=0)] | None = None
    """Number of results. Default, and 0: all."""
    return_documents: bool | None = None
    """Default: true."""
    pooling: Pool | None = None
    """Extension: the tokens whose hidden states make the vectors. Default: mean."""

    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]


def vllm_router(model: EngineModel, tokenizer_info: bool = False) -> APIRouter:
    """The dialect's routes over this model; with `tokenizer_info`, that one answers."""
    router = APIRouter()

    @router.post("/tokenize", openapi_extra=json_body(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Token ids of a prompt or a chat, in vLLM's format."""
        body = await parsed(TokenizeBody, request)
        served = named(model, body.model)
        if body.prompt is not None:
            tokens = await served.encode(body.prompt, special=body.add_special_tokens is not False)
        else:
            chat = body.chat()
            with refusing(chat.names):
                tokens, _ = await served.chat(chat.request())
        pieces = served.pieces(tokens) if body.return_token_strs else None
        return JSONResponse(
            {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens, "token_strs": pieces}
        )

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included, in vLLM's format."""
        body = await parsed(DetokenizeBody, request)
        served = named(model, body.model)
        with refusing():
            text = await served.decode(body.tokens, special=True)
        return JSONResponse({"prompt": text})

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

    @router.post("/v1/rerank", openapi_extra=json_body(RerankBody))
    async def rerank(request: Request) -> Response:
        """Sorts documents by relevance to a query: the cosine similarity of the model's embeddings, -1 to 1.

        The format is that of Cohere, Jina and vLLM.
        """
        body = await parsed(RerankBody, request, UNIONS)
        served = named(model, body.model)
        documents = body.texts()
        prompts = [await served.encode(text) for text in (body.query, *documents)]
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise OpenAIError(
                    400, f"{_place(i)} is empty: it must have at least one token", _place(i), "invalid_value"
                )
            if len(prompt) > served.max_model_len:
                message = f"{_place(i)} has {len(prompt)} tokens, but the model's context holds {served.max_model_len}"
                raise OpenAIError(400, message, _place(i), "context_length_exceeded")
        with refusing({"prompt": "documents"}):
            query, *vectors = await served.embed(prompts, body.pooling or "mean")
        scores = np.stack(vectors) @ query  # of length 1, so this is the cosine
        best = np.argsort(-scores, kind="stable")[: body.top_n or None]
        results = [{"index": i, "relevance_score": float(scores[i])} for i in best.tolist()]
        if body.return_documents is not False:
            results = [result | {"document": {"text": documents[result["index"]]}} for result in results]
        tokens = sum(map(len, prompts))
        return JSONResponse(
            {
                "id": f"rerank-{uuid.uuid4().hex}",
                "model": served.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results,
            }
        )

    return router


def _place(index: int) -> str:
    """The field of a rerank request's text: the query, then the documents."""
    return f"documents[{index - 1}]" if index else "query"
