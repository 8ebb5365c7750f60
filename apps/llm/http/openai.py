"""The OpenAI dialect: /v1/completions, /v1/chat/completions and /v1/embeddings."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from apps.llm.api import EngineError, Output, PromptToken, SamplingParams
from apps.llm.chat.reader import AnswerReader
from apps.llm.engine_model import EngineModel, EngineStream, Models
from apps.llm.http.openai_answers import DONE, ChatWriter, Choice, CompletionWriter, embeddings, usage
from apps.llm.http.openai_requests import UNIONS, ChatBody, CompletionBody, EmbeddingBody, each
from apps.serving.ingress.application import find_model
from apps.serving.ingress.bodies import EventStream
from apps.serving.ingress.openai_errors import OpenAIError, from_engine, of_stream, parsed
from apps.serving.ingress.openapi import STREAMED, json_body


def openai_router(models: Models) -> APIRouter:
    """The dialect's routes over these models."""
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=json_body(CompletionBody), responses=STREAMED)
    async def completions(request: Request) -> Response:
        """OpenAI's completions: `prompt` is a string, a list of token ids, or a list of either."""
        body = await parsed(CompletionBody, request, UNIONS)
        model = find_model(models, body.model)
        prompts, params = each(body.prompt), body.params()
        writer = CompletionWriter(model.name, params.logprobs is not None, body.include_usage, body.prompt_logprobs)
        try:
            echoes = [p if isinstance(p, str) else await model.decode(p) for p in prompts] if body.echo else []
            read: list[list[PromptToken]] = []
            if body.reads_prompt or body.only_prompt:
                prompts = [await model.encode(p) if isinstance(p, str) else p for p in prompts]
                read = await model.prompt_tokens(prompts, params)
        except EngineError as error:
            raise from_engine(error, body.names) from error
        if body.only_prompt:
            return _only_prompts(prompts, params.n, echoes, read, body, writer)
        return await _answer(model, prompts, params, body, writer, echoes, read=read)

    @router.post("/v1/chat/completions", openapi_extra=json_body(ChatBody), responses=STREAMED)
    async def chat_completions(request: Request) -> Response:
        """OpenAI's chat completions: the model's own chat template makes the prompt."""
        body = await parsed(ChatBody, request, UNIONS)
        model = find_model(models, body.model)
        try:
            prompt, turn = await model.chat(body.request())
            params = turn.held(body.params())
        except EngineError as error:
            raise from_engine(error, body.names) from error
        writer = ChatWriter(model.name, params.logprobs is not None, body.include_usage)
        return await _answer(model, [prompt], params, body, writer, [], None if turn.is_plain else turn.reader)

    @router.post("/v1/embeddings", openapi_extra=json_body(EmbeddingBody))
    async def embed(request: Request) -> Response:
        """OpenAI's embeddings; the vectors are the model's hidden states, pooled, of length 1."""
        body = await parsed(EmbeddingBody, request, UNIONS)
        model = find_model(models, body.model)
        if body.dimensions not in (None, model.embedding_size):
            message = f"dimensions must be {model.embedding_size}, this model's own: it cannot shorten its vectors"
            raise OpenAIError(400, message, "dimensions", "invalid_value")
        prompts = [await model.encode(p) if isinstance(p, str) else p for p in each(body.input)]
        try:
            vectors = await model.embed(prompts, body.pooling or "mean")
        except EngineError as error:
            raise from_engine(error, {"prompt": "input"}) from error
        whole = embeddings(model.name, vectors, sum(map(len, prompts)), body.encoding_format == "base64")
        return JSONResponse(whole)

    return router


