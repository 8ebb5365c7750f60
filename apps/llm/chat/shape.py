"""The shape of conversations that a chat template takes: found by rendering some, and others are put into it.

A template refuses or leaves out what its model was not trained on: system messages, several calls at once, a user who
speaks after a tool's result. Its text does not reliably say so; what it renders does.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from apps.llm.api import RequestError
from apps.llm.chat.reader import PARAGRAPH
from apps.llm.chat.tools import Tool

Message = Mapping[str, Any]
Cards = Sequence[Mapping[str, Any]]
Call = Mapping[str, Any]
"""A past call, as chat templates have it."""


@dataclass(frozen=True)
class Shape:
    """What a template takes; by default, everything.

    Args:
        tools: where it looks for tools: in its own variable, in the system message, or nowhere.
        system: where its text is shown: in a first message; only if a user's message is last ("when asked"), otherwise
            in the last of those; or always in a user's message.
        greets: whether an assistant's message may be the first; if not, an empty one of a user is before it.
        repeats: whether one role may have several messages in a row.
        after_result: how a user's message may follow a tool's result: as it is, after an empty answer, or as one text.
        calls: whether it shows calls.
        parallel: whether one message may have several calls.
        text_beside: how text may stand beside calls: in their message, in one of its own before it, or not at all.
        as_text: whether calls' arguments are JSON text; otherwise they are an object.
        inside: whether results belong into the message of their calls.
        quoted: whether results must be JSON, for a template that writes them into JSON as they are.
    """

    tools: Literal["variable", "system", "nowhere"] = "variable"
    system: Literal["first", "when asked", "user's"] = "first"
    greets: bool = True
    repeats: bool = True
    after_result: Literal["as it is", "answered", "joined"] = "as it is"
    calls: bool = True
    parallel: bool = True
    text_beside: Literal["within", "apart", "left out"] = "within"
    as_text: bool = False
    inside: bool = False
    quoted: bool = False

    @classmethod
    def of(cls, render: "Callable[[Shape, Sequence[Message]], str]", result_mark: str = "") -> "Shape":
        """The shape of a template.

        Args:
            render: puts a conversation with the tool `OFFERED` into a shape, and renders it; raises RequestError.
            result_mark: what precedes a result in the prompts of this model; "" if that is not known.
        """

        def prompt(shape: Shape, messages: Sequence[Message]) -> str:
            try:
                return render(shape, messages)
            except RequestError:
                return ""

        def shows(shape: Shape, *messages: Message) -> bool:
            shown, words = prompt(shape, messages), list(_words(messages))
            if shape.tools != "nowhere":
                words.append(OFFERED.name)
            return all(word in shown for word in words) and not any(wrong in shown for wrong in NOT_JSON)

        shapes = (cls(), cls(tools="system"))
        offers = (shape for shape in shapes if shows(shape, ASKS) or shows(shape, RULES, ASKS))
        found = next(offers, cls(tools="nowhere"))
        places = (False, True) if result_mark else (False,)
        ways = [replace(found, as_text=text, inside=inside) for inside in places for text in (False, True)]
        ways = [way for way in ways if shows(way, *ONE_CALL)] or [replace(found, calls=False)]
        found = next((way for way in ways if result_mark in prompt(way, ONE_CALL)), ways[0])
        followed = [replace(found, after_result="answered"), replace(found, after_result="joined")]
        found = next((way for way in (found, *followed) if way.calls and shows(way, *ONE_CALL, ASKS_MORE)), found)
        if found.calls and not shows(found, *SAID):
            apart = replace(found, text_beside="apart")
            found = apart if shows(apart, *SAID, SAYS, ASKS_MORE) else replace(found, text_beside="left out")
        always = not found.calls or shows(found, RULES, *ONE_CALL)
        return replace(
            found,
            system="user's" if not shows(found, RULES, ASKS) else "first" if always else "when asked",
            greets=shows(found, SAYS, ASKS) and (not found.calls or shows(found, CALLS, RESULT, ASKS)),
            repeats=shows(found, ASKS, ASKS_MORE) and shows(found, ASKS, SAYS, SAYS_MORE, ASKS_MORE),
            parallel=not found.calls or shows(found, *TWO_CALLS),
            quoted=re.search(rf'":\s*{RESULT["content"]}', prompt(found, ONE_CALL)) is not None,
        )

    def fit(self, messages: Sequence[Message], cards: Cards, write: Callable[[Sequence[Call]], str]) -> list[Message]:
        """A conversation in this shape. It has no system message but the first.

        Args:
            cards: the tools that are offered.
            write: writes calls as the model does, for a template that does not show them.
        """
        fitted = list(messages)
        first = fitted[:1] if fitted and fitted[0]["role"] == "system" else []
        if first and (self.system == "user's" or (self.system == "when asked" and fitted[-1]["role"] != "user")):
            users = [i for i, message in enumerate(fitted) if message["role"] == "user"]
            at = users[-1] if users and self.system == "when asked" else 1
            fitted = fitted[1:at] + _merged([{**first[0], "role": "user"}, *fitted[at : at + 1]]) + fitted[at + 1 :]
        if cards and self.tools == "system":
            listed = json.dumps([card["function"] for card in cards], ensure_ascii=False)
            system = first[0] if first else {"role": "system", "content": ""}
            fitted = [{**system, "tools": listed}, *fitted[len(first) :]]
        start = 1 if fitted and fitted[0]["role"] == "system" else 0
        if not self.greets and fitted[start:] and fitted[start]["role"] == "assistant":
            fitted.insert(start, {"role": "user", "content": ""})
        fitted = _merged(fitted, only_calls=self.repeats and self.text_beside != "left out")
        fitted = [self._called(message, write) for message in self._apart(fitted)]
        if self.after_result != "as it is":
            fitted = _followed(fitted, self.after_result == "joined")
        return _with_results(fitted) if self.inside else fitted

    def _apart(self, messages: Sequence[Message]) -> Iterator[Message]:
        """With text and calls, and calls of one message, in messages of their own where they must be."""
        at = 0
        while at < len(messages):
            message, at = messages[at], at + 1
            calls: Sequence[Call] = message.get("tool_calls", ())
            if calls and message["content"] and self.text_beside != "within":
                if self.text_beside == "apart":
                    yield {name: value for name, value in message.items() if name != "tool_calls"}
                    message = {"role": "assistant", "tool_calls": calls}
                message = {**message, "content": ""}
            if len(calls) < 2 or self.parallel:
                yield message
                continue
            results: dict[str, list[Message]] = {}
            for result in _results_after(messages, at):
                at += 1
                results.setdefault(result["tool_call_id"], []).append(result)
            for call in calls:
                yield {**message, "tool_calls": [call]}
                yield from results.pop(call["id"], ())
                message = {"role": "assistant", "content": ""}

    def _called(self, message: Message, write: Callable[[Sequence[Call]], str]) -> Message:
        """With calls, and results, as the template reads them."""
        if message["role"] == "tool":
            if self.quoted:
                message = {**message, "content": _as_json(message["content"])}
            if self.tools == "system":
                message = {**message, "role": "tool_response"}  # the template makes a mark of the role
        if "tool_calls" not in message:
            return message
        if not self.calls:
            written = write(message["tool_calls"])
            return {**message, "content": PARAGRAPH.join(filter(None, (message["content"], written)))}
        if not self.as_text:
            return message
        calls = [{**call, "function": _in_text(call["function"])} for call in message["tool_calls"]]
        return {**message, "content": message["content"] or None, "tool_calls": calls}  # as OpenAI has both


def _as_json(text: str) -> str:
    """A text that is JSON, as it is; any other as a JSON string."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _in_text(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def _merged(messages: Sequence[Message], only_calls: bool = False) -> list[Message]:
    """With one message for consecutive ones of a user, or of an assistant that has not called yet. `only_calls`: only
    where the second one calls, for the text before calls is of the same answer."""
    merged: list[list[Message]] = []  # those that become one message
    for message in messages:
        before = merged[-1][-1] if merged else {"role": None}
        same = message["role"] == before["role"] in ("user", "assistant") and "tool_calls" not in before
        if same and ("tool_calls" in message or not only_calls):
            merged[-1].append(message)
        else:
            merged.append([message])
    return [_one(each) if len(each) > 1 else each[0] for each in merged]


