"""LoRA adapters made by PEFT for tiny models, and the logits of PEFT's own merged model."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def save_adapter(model: transformers.PreTrainedModel, folder: Path, seed: int = 1, **options: Any) -> PeftModel:
    """Save an adapter that changes every answer; returns PEFT's model with it, a copy of the given one."""
    adapted = get_peft_model(deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **options))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=random) * weight.shape[1] ** -0.5)
    adapted.save_pretrained(str(folder))
    return adapted


def merged(adapted: PeftModel) -> transformers.PreTrainedModel:
    """The base model with the adapter's matrices added to its own."""
    return deepcopy(adapted).merge_and_unload().eval()
