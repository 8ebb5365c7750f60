"""Chat templates that would not end, or take all memory, are refused; all others render as transformers alone does.

The oracle for what is rendered is transformers' own environment in a process where nothing is bounded.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.llm.api import RequestError
from apps.llm.chat.model_format import shows_late_system
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from tests.llm.text import chat_models

GROWING = "{% set ns = namespace(x='aa', l=[1], n=7) %}{% for i in range(99) %}{% set ns"
ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    + "{% endfor %}" * 3,
    "a loop that leaves all out": "{% for a in range(99999) %}"
    "{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "a macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for x in [1, 2, 3] recursive %}{{ loop([1, 2, 3]) }}{% endfor %}",
    "joined": GROWING + ".x = ns.x ~ ns.x %}{% endfor %}",
    "added": GROWING + ".x = ns.x + ns.x %}{% endfor %}",
    "lists": GROWING + ".l = ns.l + ns.l %}{% endfor %}",
    "numbers": GROWING + ".n = ns.n * ns.n %}{% endfor %}",
    "replaced": GROWING + ".x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "blocks": GROWING + ".x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "a filter": GROWING + ".x = [ns.x, ns.x] | join %}{% endfor %}",
    "many times": "{{ 'a' * 10**10 }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width of a filter": "{{ '%9999999999d' | format(1) }}",
    "a width of a method": "{{ '{:>9999999999}'.format(1) }}",
    "centered": "{{ 'a' | center(10 ** 10) }}",
    "justified": "{{ 'a'.ljust(10 ** 10) }}",
    "much written": "{% for a in range(99999) %}{% for b in range(999) %}" + "x" * 9999 + "{% endfor %}{% endfor %}",
    "an endless source": "{# #}" * 300_000,
}
CUBIC = (
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}"
    "{% endfor %}{% endfor %}{% endfor %}{{ messages | length }}"
)
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello %s {} ~ 9999999999"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"n": 10**12}}}],
    },
    {"role": "tool", "content": "12", "name": "f", "tool_call_id": "a"},
    {"role": "user", "content": "x" * 100_000},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"maximum": 10**12}}}]
UNUSUAL = {
    "filters": "{% for m in messages if m.role != 'tool' %}{{ loop.index }}/{{ loop.length }}"
    "{% if loop.last %}!{% endif %}"
    "{{ m.content | trim | upper | replace('E', 'e') ~ '|' ~ m.role }}{% else %}none{% endfor %}"
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}",
    "macros": "{% macro say(m) %}<{{ m.role }}>{{ caller() }}{% endmacro %}{% for m in messages %}{% call say(m) %}"
    "{{ m.content[:5] + '.' * 3 }}{{ '%05d' % loop.index0 }}{{ '{:>4}'.format(m.role) }}{% endcall %}{% endfor %}",
    "recursion": "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}{{ loop(x) }}"
    "{% else %}{{ x }}{% endif %}{% endfor %}",
    "values of arguments": "{% macro say(value) %}{{ value }} {{ value | string }} {{ value | tojson }}{% endmacro %}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for key, value in c.function.arguments | items %}"
    "{{ key }}={{ say(value) }}{{ say(value=value) }}{% endfor %}{% endfor %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    "{{ tools | tojson(indent=2) }}{{ 2 ** 10 }}{{ messages[::-1][0].role }}",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    chat_models.save_tokenizer(folder, "qwen3")
    return ModelTokenizer.of_folder(str(folder))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Far less than a template could ask for, so that one that is not bounded fails at once."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.slow
@pytest.mark.parametrize("template", ENDLESS)
def test_what_would_not_end(tokenizer: ModelTokenizer, little_memory: None, template: str) -> None:
    tokenizer._hf.chat_template = ENDLESS[template]
    with pytest.raises(RequestError, match=r"the template|recursion") as caught:
        tokenizer.render([{"role": "user", "content": "Hello"}])
    assert caught.value.field == "messages"


def test_it_loads_and_says_why_at_each_chat(tokenizer: ModelTokenizer) -> None:
    tokenizer._hf.chat_template = ENDLESS["nested loops"]
    tokenizer.warm_up()
    assert not shows_late_system(tokenizer.render)
    with pytest.raises(RequestError, match="steps"):
        tokenizer.render([{"role": "user", "content": "Hello"}])


def test_a_cost_that_grows_with_the_messages(tokenizer: ModelTokenizer) -> None:
    tokenizer._hf.chat_template = CUBIC
    few = [{"role": "user", "content": "Hello"}] * 20
    assert tokenizer.render(few) == "20"
    with pytest.raises(RequestError, match="steps"):
        tokenizer.render(few * 20)


def test_a_chat_of_ten_thousand_messages_is_no_problem(tokenizer: ModelTokenizer) -> None:
    tokenizer._hf.chat_template = chat_models.TEMPLATES["qwen3"]
    assert tokenizer.render([{"role": "user", "content": "Hello"}] * 10_000).count("Hello") == 10_000


def test_all_others_render_as_ever(tokenizer: ModelTokenizer, tmp_path: Path) -> None:
    templates = chat_models.TEMPLATES | UNUSUAL
    written = {}
    for name, template in templates.items():
        tokenizer._hf.chat_template = template
        try:
            written[name] = tokenizer.render(CHAT, TOOLS)
        except RequestError:
            written[name] = "refused"
    tokenizer._hf.save_pretrained(tmp_path)
    (tmp_path / "asked.json").write_text(json.dumps([templates, CHAT, TOOLS]))
    program = f"""
import json, sys
from transformers import PreTrainedTokenizerFast
templates, chat, tools = json.load(open({str(tmp_path / "asked.json")!r}))
plain = PreTrainedTokenizerFast.from_pretrained({str(tmp_path)!r})
found = {{}}
for name, template in templates.items():
    try:
        settings = dict(tokenize=False, add_generation_prompt=True, chat_template=template)
        found[name] = plain.apply_chat_template(chat, tools=tools, **settings)
    except Exception:
        found[name] = "refused"
assert not [name for name in sys.modules if name.startswith("apps")]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert written == json.loads(done.stdout.splitlines()[-1])
    assert sum(text != "refused" for text in written.values()) > len(UNUSUAL) + 8
