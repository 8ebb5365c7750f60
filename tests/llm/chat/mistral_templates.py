"""Chat templates with the guards, roles and shapes of Mistral's released ones, written for these tests."""

SYSTEM = "{% set sys = messages[0].content if messages[0].role == 'system' else '' %}"
REST = "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
ALTERNATE = (
    "{{% set ns = namespace(turn=0) %}}{{% for m in {messages} %}}"
    "{{% if not (m.role == 'tool' or (m.tool_calls is defined and m.tool_calls is not none)) %}}"
    "{{% if (m.role == 'user') != (ns.turn % 2 == 0) %}}{{{{ raise_exception('roles must alternate') }}}}{{% endif %}}"
    "{{% set ns.turn = ns.turn + 1 %}}{{% endif %}}{{% endfor %}}"
)
NINE = (
    "{{% if {id} is not defined or {id} | length != 9 %}}{{{{ raise_exception('ids have 9 letters') }}}}{{% endif %}}"
)

_OFFER_BEFORE_LAST_USER = (
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
)
MISTRAL_NEMO = (
    SYSTEM
    + REST
    + "{% set users = rest | selectattr('role', 'equalto', 'user') | list %}"
    + ALTERNATE.format(messages="rest")
    + "{{ bos_token }}{% for m in rest %}{% if m.role == 'user' %}"
    + _OFFER_BEFORE_LAST_USER
    + "[INST]{% if loop.last and sys %}{{ sys }}\n\n{% endif %}{{ m.content }}[/INST]"
    + "{% elif m.tool_calls is defined and m.tool_calls is not none %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    + NINE.format(id="c.id")
    + '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]{{ eos_token }}'
    + "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% elif m.role == 'tool' %}"
    + NINE.format(id="m.tool_call_id")
    + '[TOOL_RESULTS]{"content": {{ m.content | string }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    + "{% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}"
)
"""Mistral Nemo, and 7B v0.3 in much: llama.cpp, mistralai-Mistral-Nemo-Instruct-2407.jinja."""

MISTRAL_SMALL = (
    SYSTEM
    + REST
    + "{{ bos_token }}[SYSTEM_PROMPT]{{ sys or 'You are Mistral.' }}[/SYSTEM_PROMPT]"
    + "{% set users = rest | selectattr('role', 'equalto', 'user') | list %}"
    + ALTERNATE.format(messages="rest")
    + "{% for m in rest %}{% if m.role == 'user' %}"
    + _OFFER_BEFORE_LAST_USER
    + "[INST]{{ m.content }}[/INST]{% elif m.tool_calls is defined %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    + NINE.format(id="c.id")
    + '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]{{ eos_token }}'
    + "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% elif m.role == 'tool' %}"
    + '[TOOL_RESULTS] {"content": {{ m.content | string }}, "call_id": "{{ m.tool_call_id[-9:] }}"}[/TOOL_RESULTS]'
    + "{% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}"
)
"""Mistral Small 3.1: llama.cpp, mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja."""


def mistral(version: str) -> str:
    """Mistral's formats v7, v11 and v13, of Mistral Small 3.2, Magistral and Devstral: mistral-common's templates."""
    offer = "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"
    place = "not ns.asked" if version == "v13" else "loop.index0 == ns.last"
    name = {"v11": "[CALL_ID]{{ c.id }}", "v13": ""}
    result = "" if version == "v13" else "{{ m.tool_call_id }}[TOOL_CONTENT]"
    calls = "{% for c in m.tool_calls %}" + NINE.format(id="c.id")
    if version == "v7":
        calls = "[TOOL_CALLS][" + calls + "{{ (c.function | tojson)[:-1] }}"
        calls += ', "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]'
    else:
        calls += f"[TOOL_CALLS]{{{{ c.function.name }}}}{name[version]}[ARGS]"
        calls += "{{ c.function.arguments | tojson }}{% endfor %}"
    return (
        SYSTEM
        + REST
        + "{{ bos_token }}{% if sys %}[SYSTEM_PROMPT]{{ sys }}[/SYSTEM_PROMPT]{% endif %}"
        + "{% set ns = namespace(last=-1, asked=false) %}{% for m in rest %}"
        + "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
        + "{% if m.role not in ('user', 'assistant', 'tool') or (loop.previtem and m.role == loop.previtem.role "
        + "and m.role != 'tool') %}{{ raise_exception('unexpected role ' + m.role) }}{% endif %}{% endfor %}"
        + "{% for m in rest %}{% if m.role == 'user' %}{% if tools and "
        + place
        + " %}"
        + offer
        + "{% endif %}{% set ns.asked = true %}[INST]{{ m.content }}[/INST]{% elif m.role == 'assistant' %}"
        + "{{ m.content }}{% if m.tool_calls %}"
        + calls
        + "{% endif %}{{ eos_token }}{% else %}[TOOL_RESULTS]"
        + result
        + "{{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
    )
