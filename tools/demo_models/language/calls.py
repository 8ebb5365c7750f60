"""Chats with tools: which call a question needs, what its result says, and questions that need none.

A tool is one line in the system turn, `get_weather(city: string): the weather in a city`; a call is written in Hermes'
format; a result comes in a turn of role `tool`. Messages are written here as the chat template renders them, so a
document needs no field for tools or calls.

Most tools look up a topic of one kind of thing and are made of parts, so that the model must read the tool's line and
cannot know it by heart. No training text has the evaluation's topics and cities, or its questions about the weather.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from tools.demo_models.language.chats import SYSTEMS, Document, Message, a_name, say
from tools.demo_models.language.facts.phrasing import ask, fill, pick
from tools.demo_models.language.facts.project import UNKNOWN
from tools.demo_models.language.facts.world import WORLD

TOPICS = (
    ("population", "city"), ("population", "country"), ("mayor", "city"), ("area", "country"), ("president", "country"),
    ("currency", "country"), ("time", "city"), ("humidity", "city"), ("traffic", "street"), ("price", "product"),
    ("weight", "product"), ("color", "paint"), ("height", "mountain"), ("height", "person"), ("age", "person"),
    ("address", "person"), ("phone number", "person"), ("email", "person"), ("birthday", "person"), ("job", "person"),
    ("stock price", "company"), ("owner", "company"), ("revenue", "company"), ("status", "order"), ("total", "order"),
    ("author", "book"), ("title", "book"), ("length", "river"), ("length", "song"), ("artist", "song"),
    ("director", "film"), ("rating", "film"), ("year", "film"), ("score", "team"), ("schedule", "team"),
    ("coach", "team"), ("calories", "dish"), ("recipe", "dish"), ("meaning", "word"), ("translation", "word"),
    ("opening hours", "shop"), ("menu", "restaurant"), ("rating", "restaurant"), ("speed", "animal"),
    ("owner", "car"), ("mileage", "car"), ("mass", "planet"), ("depth", "lake"), ("temperature", "lake"),
    ("gate", "flight"), ("delay", "flight"), ("platform", "train"), ("delay", "train"), ("teacher", "class"),
    ("room", "meeting"), ("date", "holiday"), ("level", "player"), ("rank", "player"), ("balance", "account"),
    ("salary", "job"), ("size", "file"), ("location", "ship"), ("capacity", "stadium"), ("winner", "race"),
    ("doctor", "patient"), ("version", "package"), ("license", "package"), ("state", "lamp"), ("voltage", "sensor"),
    ("uptime", "server"), ("memory", "server"), ("region", "cluster"), ("topology", "slice"), ("rent", "apartment"),
)  # fmt: skip
"""What a tool tells of what kind of thing."""
TOPICS_HELDOUT = (
    ("wingspan", "bird"), ("captain", "team"), ("founder", "company"), ("zip code", "city"), ("deadline", "project"),
    ("engine", "car"), ("genre", "game"), ("tenant", "apartment"), ("latency", "server"), ("altitude", "plane"),
    ("composer", "song"), ("budget", "film"),
)  # fmt: skip
_NAMES = (
    "get_{topic}", "get_{topic}", "get_{kind}_{topic}", "get_{topic}_of_{kind}", "find_{topic}", "lookup_{topic}",
    "{topic}_of", "{topic}_of_{kind}", "{topic}", "{kind}_{topic}", "fetch_{topic}", "read_{topic}", "search_{topic}",
)  # fmt: skip
_DESCRIPTIONS = (
    "the {topic} of a {kind}", "Get the {topic} of a {kind}", "Returns the {topic} of a {kind}.",
    "Look up the {topic} of a {kind}.", "Find the current {topic} of a {kind}", "Tells a {kind}'s {topic}", "",
)  # fmt: skip
_QUESTIONS = (
    "(what is|what's|tell me|look up|find|give me|I need|do you know|can you find|show me) the {topic} of "
    "(the {kind} |){x}",
    "(what is|what's|tell me|look up|find|give me|I need) {x}'s {topic}", "{topic} of {x}",
    "(the|) {kind} {x}: (what is its|tell me the|look up the) {topic}",
    "(what|which) {topic} does (the {kind} |){x} have", "which is the {topic} of (the {kind} |){x}",
)  # fmt: skip
_AGAIN = (
    "and (of|for) {x}", "(and|) what about {x}", "how about {x}", "and {x}", "now (of|for|) {x}", "the same for {x}",
)  # fmt: skip

_CITIES = (
    *(row["value"] for one in WORLD if one.name == "capital" for row in one.rows),
    "New York", "Los Angeles", "San Francisco", "Chicago", "Miami", "Seattle", "Denver", "Austin", "Toronto", "Hamburg",
    "Munich", "Milan", "Naples", "Lyon", "Nice", "Barcelona", "Seville", "Osaka", "Mumbai", "Shanghai", "Sydney",
    "Melbourne", "Sao Paulo", "Rio", "Glasgow", "Manchester", "Busan", "Istanbul", "Cape Town", "Las Vegas", "Dallas",
)  # fmt: skip
CITIES_HELDOUT = ("Boston", "Kyoto", "Zurich", "Porto", "Leeds", "Toulouse", "Perth", "Quebec")
WEATHER = (
    "(what is|what's|how is|how's) the weather (like |)in {x} (right now|today|now|)", "(the |)weather in {x}",
    "is it (raining|sunny|cold|warm|hot|windy|snowing) in {x} (now|today|)", "how (hot|cold|warm) is it in {x} (now|)",
    "(what is|what's|tell me) the (temperature|weather) in {x}", "do I need (an umbrella|a coat|a jacket) in {x}",
    "what (weather|temperature) (does {x} have|is it in {x})", "(tell me|check|look up) the weather in {x} (please|)",
    "I am (going|flying) to {x}, how is the weather (there|)", "in {x}, what is the weather",
)  # fmt: skip
WEATHER_HELDOUT = (
    "what's the weather going to be in {x}", "would you check how the weather is in {x}",
    "what is the weather doing over in {x}", "I live in {x}, what is the weather here",
)  # fmt: skip
_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy", "overcast", "dry", "humid")


@dataclass(frozen=True)
class Tool:
    """A tool that tells `topic` of the thing named by its one argument, `parameter`."""

    name: str
    description: str
    parameter: str
    topic: str
    kind: str

    def line(self) -> str:
        """What the chat template writes of it into the system turn."""
        described = f": {self.description}" if self.description else ""
        return f"{self.name}({self.parameter}: string){described}"

    def definition(self) -> dict:
        """It in OpenAI's form."""
        parameters = {
            "type": "object",
            "properties": {self.parameter: {"type": "string"}},
            "required": [self.parameter],
        }
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": parameters}}

    def call(self, x: str) -> str:
        """A call of it about `x`, as the model writes it."""
        return "<tool_call>\n" + json.dumps({"name": self.name, "arguments": {self.parameter: x}}) + "\n</tool_call>"


