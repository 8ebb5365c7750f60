"""The OpenAI dialect: /v1/completions, /v1/chat/completions and /v1/embeddings."""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from apps.llm.http.adapters import named
from apps.llm.http.answering import PromptsAlone, Source, answered
from apps.llm.http.openai.chat_answers import ChatWriter
from apps.llm.http.openai.completion_answers import CompletionWriter, choices
from apps.llm.http.openai.embedding_answers import embeddings
from apps.llm.http.openai.requests import UNIONS, ChatBody, CompletionBody, EmbeddingBody, each
from apps.llm.served.text_model import TextModel
from apps.llm.served.texts import Prompt
from apps.llm.text_api import PromptToken
from apps.serving.ingress.dialects.openai_errors import OpenAIError, parsed, refusing
from apps.serving.ingress.openapi import STREAMED, json_body


def openai_router(model: TextModel) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=json_body(CompletionBody), responses=STREAMED)
    async def completions(request: Request) -> Response:
        """OpenAI's completions: `prompt` is a string, a list of token ids, or a list of either."""
        body = await parsed(CompletionBody, request, UNIONS)
        served = named(model, body.model)
        prompts: Sequence[Prompt] = each(body.prompt)
        with refusing(body.names):
            params = await served.texts.asked(body.reading, lambda: body.params(served.sampling_defaults))
            echoed = prompts if body.echo else ()
            echoes = [p if isinstance(p, str) else await served.texts.decoded(p, special=False) for p in echoed]
            read: list[list[PromptToken]] = []
            special = body.add_special_tokens is not False
            if body.reads_prompt or body.only_prompt or not special:
                prompts = encoded = await served.texts.prompts(prompts, special=special)
            if body.reads_prompt or body.only_prompt:
                read = await served.prompt_tokens(encoded, params)
            source: Source
            if body.only_prompt:
                source = PromptsAlone(encoded, params.n)
            else:
                source = await served.submit(params, *prompts)
            answers = choices(len(prompts), params.n, echoes, read=read)
            writer = CompletionWriter(
                served.name,
                source,
                answers,
                params.logprobs is not None,
                body.include_usage,
                body.prompt_logprobs,
                source.prompts if body.return_token_ids else None,
            )
            return await answered(source, writer, bool(body.stream), served.texts)

    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatBody), responses=STREAMED)
    async def chat_completions(request: Request) -> Response:
        """OpenAI's chat completions. The model's own chat template makes the prompt."""
        body = await parsed(ChatBody, request, UNIONS)
        served = named(model, body.model)
        with refusing(body.names):
            prompt, turn = await served.texts.chat(body.request())
            asked = await served.texts.asked(body.reading, lambda: body.params(served.sampling_defaults))
            params = turn.constrained(asked)
            stream = await served.submit(params, prompt)
            answers = choices(1, params.n, reader=params.reader or turn.reader)
            writer = ChatWriter(
                served.name,
                stream,
                answers,
                params.logprobs is not None,
                body.include_usage,
                prompts=stream.prompts if body.return_token_ids else None,
            )
            return await answered(stream, writer, bool(body.stream), served.texts)

    @router.post("/v1/embeddings", openapi_extra=json_body(EmbeddingBody))
    async def embed(request: Request) -> Response:
        """OpenAI's embeddings: the model's hidden states, pooled and normalized to length 1."""
        body = await parsed(EmbeddingBody, request, UNIONS)
        served = named(model, body.model)
        if body.dimensions not in (None, served.embedding_size):
            message = f"dimensions must be {served.embedding_size}, this model's size: its vectors cannot be shortened"
            raise OpenAIError(400, message, "dimensions", "invalid_value")
        with refusing({"prompt": "input"}):
            prompts = await served.texts.prompts(each(body.input))
            vectors = await served.embed(prompts, body.pooling)
        tokens, as_base64 = sum(map(len, prompts)), body.encoding_format == "base64"
        size = len(vectors) * served.embedding_size
        write = partial(embeddings, served.name, vectors, tokens, as_base64)
        return await served.texts.written(size, lambda: Response(write(), media_type="application/json"))

    return router
