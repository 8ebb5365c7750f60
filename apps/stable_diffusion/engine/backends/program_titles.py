"""What a program is called while it compiles."""

from apps.arrays.programs import Key

NAMES = {
    "denoise": "denoising",
    "decode": "decoder",
    "image": "image encoder",
    "control": "ControlNet",
    "control image": "ControlNet's image",
}


def title(key: Key) -> str:
    """Of a key of `program_list.listed`."""
    kind, *rest = key
    if kind in ("text", "lora"):
        return {"text": "text encoder", "lora": "slots for LoRA"}[kind]
    where = f"{rest[0]} patches" if isinstance(rest[0], int) else "{}x{}".format(*rest[0])
    name = NAMES[kind]
    return f"{name} {where}" + (f" batch {rest[1]}" if kind in ("denoise", "control") else "")
