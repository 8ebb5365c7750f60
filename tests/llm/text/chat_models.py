"""Tiny random models whose chat templates show tools as the known families' do."""

from pathlib import Path

import transformers
from tokenizers import AddedToken

from apps.llm.chat.formats.atem import Atem
from apps.llm.chat.formats.deepseek import DeepSeek
from apps.llm.chat.formats.harmony import Harmony
from tests.llm.chat.templates import MUSE_GLIMMER, QWEN35
from tests.llm.engine import tiny_models

TURNS = "{% for m in messages %}[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}] {{ m.content }}"
OFFER = "{% if tools %}Tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}"
THINKING = "[assistant]{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% if tools %}<|start|>developer<|message|>{% for t in tools %}{{ '// ' + t.function.description }}\n"
    "type {{ t.function.name }} = {{ t.function.parameters | tojson }};{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json"
    "<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant"
)
DEEPSEEK = (DeepSeek.mark, *DeepSeek.other_marks)
OPENED = "[assistant]<think>\n"


def calls(opens: str, key: str, closes: str = "") -> str:
    """The part of a template that writes earlier calls."""
    body = f'{{"name": {{{{ c.function.name | tojson }}}}, "{key}": {{{{ c.function.arguments | tojson }}}}}}'
    return f"{{% for c in m.tool_calls or [] %}}{opens}{body}{closes}{{% endfor %}}\n{{% endfor %}}"


TEMPLATES = {
    "hermes": OFFER + TURNS + calls("<tool_call>\n", "arguments", "\n</tool_call>") + "[assistant]",
    "qwen3": OFFER + TURNS + calls("<tool_call>\n", "arguments", "\n</tool_call>") + THINKING,
    "thinking": OFFER + TURNS + calls("<tool_call>\n", "arguments", "\n</tool_call>") + OPENED,
    "llama": OFFER + TURNS + calls("<|start_header_id|>", "parameters") + "[assistant]",
    "pythonic": OFFER + "Write [func_name(key=value)]\n" + TURNS + "\n{% endfor %}[assistant]",
    "mistral": OFFER + TURNS + calls("[TOOL_CALLS]", "arguments") + "[assistant]",
    "mistral named": OFFER + "[ARGS]" + TURNS + calls("[TOOL_CALLS]", "arguments") + "[assistant]",
    "gemma": OFFER + TURNS + calls("<start_function_call>call:", "arguments") + "[assistant]",
    "deepseek": OFFER + TURNS + calls(DEEPSEEK[0], "arguments") + "[assistant]",
    "deepseek fenced": OFFER + "```json" + TURNS + calls(DEEPSEEK[0], "arguments") + "[assistant]",
    "qwen3_coder": QWEN35,
    "harmony": HARMONY,
    "atem": MUSE_GLIMMER,
    "json": OFFER + TURNS + calls("", "arguments") + "[assistant]",
    "unknown": OFFER + "<function=f>" + TURNS + "\n{% endfor %}[assistant]",
    "none": TURNS + "\n{% endfor %}[assistant]",
}
SPECIAL = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<start_function_call>", "<end_function_call>", *DEEPSEEK]
SPECIAL += dict.fromkeys([Harmony.mark, *Harmony.other_marks, *Atem.other_marks])


def save(folder: Path, template: str, special: bool = True) -> Path:
    """A checkpoint with one of the templates. `special`: its marks are tokens of their own."""
    tiny_models.save(tiny_models.make("llama3"), folder)
    save_tokenizer(folder, template, special)
    return folder


def save_tokenizer(folder: Path, template: str, special: bool = True) -> None:
    tiny_models.save_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    if special:
        tokenizer.add_tokens([AddedToken(mark, special=True) for mark in SPECIAL], special_tokens=True)
    tokenizer.chat_template = TEMPLATES[template]
    tokenizer.save_pretrained(folder)
