"""How much room there is for LoRAs."""

from typing import NamedTuple

from ray_configs.stable_diffusion import StableDiffusionConfig


class LoraRoom(NamedTuple):
    """What a server keeps room for."""

    slots: int
    """Combinations on the devices."""
    rank: int
    """Sum of the ranks of a combination."""

    @classmethod
    def of(cls, config: StableDiffusionConfig) -> "LoraRoom | None":
        """None: the config has no LoRA."""
        return cls(config.lora_slots, config.max_lora_rank) if config.has_loras else None