async def _answer(
    model: EngineModel,
    prompts: Sequence[str | Sequence[int]],
    params: SamplingParams,
    body: CompletionBody | ChatBody,
    writer: CompletionWriter,
    echoes: Sequence[str],
    reader: Callable[[], AnswerReader] | None = None,
    read: Sequence[Sequence[PromptToken]] = (),
) -> Response:
    """Submits all prompts (one that is refused takes the others with it) and answers whole or as a stream."""
    streams: list[EngineStream] = []
    try:
        for prompt in prompts:
            streams.append(await model.submit(prompt, params))
        choices = [
            Choice(
                index,
                echoes[index // params.n] if echoes else "",
                reader() if reader else None,
                read[index // params.n] if read else (),
            )
            for index in range(len(prompts) * params.n)
        ]
        if body.stream:
            events = _events(streams, choices, params.n, writer, body.include_usage)
            return await EventStream(events, lambda error: of_stream(error).event() + DONE).begun()
        tokens = await _collect(streams, choices, params.n)
        return JSONResponse(writer.whole(choices, _usage(streams, tokens)))
    except EngineError as error:
        _abort(streams)
        raise from_engine(error, body.names) from error
    except BaseException:  # above all: cancelled, because the client has left
        _abort(streams)
        raise


def _only_prompts(
    prompts: Sequence[Sequence[int]],
    n: int,
    echoes: Sequence[str],
    read: Sequence[Sequence[PromptToken]],
    body: CompletionBody,
    writer: CompletionWriter,
) -> Response:
    """What is known of the prompts, without an answer: `max_tokens` is 0."""
    choices = [Choice(i, echoes[i // n] if echoes else "", prompt=read[i // n]) for i in range(len(prompts) * n)]
    counts = usage(sum(map(len, prompts)), 0, 0)
    end = Output(0, "", (), finish_reason="length")
    if body.stream:
        events = "".join(writer.events(choice, [end]) for choice in choices)
        last = writer.usage_event(counts) if body.include_usage else ""
        return Response(events.encode() + last.encode() + DONE, media_type="text/event-stream")
    for choice in choices:
        choice.take(end)
    return JSONResponse(writer.whole(choices, counts))


def _abort(streams: Sequence[EngineStream]) -> None:
    for stream in streams:
        stream.abort()


def _usage(streams: Sequence[EngineStream], tokens: int) -> dict[str, Any]:
    return usage(sum(s.prompt_tokens for s in streams), tokens, sum(s.cached_tokens for s in streams))


async def _collect(streams: Sequence[EngineStream], choices: Sequence[Choice], n: int) -> int:
    """Reads all answers to their ends; returns the number of generated tokens."""
    tokens = 0
    async for first, outputs in _merged(streams, n):
        for output in outputs:
            choices[first + output.index].take(output)
            tokens += len(output.token_ids)
    return tokens


async def _events(
    streams: Sequence[EngineStream], choices: Sequence[Choice], n: int, writer: CompletionWriter, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events: one piece of bytes for all that a step brings. Aborts what is unread when it is closed."""
    tokens = 0
    try:
        async for first, outputs in _merged(streams, n):
            if len(outputs) == 1:
                tokens += len(outputs[0].token_ids)
                text = writer.events(choices[first + outputs[0].index], outputs)
            else:
                by_choice: dict[int, list[Output]] = {}
                for output in outputs:
                    tokens += len(output.token_ids)
                    by_choice.setdefault(first + output.index, []).append(output)
                text = "".join(writer.events(choices[index], news) for index, news in by_choice.items())
            if text:
                yield text.encode()
        end = writer.usage_event(_usage(streams, tokens)).encode() if include_usage else b""
        yield end + DONE
    finally:
        _abort(streams)


async def _merged(streams: Sequence[EngineStream], n: int) -> AsyncIterator[tuple[int, list[Output]]]:
    """(index of the stream's first choice, its outputs) of all streams, as they come."""
    if len(streams) == 1:
        async for outputs in streams[0].batches():
            yield 0, outputs
        return
    news: asyncio.Queue[tuple[int, list[Output] | Exception | None]] = asyncio.Queue()

    async def pump(first: int, stream: EngineStream) -> None:
        try:
            async for outputs in stream.batches():
                news.put_nowait((first, outputs))
            news.put_nowait((first, None))
        except Exception as error:
            news.put_nowait((first, error))

    pumps = [asyncio.create_task(pump(i * n, stream)) for i, stream in enumerate(streams)]
    try:
        still_open = len(pumps)
        while still_open:
            first, outputs = await news.get()
            if outputs is None:
                still_open -= 1
            elif isinstance(outputs, Exception):
                raise outputs
            else:
                yield first, outputs
    finally:
        for task in pumps:
            task.cancel()
