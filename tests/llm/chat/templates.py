"""Chat templates with the guards, roles and shapes of released ones, written for these tests.

Each names what it was read from: collections of released templates in llama.cpp's `models/templates` and vLLM's
`examples`, and the models' own cards. The wording of prompts is not theirs.
"""

from tests.llm.chat.mistral_templates import MISTRAL_NEMO, MISTRAL_SMALL, REST, SYSTEM, mistral

LLAMA3 = (
    SYSTEM
    + REST
    + "<|start_header_id|>system<|end_header_id|>\n\n{{ sys | trim }}<|eot_id|>"
    + "{% if tools %}{% if not rest %}{{ raise_exception('no user') }}{% endif %}"
    + "<|start_header_id|>user<|end_header_id|>\n\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    + "{{ rest[0].content | trim }}<|eot_id|>{% set rest = rest[1:] %}{% endif %}"
    + "{% for m in rest %}{% if m.role not in ('tool', 'ipython') and 'tool_calls' not in m %}"
    + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    + "{% elif 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    + "{% set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>'
    + "{% else %}<|start_header_id|>ipython<|end_header_id|>\n\n"
    + "{{ m.content | tojson if m.content is mapping or m.content is iterable else m.content }}<|eot_id|>"
    + "{% endif %}{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
"""Llama 3.1 and 3.2: llama.cpp, meta-llama-Llama-3.2-3B-Instruct.jinja."""

GPT_OSS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    + SYSTEM
    + REST
    + "{% if sys or tools %}<|start|>developer<|message|>{{ '# Instructions\n\n' + sys if sys }}"
    + "{% for t in tools or [] %}// {{ t.function.description + '\n' + t.function.name }}{% endfor %}<|end|>{% endif %}"
    + "{% set ns = namespace(called=none) %}{% set late = namespace(final=false) %}"
    + "{% for m in rest %}{% if m.role == 'assistant' %}"
    + "{% if 'tool_calls' in m %}{% set late.final = false %}"
    + "{% if m.content and m.thinking %}{{ raise_exception('content or thinking') }}{% endif %}"
    + "{% for f in rest[loop.index:] if f.role == 'assistant' and 'tool_calls' not in f %}"
    + "{% set late.final = true %}{% endfor %}{% if (m.content or m.thinking) and not late.final %}"
    + "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}"
    + "{% set f = m.tool_calls[0].function %}{% set ns.called = f.name %}"
    + "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    + "{{ f.arguments | tojson }}<|call|>{% else %}{% set ns.called = none %}"
    + "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    + "{% elif m.role == 'tool' %}{% if ns.called is none %}{{ raise_exception('no call before') }}{% endif %}"
    + "<|start|>functions.{{ ns.called }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    + "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    + "<|start|>assistant"
)
"""gpt-oss: its chat_template.jinja, but for the words of its system message and the types of its tools."""

GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}<start_of_turn>model\n"
)
"""Gemma 1 and 2: their tokenizer_config.json."""

