"""Compiles decode steps for slices that are not there and prints what was counted: one JSON line for each.

A process of its own, with the environment that test_plan_decode_steps.py gives it.
"""

import dataclasses
import json
import sys

from apps.plan.llm.planner import PlannedModel, Workload
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

INT8 = {"quantize_weights": "int8", "quantize_kv_cache": "int8"}
LLAMA = {"model": "meta-llama/Meta-Llama-3-8B", "max_model_len": 2048, "max_batch_size": 64}
GEMMA = {"model": "google/gemma-7b-it", "max_model_len": 2048, "max_batch_size": 32}
LARGE = {"model": "lm_cloud.LmCloudSpmd175B32Test", "random_weights": True, "max_model_len": 256, "max_batch_size": 8}
ONE_HOST, EIGHT_HOSTS = TpuSlice("v5e", "2x4", "8t"), TpuSlice("v5e", "4x8")
STEPS = {
    "llama-bf16": (LLAMA, ONE_HOST),
    "llama-int8": (LLAMA | INT8, ONE_HOST),
    "gemma-bf16": (GEMMA, ONE_HOST),
    "175b-bf16": (LARGE, EIGHT_HOSTS),
    "175b-int8": (LARGE | {"quantize_weights": "int8"}, EIGHT_HOSTS),
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        fields, slice = STEPS[name]
        sized = PlannedModel.of(Workload(EngineConfig(**fields), slice))
        measured = sized.programs.measure(sized.decode_shape)
        batch, programs = sized.workload.config.max_batch_size, sized.programs
        attention, *_ = sized.kernels(sized.decode_shape, [(1, sized.context)] * batch)
        live = measured.kv_cache * batch * sized.context / (programs.pages * sized.workload.config.page_size)
        rest = {
            "kernel": attention.hbm_bytes,
            "live": live,
            "other_arguments": measured.other_arguments,
            "usable": sized.usable,
            "shapes": len(sized.shapes),
        }
        print(json.dumps(dataclasses.asdict(measured) | rest), flush=True)
