"""Makes pictures over four pretended chips and over one; prints the largest difference, and the batch sizes of both.

Run by test_jax_backend.py as a process of its own: python sharded_pictures.py FOLDER CONTROLNET
"""

import json
import sys

import jax
import numpy as np

from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.controlnets.use import ControlUse
from apps.stable_diffusion.engine.request import PictureRequest

pictures, sizes = [], []
for devices in (jax.devices(), jax.devices()[:1]):
    settings = {"sizes": [(32, 32)], "max_batch_size": 2, "dtype": "float32", "controlnets": {"edges": sys.argv[2]}}
    backend = JaxBackend(sys.argv[1], devices=devices, **settings)
    backend.compile()
    sizes.append(backend.batch_sizes)
    image = np.full((32, 32, 3), 99, np.uint8)
    control = (ControlUse("edges", image, 0.8, mode="control"),)
    batch = [
        backend.start(
            PictureRequest("a cat", 32, 32, 3, 7.5, "euler-ancestral", negative_prompt="blue", seed=2, controls=control)
        ),
        backend.start(PictureRequest("a photo", 32, 32, 3, 1.0, "lcm", seed=3, image=image, strength=1.0)),
    ]
    backend.denoise(batch[:1], 1)
    backend.denoise(batch, 2)
    backend.denoise(batch[1:], 1)
    backend.wait(batch)
    pictures.append(np.stack(backend.decode(batch)).astype(int))
    assert backend.compiles_after_ready == 0
print(json.dumps([backend.device, int(np.abs(pictures[0] - pictures[1]).max()), *sizes]))