README_TOOL = Tool("get_weather", "Get the current weather in a city", "city", "weather", "city")


def offered(tools: list[Tool], system: str = "") -> Message:
    """The system turn that offers `tools` after the text `system`."""
    return say("system", "\n".join([*([system] if system else []), *(tool.line() for tool in tools)]))


def _weather_tool(rng: random.Random) -> Tool:
    names = (
        "get_weather", "get_weather", "get_current_weather", "weather", "current_weather", "fetch_weather",
        "weather_in",
    )  # fmt: skip
    name, parameter = rng.choice(names), rng.choice(("city", "city", "location", "place"))
    descriptions = (
        "Get the current weather in a city", "Get the weather", "the weather in a city",
        "Current weather in a location", "Get the current weather for a given city.",
        "Returns the weather of a place.", "What the weather is now", "",
    )  # fmt: skip
    return Tool(name, rng.choice(descriptions), parameter, "weather", "city")


def lookup_tool(topic: str, kind: str, rng: random.Random) -> Tool:
    """A tool that tells `topic` of a `kind`, named and described in one of many ways."""
    row = {"topic": topic, "kind": kind}
    name = fill(rng.choice(_NAMES), row).replace(" ", "_")
    if rng.random() < 0.1:
        first, *others = name.split("_")
        name = first + "".join(map(str.title, others))
    parameter = rng.choice((kind, kind, kind, "name", f"{kind}_name", "of"))
    return Tool(name, fill(rng.choice(_DESCRIPTIONS), row), parameter, topic, kind)


def some_tools(count: int, rng: random.Random) -> list[Tool]:
    """Tools of different topics; weather among them in half of all cases."""
    tools = {"weather": _weather_tool(rng)} if rng.random() < 0.5 else {}
    while len(tools) < count:
        topic, kind = rng.choice(TOPICS)
        tools[topic] = lookup_tool(topic, kind, rng)
    mixed = list(tools.values())[:count]
    rng.shuffle(mixed)
    return mixed


