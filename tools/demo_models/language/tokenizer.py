"""The tokenizer: byte-level BPE trained on the demo's own text, and the prompt formats.

A chat is `<|bos|><|user|>QUESTION<|end|><|assistant|>ANSWER<|end|>...`; a raw prompt is
`<|bos|>QUESTION`, and the model goes on with `\\nANSWER<|eos|>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo_models.language.chats import Document, Message

BOS, EOS, END, PAD = "<|bos|>", "<|eos|>", "<|end|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|tool|>"}
SPECIAL = (PAD, BOS, EOS, END, *ROLES.values())  # their ids are 0, 1, 2, ...

# Tools are listed in the system turn, a line for each; a call is written in Hermes' form.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}"
    "{{ '<|system|>' }}"
    "{% if messages and messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] | trim + '\n' }}{% set messages = messages[1:] %}"
    "{% endif %}"
    "{% for tool in tools %}"
    "{% set function = tool['function'] %}"
    "{{ function['name'] + '(' }}"
    "{% for name, kind in (function['parameters'] or {}).get('properties', {}).items() %}"
    "{{ name + ': ' + (kind['type'] if kind['type'] is string else 'any') }}{{ '' if loop.last else ', ' }}"
    "{% endfor %}"
    "{{ ')' + (': ' + function['description'] if function['description'] else '') }}"
    "{{ '' if loop.last else '\n' }}"
    "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') | trim }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '' if loop.first and not message['content'] else '\n' }}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson + '}\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of `vocab_size` tokens that puts BOS before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Digits stand alone, so that sums are learnt by place and not by number.
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; `max_length` is in tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [END, *ROLES.values()],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def stop_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids that end an answer: EOS in a raw prompt, END in a chat."""
    return tokenizer.token_to_id(EOS), tokenizer.token_to_id(END)


def encode_raw(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`, without a leading BOS."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[Message]) -> list[int]:
    """Token ids of a raw prompt, or of a chat with the assistant's turn opened."""
    ids = [tokenizer.token_to_id(BOS)]
    if isinstance(prompt, str):
        return ids + encode_raw(tokenizer, prompt)
    for message in prompt:
        ids += [tokenizer.token_to_id(ROLES[message["role"]])]
        ids += [*encode_raw(tokenizer, message["content"]), tokenizer.token_to_id(END)]
    return [*ids, tokenizer.token_to_id(ROLES["assistant"])]


def encode_document(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[bool]]:
    """Token ids of a training document, and which of them are the model's own."""
    eos, end = stop_ids(tokenizer)
    ids, own = [tokenizer.token_to_id(BOS)], [False]
    for message in document.messages:
        answers = message["role"] == "assistant"
        if document.raw:
            content = encode_raw(tokenizer, "\n" * answers + message["content"])
            content += [eos] * answers
        else:
            content = [*encode_raw(tokenizer, message["content"]), end]
            ids.append(tokenizer.token_to_id(ROLES[message["role"]]))
            own.append(False)
        ids += content
        own += [answers] * len(content)
    return ids, own
