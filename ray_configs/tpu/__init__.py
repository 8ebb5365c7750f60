"""TPU slices, and the facts that they are checked against: one table, GENERATIONS; TpuSlice derives the rest."""

from ray_configs.tpu.generations import GENERATIONS, MachineType, TpuGeneration
from ray_configs.tpu.slices import SliceField, TpuSlice, every_slice

__all__ = ["GENERATIONS", "MachineType", "SliceField", "TpuGeneration", "TpuSlice", "every_slice"]
