"""What can be said of a model that another engine computes: its weights, its KV cache, and whether they fit.

Nothing is compiled: vLLM's programs are its own.
"""

from typing import Any

from pydantic import BaseModel
from rich.console import Console

from apps.llm.engine.weights.checkpoint import INDEX, Checkpoint
from apps.llm.engines.vllm.model import ServedModel
from apps.plan.report import print_notes, table
from ray_configs.llm import LLMConfig

NOT_PLANNED = "not planned: another engine"
GIB = 2**30
SHARE = 0.9
"""Of the memory that vLLM takes, unless `gpu_memory_utilization` says otherwise."""
NARROW = ("fp8", "int8")
UNEVEN = ("kv_lora_rank", "layer_types", "hybrid_override_pattern", "layers_block_type", "linear_num_value_heads")
"""Fields of models whose layers do not all keep keys and values of all tokens in heads."""


class OtherEnginePlan(BaseModel):
    """Bytes are of the whole slice."""

    model: str
    slice: str
    chips: int
    engine: str
    planned: bool = False
    weights_bytes: int | None
    """Of the checkpoint's files; None: they are not here."""
    kv_bytes_per_token: int | None
    """None: not every layer keeps keys and values of each token in heads."""
    memory_bytes: int
    """That the engine may take."""
    tokens: int | None
    """For which the KV cache has room, beside the weights alone."""
    fits: bool | None
    notes: list[str]


def plan(config: LLMConfig) -> OtherEnginePlan:
    """What the files of a config's model say. Raises CheckpointError, ValueError: see `ServedModel.open`."""
    slice = config.slice
    assert slice is not None
    model = ServedModel.open(config)
    said = model.checkpoint.json("config.json")
    weights = None if config.tiny or config.random_weights else _weights(model.checkpoint)
    token = _kv_bytes(said if model.decoder is None else said | said[model.decoder], config)
    share = float(config.vllm_args.get("gpu_memory_utilization", SHARE))
    memory = int(share * slice.hbm_gib * GIB)
    left = None if weights is None else memory - weights
    notes = [f"{NOT_PLANNED}: times, and the memory of its programs, are vLLM's"]
    if weights is None:
        notes.append("the weights are not counted: their files are not here")
    if token is None:
        notes.append("the KV cache is not counted: its layers are of several kinds")
    return OtherEnginePlan(
        model=config.model,
        slice=str(slice),
        chips=slice.chips,
        engine=config.engine,
        weights_bytes=weights,
        kv_bytes_per_token=token,
        memory_bytes=memory,
        tokens=max(0, left) // token if left is not None and token else None,
        fits=None if left is None else left > (token or 0) * (config.max_model_len or 1),
        notes=notes,
    )


def show(made: OtherEnginePlan, console: Console) -> None:
    verdict = {True: "fits", False: "DOES NOT FIT", None: "not known to fit"}[made.fits]
    console.print(
        f"[bold]{made.model}[/bold] on {made.slice}, by {made.engine}: [bold]{verdict}[/bold]",
        highlight=False,
        soft_wrap=True,
    )
    rows = table("Memory", "GiB")
    for name, size in (("weights", made.weights_bytes), (f"that vLLM takes of {made.chips} chips", made.memory_bytes)):
        rows.add_row(name, "?" if size is None else f"{size / GIB:.2f}")
    rows.add_row("KV cache of 1,000 tokens", "?" if made.kv_bytes_per_token is None else _thousand(made))
    console.print(rows)
    if made.tokens is not None:
        console.print(f"room for {made.tokens:,} tokens in the KV cache, at most", highlight=False)
    print_notes(made.notes, console)


def _thousand(made: OtherEnginePlan) -> str:
    return f"{(made.kv_bytes_per_token or 0) * 1000 / GIB:.3f}"


def _weights(checkpoint: Checkpoint) -> int | None:
    """Bytes of the checkpoint's tensors, by its index or its files."""
    index = checkpoint.json(INDEX, required=False) or {}
    total = (index.get("metadata") or {}).get("total_size")
    if isinstance(total, int):
        return total
    sizes = {name: size for name, size in checkpoint.sizes().items() if name.endswith(".safetensors")}
    return sum(sizes.values()) or None


def _kv_bytes(decoder: dict[str, Any], config: LLMConfig) -> int | None:
    """Bytes of one token's keys and values in all layers."""
    if any(decoder.get(name) for name in UNEVEN):
        return None
    layers, heads = decoder.get("num_hidden_layers"), decoder.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int) or heads < 1:
        return None
    kv_heads = decoder.get("num_key_value_heads") or heads
    head_dim = decoder.get("head_dim") or decoder["hidden_size"] // heads
    narrow = str(config.vllm_args.get("kv_cache_dtype", "")).startswith(NARROW)
    size = 1 if narrow else 4 if config.dtype == "float32" else 2
    chips = config.slice.chips if config.slice is not None else 1
    copies = max(1, (config.tensor_parallel or chips) // kv_heads)  # each chip has a head at least
    return int(2 * layers * kv_heads * head_dim * size * copies)