def _one(messages: Sequence[Message]) -> Message:
    """Messages of one role as one."""
    fields = {name: value for message in messages for name, value in message.items()}
    texts = {name: [message.get(name) for message in messages] for name in ("content", "reasoning_content")}
    return fields | {name: PARAGRAPH.join(filter(None, each)) for name, each in texts.items() if name in fields}


def _followed(messages: Sequence[Message], joined: bool) -> list[Message]:
    """With an empty answer between results and a user's message, or with both as one text."""
    fitted: list[Message] = []
    for message in messages:
        if message["role"] == "user" and fitted and fitted[-1]["role"] == "tool":
            if joined:
                texts = (fitted[-1]["content"], message["content"])
                fitted[-1] = {**fitted[-1], "content": PARAGRAPH.join(texts)}
                continue
            fitted.append({"role": "assistant", "content": ""})
        fitted.append(message)
    return fitted


def _with_results(messages: Sequence[Message]) -> list[Message]:
    """With results in the message of their calls, before its text, which is what the model wrote after them."""
    fitted: list[Message] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        results = _results_after(messages, at) if "tool_calls" in message else []
        if not results:
            fitted.append(message)
            continue
        at += len(results)
        if message["content"]:
            fitted.append({"role": "assistant", "content": message["content"]})
        responses = [{"name": result["name"], "response": result["content"]} for result in results]
        message = {**message, "content": "", "tool_responses": responses}
        if at < len(messages) and messages[at]["role"] == "assistant" and "tool_calls" not in messages[at]:
            message, at = {**message, "content": messages[at]["content"]}, at + 1
        fitted.append(message)
    return fitted