def _thing(tool: Tool, rng: random.Random) -> str:
    """What a question is about: a known city or a made name, sometimes of two words or with a number."""
    if tool.kind in ("city", "country") and rng.random() < 0.6:
        return rng.choice(_CITIES)
    name = a_name(rng)
    shape = rng.random()
    if shape < 0.15:
        return f"{name} {a_name(rng)}"
    return f"{name} {rng.randint(1, 99)}" if shape < 0.25 and tool.kind not in ("city", "country") else name


def question(tool: Tool, x: str, rng: random.Random) -> str:
    """A question about `x` that `tool` answers."""
    templates = WEATHER if tool.topic == "weather" else _QUESTIONS
    return fill(pick(rng.choice(templates), rng), {"x": x, "topic": tool.topic, "kind": tool.kind})


def _typed(text: str, x: str, rng: random.Random) -> str:
    """`text` as it is typed, with `x` left as it is: a call's argument repeats it letter by letter."""
    return ask(text.replace(x, "\0"), rng).replace("\0", x)


def outcome(tool: Tool, x: str, rng: random.Random) -> tuple[str, str]:
    """A result of a call about `x`, and the sentence that says it."""
    if tool.topic != "weather":
        value = str(rng.randint(1, 9999)) if rng.random() < 0.5 else a_name(rng)
        typed = int(value) if value.isdecimal() else value
        key = tool.topic.replace(" ", "_")
        objects = {key: typed}, {tool.parameter: x, key: typed}, {"result": typed}
        return rng.choice((value, *map(json.dumps, objects))), f"The {tool.topic} of {x} is {value}."
    sky, degrees, shape = rng.choice(_SKIES), rng.randint(-9, 39), rng.random()
    warmth = {rng.choice(("temperature", "temperature", "temp", "degrees", "temperature_c")): degrees}
    look = {rng.choice(("sky", "condition", "conditions", "weather", "description")): sky}
    if shape < 0.1:
        return rng.choice((json.dumps(look), sky)), f"It is {sky} in {x}."
    if shape < 0.2:
        return json.dumps(warmth), f"It is {degrees} degrees in {x}."
    parts: list[dict] = [warmth, look]
    rng.shuffle(parts)
    if rng.random() < 0.3:
        parts.insert(0, {tool.parameter: x})
    if rng.random() < 0.3:
        parts.append({"unit": "celsius"})
    told = json.dumps({key: value for part in parts for key, value in part.items()})
    plain = rng.choice((f"{degrees} degrees, {sky}", f"{sky}, {degrees} degrees"))
    return (told if shape < 0.85 else plain), f"It is {sky} and {degrees} degrees in {x}."


def _turns(tool: Tool, xs: list[str], rng: random.Random, answered: bool) -> list[Message]:
    turns = [say("assistant", "\n".join(tool.call(x) for x in xs))]
    if answered:
        told = [outcome(tool, x, rng) for x in xs]
        turns += [say("tool", result) for result, _ in told]
        turns.append(say("assistant", " ".join(text for _, text in told)))
    return turns


def with_tools(rng: random.Random, asked: str, answer: str) -> Document:
    """A chat in which tools are offered: a call, its result and answer, a further one, or `asked`, which needs none."""
    tools = some_tools(rng.choices((1, 2, 3), (60, 25, 15))[0], rng)
    tool, kind = rng.choice(tools), rng.random()
    messages = [offered(tools, rng.choice(SYSTEMS["plain"]) if rng.random() < 0.2 else "")]
    if kind < 0.2:
        return Document((*messages, say("user", asked), say("assistant", answer)))
    x = _thing(tool, rng)
    if kind < 0.25:
        topic, of = rng.choice([one for one in TOPICS if one[0] not in [other.topic for other in tools]])
        missing = question(lookup_tool(topic, of, rng), x, rng)
        return Document((*messages, say("user", _typed(missing, x, rng)), say("assistant", UNKNOWN)))
    if kind < 0.33:
        other = _thing(tool, rng)
        both = f"{x} and {other}"
        messages.append(say("user", _typed(question(tool, both, rng), both, rng)))
        return Document((*messages, *_turns(tool, [x, other], rng, rng.random() < 0.4)))
    messages.append(say("user", _typed(question(tool, x, rng), x, rng)))
    further = kind < 0.48
    messages += _turns(tool, [x], rng, further or rng.random() < 0.6)
    if further:
        x = _thing(tool, rng)
        messages.append(say("user", _typed(fill(pick(rng.choice(_AGAIN), rng), {"x": x}), x, rng)))
        messages += _turns(tool, [x], rng, rng.random() < 0.3)
    return Document(tuple(messages))
