"""The tools that a request offers, and the rules for calling them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from apps.llm.api import RequestError
from apps.llm.chat.grammar import ConstrainedCall, arguments_schema
from apps.llm.schemas.enforced import loosened

NAME = re.compile(r"[A-Za-z0-9_-]+")
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}

CallMode = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Args:
        field: its path in the client's request: `tools[0].function`.
        parameters: JSON schema of its arguments, an object; None if it takes none.
        strict: whether the schema is enforced in every call, whole or not at all; otherwise, where calls are, as far as
            it can be.
        schema_field: the dialect's name of `parameters`.
    """

    name: str
    field: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    schema_field: str = "parameters"

    def card(self) -> dict[str, Any]:
        """The tool's description for chat templates."""
        about = {} if self.description is None else {"description": self.description}
        parameters = NO_ARGUMENTS if self.parameters is None else self.parameters
        return {"type": "function", "function": {"name": self.name, **about, "parameters": parameters}}


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request.

    Args:
        only: with mode "required", the one tool that must be called.
        parallel: whether an answer may have several calls.
        longest_name: maximum characters of a tool's name.
    """

    tools: Sequence[Tool] = ()
    mode: CallMode = "auto"
    only: str | None = None
    parallel: bool = True
    longest_name: int = 64

    def check(self) -> None:
        """Checks names and choice. Raises RequestError, naming the client's field."""
        seen: dict[str, Tool] = {}
        for tool in self.tools:
            field = f"{tool.field}.name"
            if not NAME.fullmatch(tool.name) or len(tool.name) > self.longest_name:
                rule = f"1 to {self.longest_name} letters, digits, _ and -"
                raise RequestError(field, f"{field} must be {rule}, not {tool.name!r}")
            if tool.name in seen:
                raise RequestError(field, f"{field}: {seen[tool.name].field} is named {tool.name} too")
            seen[tool.name] = tool
        if self.only is not None and self.only not in seen:
            known = ", ".join(seen) or "there are none"
            raise RequestError("tool_choice", f"tool_choice: no tool is named {self.only!r}; known: {known}")

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))

    @property
    def one_call(self) -> bool:
        return self.only is not None or not self.parallel

    @property
    def is_constrained(self) -> bool:
        """Whether calls or their arguments are enforced."""
        return self.mode == "required" or any(tool.strict for tool in self.offered)

    def constrained_calls(self) -> list[ConstrainedCall]:
        """The offered tools with the schemas to enforce. Raises RequestError, naming the bad schema."""
        calls = []
        for tool in self.offered:
            schema: Mapping[str, Any] = ANY_ARGUMENTS
            field = f"{tool.field}.{tool.schema_field}"
            if tool.strict or self.mode == "required":
                try:
                    schema = arguments_schema(tool.parameters)
                    if not tool.strict:
                        schema = loosened(schema)
                except ValueError as error:
                    raise RequestError(field, f"{field}: {error}") from None
            calls.append(ConstrainedCall(tool.name, schema, field))
        return calls


NO_TOOLS = ToolUse()
