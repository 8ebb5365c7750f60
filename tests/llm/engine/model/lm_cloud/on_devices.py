"""Loads an LmCloud checkpoint over four pretended devices: prints how far its logits are from the reference.

Run by test_lm_cloud.py as a process of its own: python lm_cloud_on_devices.py FOLDER COMPILE_CACHE
"""

import json
import sys
from pathlib import Path

from safetensors.numpy import load_file

from tests.llm.engine.model.lm_cloud import reference
from tests.llm.engine.model.test_models import IDS, Stepper, worst_error

folder, compile_cache = sys.argv[1:]
expected = reference.logits(load_file(Path(folder) / "model.safetensors"), IDS)
found = {}
for attention in ("xla", "cpu"):
    stepper = Stepper(folder, compile_cache, reference.ARCH, tensor_parallel=4, attention=attention)
    layer = stepper.executor.params["layers"][0]
    found[attention] = {
        "error": worst_error(stepper, expected),
        "shards": {name: layer[name].addressable_shards[0].data.shape for name in ("qkv", "out", "up", "down")},
    }
print(json.dumps(found))
