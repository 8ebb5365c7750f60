"""A model that follows a script, made of weights: it calls a tool once, and answers when it sees the result.

Agents bring their own long prompts and tools, which no random model follows and no small one understands. Here each
step of the script is a token of its own, and attention looks for two others in the prompt: the name of a tool, and
the mark before a tool's result. The engine serves it like any checkpoint.
"""

import json
from pathlib import Path

import torch
import transformers

from ray_configs.llm import DEMO_MODEL

COMMAND = "cat note.txt > copy.txt && cat note.txt"
ANSWER = "The note was copied."
ASSISTANT, RESULT, NAMED = "<|assistant|>", "<|result|>", "exec_command"
"""The mark that ends a prompt; the one before a tool's result; the tool to call if the prompt has its name."""
OPENS, CLOSES, END = "<tool_call>", "</tool_call>", "<|end|>"
CALLS = {
    name: json.dumps({"name": name, "arguments": {field: COMMAND}})
    for name, field in (("Bash", "command"), (NAMED, "cmd"))
}
SCRIPT = [ASSISTANT, RESULT, NAMED, OPENS, *CALLS.values(), CLOSES, ANSWER, END]
TEMPLATE = (  # like some families', it allows a system message only at the beginning
    "{% if tools %}Tools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('a late system message') }}{% endif %}"
    "{{ '<|result|>' if m.role == 'tool' else '<|' + m.role + '|>' }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>\n"
    "{% endfor %}<|assistant|>"
)
CONTEXT = 65536
HIDDEN, HEAD = 32, 16
LIKELY = 10.0  # logits are tens apart: sampling follows the script too


def save(folder: Path) -> Path:
    """The checkpoint, with the demo model's tokenizer."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(DEMO_MODEL)
    tokenizer.add_tokens(SCRIPT)
    tokenizer.eos_token, tokenizer.chat_template = END, TEMPLATE
    tokenizer.save_pretrained(folder)
    ids = dict(zip(SCRIPT, tokenizer.convert_tokens_to_ids(SCRIPT)))
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // HEAD,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},  # the slowest pair does not turn
        tie_word_embeddings=False,
        bos_token_id=ids[END],
        eos_token_id=ids[END],
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if "norm" in name else 0.0)
        _write(model, ids)
    model.save_pretrained(folder)
    return folder


def _write(model: transformers.LlamaForCausalLM, ids: dict[str, int]) -> None:
    """Sets the weights. Each token of the script has a dimension of its own, in which the others are 0."""
    place = {token: 1 + i for i, token in enumerate(SCRIPT)}
    sees_result, sees_named = HIDDEN - 2, HIDDEN - 1
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[:, 0] = 1.0
    for token in SCRIPT:
        embedding[ids[token], place[token]] = 1.0
    attention = model.model.layers[0].self_attn
    slow = HEAD // 2 - 1
    for i, (token, seen) in enumerate({RESULT: sees_result, NAMED: sees_named}.items()):
        # A head that looks at that token wherever it is; without it, evenly at the others, whose values are 0.
        attention.q_proj.weight[i * HEAD + slow, 0] = 4.0
        attention.k_proj.weight[i * HEAD + slow, place[token]] = 4.0
        attention.v_proj.weight[i * HEAD, place[token]] = 1.0
        attention.o_proj.weight[seen, i * HEAD] = 0.25
    bash, named = CALLS.values()
    for token, after, weight in (  # a token, what it follows or what its prompt has, how strongly
        (OPENS, ASSISTANT, 6),
        (OPENS, sees_result, -4),
        (ANSWER, ASSISTANT, 4),
        (named, OPENS, 1),
        (named, sees_named, 2),
        (bash, OPENS, 2),
        (CLOSES, bash, 6),
        (CLOSES, named, 6),
        (END, CLOSES, 6),
        (END, ANSWER, 6),
    ):
        head[ids[token], after if isinstance(after, int) else place[after]] = weight * LIKELY
