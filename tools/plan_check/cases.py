"""What is checked: the catalog's language models, and two of pictures."""

from apps.plan.llm import planner
from apps.plan.llm.planner import PlannedModel
from apps.plan.stable_diffusion import known
from apps.plan.stable_diffusion.planner import PicturePrograms, PictureWorkload
from ray_configs.catalog import gemma_7b_it_v5e, llama3_8b_v5e, spmd_175b, whole_graph
from ray_configs.catalog.models import (
    gemma3_27b,
    gemma4_31b,
    gpt_oss_120b,
    mixtral_8x7b,
    muse_glimmer_30b,
    qwen3_5_27b,
    qwen3_30b_a3b,
    qwen3_coder_480b,
)
from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.loading import changed
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

PICTURES = (1,)
"""Batch sizes on each chip: a UNet compiles for ten minutes of CPU, or twice that."""
LARGE = (
    *(gemma3_27b, gemma4_31b, gpt_oss_120b, mixtral_8x7b),
    *(muse_glimmer_30b, qwen3_5_27b, qwen3_30b_a3b, qwen3_coder_480b),
)
TRACED = ("sdxl_v5e",)
"""Only the quick check knows this: its compiled programs have not been recorded. Its UNet alone compiles for more than
14 minutes of CPU."""
Case = LLMConfig | StableDiffusionConfig


def cases() -> dict[str, Case]:
    """The configs to check, by name."""
    llama = _config(llama3_8b_v5e.service)
    int8 = {"quantize_weights": "int8", "quantize_kv_cache": "int8"}
    every: dict[str, Case] = {
        "llama3_8b_v5e": llama,
        "llama3_8b_v5e_int8": changed(llama, int8, "llama3_8b_v5e"),
        "gemma_7b_it_v5e": _config(gemma_7b_it_v5e.service),
        "spmd_175b": _config(spmd_175b.service),
        "whole_graph_llm": whole_graph.llm,
    }
    every |= {module.__name__.rpartition(".")[2]: _config(module.service) for module in LARGE}
    return every | {
        "sd15_v5e": StableDiffusionConfig(model="stable-diffusion-v1-5/stable-diffusion-v1-5", slice="v5e:2x2"),
        "sdxl_v5e": changed(whole_graph.pictures, {"sizes": ("1024x1024",)}, "pictures"),
    }


def _config(service: Service) -> LLMConfig:
    config = service.applications[0].config
    assert isinstance(config, LLMConfig)
    return config


def sized(config: LLMConfig) -> PlannedModel:
    """A language model on its config's slice."""
    assert config.slice is not None
    engine = EngineConfig(**{field: getattr(config, field) for field in EngineConfig.model_fields})
    return PlannedModel.of(planner.Workload(engine, config.slice))


def pictured(config: StableDiffusionConfig) -> PicturePrograms:
    """A pipeline's programs on its config's slice, by the published sizes of its model: no checkpoint is looked for."""
    assert config.slice is not None
    workload = PictureWorkload(config, config.slice, config.sizes[0], PICTURES)
    return PicturePrograms.of(workload, known.MODELS[config.model])