def _results_after(messages: Sequence[Message], at: int) -> list[Message]:
    """The results that begin at a place."""
    end = next((i for i in range(at, len(messages)) if messages[i]["role"] != "tool"), len(messages))
    return list(messages[at:end])


# -- conversations to try ---------------------------------------------------------------------------------------------


def _call(number: int) -> Call:
    function = {"name": OFFERED.name, "arguments": {"place": f"Lyon {number}"}}
    return {"id": f"probeid0{number}", "type": "function", "function": function}


def _result(number: int) -> Message:
    said = {"role": "tool", "content": f"Result {number}.", "tool_call_id": f"probeid0{number}"}
    return said | {"name": OFFERED.name}


def _words(messages: Sequence[Message]) -> Iterator[str]:
    """What a prompt shows of these messages, if it shows all."""
    for message in messages:
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield call["function"]["arguments"]["place"]


TOWN = {"type": "object", "properties": {"town": {"type": "string", "description": "A town."}}, "required": ["town"]}
OFFERED = Tool("probe_tool", "tools[0]", "A tool.", TOWN)
RULES = {"role": "system", "content": "The rules."}
ASKS, ASKS_MORE = ({"role": "user", "content": text} for text in ("Question one?", "Question two?"))
SAYS, SAYS_MORE = ({"role": "assistant", "content": text} for text in ("Answer one.", "Answer two."))
CALLS = {"role": "assistant", "content": "", "tool_calls": [_call(1)]}
RESULT = _result(1)
ONE_CALL = (ASKS, CALLS, RESULT)
SAID = (ASKS, {**CALLS, "content": "I look."}, RESULT)
TWO_CALLS = (ASKS, {**CALLS, "tool_calls": [_call(1), _call(2)]}, RESULT, _result(2))
NOT_JSON = ("{'place'", '{\\"place')
"""How arguments look that a template writes as a Python object, or as JSON within JSON."""