GEMMA3 = (
    SYSTEM
    + REST
    + "{{ bos_token }}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + "{{ raise_exception('roles must alternate') }}{% endif %}"
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    + "{{ sys + '\n\n' if sys and loop.first }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
"""Gemma 3: its tokenizer_config.json, and vLLM's tool_chat_template_gemma3_pythonic.jinja without tools."""

_VALUE = (
    "{% macro value(v) %}{% if v is string %}{{ '<|\"|>' + v + '<|\"|>' }}{% elif v is boolean %}"
    "{{ 'true' if v else 'false' }}{% elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}"
    "{{ k }}:{{ value(x) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for x in v %}"
    "{{ value(x) }}{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"
    "{% macro response(name, v) %}<|tool_response>response:{{ name }}{{ '{' }}"
    "{% if v is mapping %}{% for k, x in v | dictsort %}{{ k }}:{{ value(x) }}{{ ',' if not loop.last }}{% endfor %}"
    "{% else %}value:{{ value(v) }}{% endif %}{{ '}' }}<tool_response|>{% endmacro %}"
    "{% macro quiet(text) %}{% set ns = namespace(kept='') %}{% for part in text.split('<channel|>') %}"
    "{% set ns.kept = ns.kept + part.split('<|channel>')[0] %}{% endfor %}{{ ns.kept | trim }}{% endmacro %}"
)
_GEMMA4_SYSTEM = (
    SYSTEM
    + REST
    + "{{ bos_token }}{% if enable_thinking or tools or sys %}<|turn>system\n{{ '<|think|>\n' if enable_thinking }}"
    + "{{ sys | trim }}{% for t in tools or [] %}<|tool>declaration:{{ t.function.name }}{description:"
    + "{{ value(t.function.description) }},parameters:{{ value(t.function.parameters) }}}<tool|>{% endfor %}<turn|>\n"
    + "{% endif %}{% set ns = namespace(last=none) %}"
)
_GEMMA4_CALLS = (
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ value(c.function.arguments) }}"
    "<tool_call|>{% set ns.last = 'call' %}{% endfor %}"
)
_GEMMA4_TEXT = "{{ quiet(m.content) if m.role == 'assistant' else m.content | trim }}"
_GEMMA4_END = (
    "{% if ns.last != 'response' %}<|turn>model\n{% endif %}"
    "{{ '<|channel>thought\n<channel|>' if not enable_thinking }}"
)
GEMMA4 = (
    _VALUE
    + _GEMMA4_SYSTEM
    + "{% for m in rest %}{% set ns.last = none %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    + _GEMMA4_CALLS
    + "{% for r in m.tool_responses or [] %}{{ response(r.name, r.response) }}"
    + "{% set ns.last = 'response' %}{% endfor %}"
    + _GEMMA4_TEXT
    + "{% if not (m.tool_responses and not m.content) %}<turn|>\n{% endif %}{% endfor %}"
    + _GEMMA4_END
)
"""Gemma 4 as it was first released, with results in the message of their calls: llama.cpp, gemma4.jinja."""

GEMMA4_TOOL_ROLE = (
    _VALUE
    + _GEMMA4_SYSTEM
    + "{% for m in rest if m.role != 'tool' %}{% set ns.last = none %}"
    + "{% if not (m.role == 'assistant' and loop.previtem and loop.previtem.role == 'assistant') %}"
    + "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{% endif %}"
    + "{% if m.reasoning_content and m.tool_calls %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}"
    + _GEMMA4_CALLS
    + "{% set ids = m.tool_calls | map(attribute='id') | list if m.tool_calls else [] %}"
    + "{% for r in rest if r.role == 'tool' and r.tool_call_id in ids %}{{ response(r.name, r.content) }}"
    + "{% set ns.last = 'response' %}{% endfor %}"
    + _GEMMA4_TEXT
    + "{% if m.content or not m.tool_calls %}<turn|>\n{% endif %}{% endfor %}"
    + _GEMMA4_END
)
"""Gemma 4 with messages of tools: vLLM, tool_chat_template_gemma4.jinja."""

PHI4_MINI = (
    "{% for m in messages %}{% if m.role == 'system' and 'tools' in m and m.tools is not none %}"
    "{{ '<|system|>' + m.content + '<|tool|>' + m.tools + '<|/tool|><|end|>' }}"
    "{% else %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}<|assistant|>"
)
"""Phi-4-mini: its tokenizer_config.json."""

PHI4_MINI_FUNCTOOLS = (
    SYSTEM
    + REST
    + "<|system|>\n{{ sys or 'Help.' }}{% if tools %}\nWrite functools[...]\n{% for t in tools %}{{ t | tojson }}\n"
    + "{% endfor %}{% endif %}<|end|>{% for m in rest if m.role != 'system' %}<|{{ m.role }}|>\n"
    + "{% if m.content %}{{ m.content }}{% elif m.tool_calls %}{% for c in m.tool_calls %}"
    + '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}{{ \',\' if not loop.last }}'
    + "{% endfor %}{% endif %}<|end|>{% endfor %}<|assistant|>"
)
"""Phi-4-mini by vLLM: tool_chat_template_phi4_mini.jinja. Text hides calls; arguments are written as they are."""

