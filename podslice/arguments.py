"""The arguments of `podslice serve` as people write them: FIELD=VALUE, `--field VALUE`, a model, or a CONFIG."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from kuberay import Refusal
from ray_configs.base import nearest

OTHERS = {"served_model_name": "model_id", "api_key": "api_keys", "max_num_seqs": "max_batch_size"}
"""vLLM's names of options, and the fields that mean the same."""
OPTIONS = ("host", "port", "fields")
"""Those of the command itself."""
YES = "true"


@dataclass(frozen=True)
class Told:
    """What a command was given: fields of one application, or a config of its own."""

    fields: dict[str, str]
    config: str | None = None
    host: str | None = None


def given(arguments: Sequence[str], kind: type[BaseModel]) -> Told:
    """Reads the arguments. Raises Refusal for an option that is no field, or arguments that exclude each other."""
    fields: dict[str, str] = {}
    alone: list[str] = []
    host = None
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            field = name.replace("-", "_")
            field = OTHERS.get(field, field)
            if field not in (*kind.model_fields, "host"):
                near = nearest(field, (*kind.model_fields, *OPTIONS))
                instead = f"did you mean --{near.replace('_', '-')}?" if near else "see --fields"
                raise Refusal(f"there is no option --{name}: {instead}")
            if not equals:
                value = words.pop(0) if words and not words[0].startswith("--") else YES
            if field == "host":
                host = value
            else:
                fields[field] = value
        elif "=" in word:
            name, _, value = word.partition("=")
            fields[name] = value
        else:
            alone.append(word)
    if len(alone) > 1:
        raise Refusal(f"{alone[0]} and {alone[1]}: give one model or one config")
    if alone and is_model(alone[0]):
        if "model" in fields:
            raise Refusal(f"{alone[0]} and model={fields['model']}: give one model")
        return Told({"model": alone[0], **fields}, host=host)
    if alone and fields:
        raise Refusal(f"{alone[0]} is a complete config: leave out the other arguments")
    return Told(fields, alone[0] if alone else None, host)


def is_model(word: str) -> bool:
    """Whether a word names a model (`Qwen/Qwen3-8B`, a folder, gs://...), not a config (module or .py file)."""
    path, _, name = word.partition(":")
    if path.endswith(".py") and (not name or name.isidentifier()):
        return False
    return not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+)?", word)
