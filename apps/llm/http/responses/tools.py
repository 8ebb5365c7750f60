"""Tools of /v1/responses: functions, namespaces of functions, and how to choose among them."""

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag

from apps.llm.api import MAX_TOOLS
from apps.llm.http.responses.items import shown_name
from apps.serving.ingress.bodies import Body

LONGEST_NAME = 128
"""Most characters of a function's name, with its namespace."""


def _json(value: Any) -> Any:
    """Checks a value that the answer repeats. Raises ValueError if JSON cannot represent it."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"must be JSON: {error}") from None
    return value


Schema = Annotated[dict[str, Any], AfterValidator(_json)]


class FunctionTool(Body):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Schema | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Enforces the schema whenever the model calls the tool."""


class NamespaceTool(Body):
    """A group of functions, which the model sees as `namespace__function`."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    """Not shown to the model."""
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MAX_TOOLS)]


Search = Literal["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
SEARCHES = get_args(Search)


class WebSearchTool(Body):
    """A search that the server would run. This one runs none, so the model is not offered it."""

    type: Search


def _tool_tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return f"a {'web_search' if kind in SEARCHES else kind} tool"


OfferedTool = Annotated[
    Annotated[FunctionTool, Tag("a function tool")]
    | Annotated[NamespaceTool, Tag("a namespace tool")]
    | Annotated[WebSearchTool, Tag("a web_search tool")],
    Discriminator(
        _tool_tag,
        custom_error_type="tool",
        custom_error_message="must be a tool of type function, or a namespace of functions: this server runs no tools",
    ),
]


class NamedFunction(Body):
    type: Literal["function"]
    name: str
    namespace: str | None = None

    def shown_name(self) -> str:
        """Its name for the model."""
        return shown_name(self.namespace, self.name)


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


def repeated(tool: FunctionTool | NamespaceTool) -> dict[str, Any]:
    """A tool as the response repeats it."""
    if isinstance(tool, NamespaceTool):
        functions = [repeated(function) for function in tool.tools]
        return {"type": tool.type, "name": tool.name, "description": tool.description or "", "tools": functions}
    return tool.model_dump() | {"strict": bool(tool.strict)}