_DEEPSEEK_SYSTEM = (
    "{% set ns = namespace(sys='', tool=false, out=false, first=false, user=false) %}{% for m in messages "
    "if m.role == 'system' %}{% set ns.sys = ns.sys + '\n\n' + m.content if ns.sys else m.content %}{% endfor %}"
    "{{ bos_token }}{{ ns.sys }}{% if tools %}\nTools:{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
)
DEEPSEEK_V31 = (
    _DEEPSEEK_SYSTEM
    + "{% for m in messages %}{% if m.role == 'user' %}{% set ns.tool = false %}{% set ns.user = true %}"
    + "{{ '<｜User｜>' + m.content }}{% endif %}"
    + "{% if m.role == 'assistant' and m.tool_calls is defined and m.tool_calls is not none %}"
    + "{{ '<｜Assistant｜></think>' if ns.user }}{% set ns.user = false %}{% set ns.tool = false %}"
    + "{{ '' if m.content is none else m.content }}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}"
    + "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}<｜tool▁call▁end｜>"
    + "{% endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>{% elif m.role == 'assistant' %}"
    + "{{ '<｜Assistant｜></think>' if ns.user }}{% set ns.user = false %}{% set ns.tool = false %}"
    + "{{ m.content + '<｜end▁of▁sentence｜>' }}{% endif %}"
    + "{% if m.role == 'tool' %}{% set ns.user = false %}{% set ns.tool = true %}"
    + "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    + "{% if ns.user and not ns.tool %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
"""DeepSeek V3.1, whose own template has no tools: llama.cpp, deepseek-ai-DeepSeek-V3.1.jinja, with vLLM's tools."""

DEEPSEEK_R1 = (
    _DEEPSEEK_SYSTEM
    + "{% for m in messages %}{% if m.role == 'user' %}{% set ns.tool = false %}"
    + "{{ '<｜User｜>' + m.content }}{% endif %}"
    + "{% if m.role == 'assistant' and m.content is none %}{% set ns.tool = false %}{% for c in m.tool_calls %}"
    + "{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' if loop.first else '\n' }}"
    + "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments "
    + "+ '\n```<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>{% endif %}"
    + "{% if m.role == 'assistant' and m.content is not none %}{% if ns.tool %}"
    + "{{ '<｜tool▁outputs▁end｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% set ns.tool = false %}{% else %}"
    + "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endif %}"
    + "{% if m.role == 'tool' %}{{ '\n' if ns.tool else '<｜tool▁outputs▁begin｜>' }}{% set ns.tool = true %}"
    + "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    + "{{ '<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜><think>\n' }}"
)
"""DeepSeek R1 and V3: their tokenizer_config.json, where content hides calls; with vLLM's tools."""

QWEN3 = (
    SYSTEM
    + "<|im_start|>system\n{{ sys }}{% if tools %}\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}"
    + "\n</tools>{% endif %}<|im_end|>\n{% for m in messages %}"
    + "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    + "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    + "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    + '{"name": "{{ c.function.name }}", "arguments": '
    + "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}}\n</tool_call>"
    + "{% endfor %}<|im_end|>\n{% elif m.role == 'tool' %}"
    + "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    + "<|im_start|>user{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>"
    + "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    + "<|im_start|>assistant\n{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}"
)
"""Qwen3: its tokenizer_config.json."""

_CODER_CALL = (
    "{% macro coder(f) %}<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>"
    "{{ '\n' }}{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}"
    "{{ '\n' }}</parameter>\n{% endfor %}</function>\n</tool_call>{% endmacro %}"
)
QWEN35 = (
    _CODER_CALL
    + SYSTEM
    + REST
    + "{% if not rest | selectattr('role', 'equalto', 'user') | list %}"
    + "{{ raise_exception('no user query') }}{% endif %}"
    + "{% if tools or sys %}<|im_start|>system\n{% for t in tools or [] %}{{ t | tojson + '\n' }}{% endfor %}"
    + "{{ sys | trim }}<|im_end|>\n{% endif %}{% for m in rest %}"
    + "{% if m.role == 'system' %}{{ raise_exception('a system message must be at the beginning') }}"
    + "{% elif m.role == 'user' %}<|im_start|>user\n{{ m.content | trim }}<|im_end|>\n"
    + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n<think>\n{{ (m.reasoning_content or '') | trim }}"
    + "{{ '\n</think>\n\n' }}{{ m.content | trim }}{% for c in m.tool_calls or [] %}"
    + "{{ '\n\n' if loop.first and m.content | trim else '' if loop.first else '\n' }}{{ coder(c.function) }}"
    + "{% endfor %}<|im_end|>\n{% elif m.role == 'tool' %}"
    + "{% if loop.first or rest[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    + "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    + "{% if loop.last or rest[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    + "<|im_start|>assistant\n{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking "
    + "else '<think>\n' }}"
)
"""Qwen3.5: a public fork of its chat_template.jinja, with the guards that the fork says it took out."""

_ATEM_CALL = (
    "{% macro atem(f) %}"
    "{% if f.arguments is not mapping %}{{ raise_exception('arguments must be a mapping') }}{% endif %}"
    '<atem:function_calls>\n<atem:invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}'
    '<atem:parameter name="{{ k }}">{% if v is boolean %}{{ "true" if v else "false" }}{% elif v is none %}null'
    "{% elif v is string or v is number %}{{ v }}{% else %}{{ v | tojson }}{% endif %}</atem:parameter>\n{% endfor %}"
    "</atem:invoke>\n</atem:function_calls>{% endmacro %}"
)
MUSE_GLIMMER = (
    _ATEM_CALL
    + SYSTEM
    + REST
    + "{{ bos_token }}<|start|>system<|message|>{{ sys or 'Help.' }}{{ '\n\n' }}"
    + "Reasoning strength: {{ reasoning_strength or 'high' }}.{{ '\n\nTools:' if tools }}"
    + "{% for t in tools or [] %}{{ '\n' + t.function | tojson }}{% endfor %}"
    + "{{ '\n\n# Valid recipients: \"self\"' }}"
    + '{% for t in tools or [] %}, "{{ t.function.name.split(\'.\')[0] }}.*"{% endfor %}, "user".<|eot|>'
    + "{% for m in rest %}{% set next = rest[loop.index] if not loop.last else none %}"
    + "{% set end = '<|eom|>' if next and next.role == m.role else '<|eot|>' %}"
    + "{% if m.role == 'assistant' %}"
    + "{% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}"
    + "{% if m.content %}<|start|>assistant to=user<|message|>{{ m.content }}"
    + "{{ '<|eom|>' if m.tool_calls else end }}{% endif %}"
    + "{% for c in m.tool_calls or [] %}<|start|>assistant to={{ c.function.name }}<|message|>{{ atem(c.function) }}"
    + "{{ end if loop.last else '<|eom|>' }}{% endfor %}"
    + "{% elif m.role == 'tool' %}<|start|>tool {{ m.name }}<|message|>"
    + '<tool_output name="{{ m.name }}">\n{{ m.content }}\n</tool_output>{{ end }}'
    + "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}{{ end }}{% endif %}{% endfor %}<|start|>assistant"
)
"""Muse Glimmer: its chat_template.jinja as servers' renderers and tests quote it, but for the words of its tools."""

RELEASED = {
    "Llama 3": LLAMA3,
    "gpt-oss": GPT_OSS,
    "Mistral Nemo": MISTRAL_NEMO,
    "Mistral Small": MISTRAL_SMALL,
    "Mistral v7": mistral("v7"),
    "Mistral v11": mistral("v11"),
    "Mistral v13": mistral("v13"),
    "Gemma 2": GEMMA2,
    "Gemma 3": GEMMA3,
    "Gemma 4": GEMMA4,
    "Gemma 4, tools' messages": GEMMA4_TOOL_ROLE,
    "Phi-4-mini": PHI4_MINI,
    "Phi-4-mini, functools": PHI4_MINI_FUNCTOOLS,
    "DeepSeek V3.1": DEEPSEEK_V31,
    "DeepSeek R1": DEEPSEEK_R1,
    "Qwen3": QWEN3,
    "Qwen3.5": QWEN35,
    "Muse Glimmer": MUSE_GLIMMER,
}
