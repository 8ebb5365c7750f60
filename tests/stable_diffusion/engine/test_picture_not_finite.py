"""Pictures of numbers that are not finite: an error for that picture, none of its batch changes by a pixel.

The oracle of the others is the same picture drawn alone.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.job import Finished, PictureFailed
from apps.stable_diffusion.engine.model.config_ranges import FIELDS, SCHEDULER
from apps.stable_diffusion.engine.request import PictureRequest
from ray_configs.stable_diffusion import StableDiffusionConfig

DEMO = Path(__file__).parents[3] / "apps/stable_diffusion/demo/model"
SIZE = (64, 64)


def request(seed: int, **more: object) -> PictureRequest:
    settings = {"num_inference_steps": 4, "guidance_scale": 3.0, "scheduler": "ddim", "seed": seed}
    return PictureRequest("a red circle", *SIZE, **settings | more)


@pytest.fixture(scope="module")
def engine(compile_cache: str):
    made = JaxBackend(str(DEMO), sizes=[SIZE], max_batch_size=4, dtype="float32", compile_cache=compile_cache)
    made.compile()
    engine = Engine(made)
    yield engine
    engine.shutdown()


def drawn(job) -> list[np.ndarray]:
    return [event.pixels for event in job if isinstance(event, Finished)]


@pytest.mark.slow
def test_one_bad_picture_fails_alone(engine: Engine) -> None:
    alone = [drawn(engine.submit([request(seed)]))[0] for seed in (1, 2)]
    start = engine.backend.start

    def poisoned(wanted: PictureRequest):
        picture = start(wanted)
        if wanted.seed == 7:
            latents = np.array(picture.state.latents)
            latents[0, 0, 0] = np.nan
            picture.state = picture.state._replace(latents=jax.device_put(latents, picture.state.latents.sharding))
        return picture

    engine.backend.start = poisoned
    try:
        for _ in range(2):
            jobs = [engine.submit([request(seed)], previews=1) for seed in (7, 1, 7, 2)]
            for bad in (jobs[0], jobs[2]):
                with pytest.raises(PictureFailed, match="not finite"):
                    drawn(bad)
            for wanted, job in zip(alone, (jobs[1], jobs[3])):
                # On some CPUs a batch of another size rounds the last bit otherwise.
                assert np.abs(drawn(job)[0].astype(int) - wanted).max() <= 1
        with pytest.raises(PictureFailed):
            drawn(engine.submit([request(6), request(7)]))
    finally:
        engine.backend.start = start
    assert np.array_equal(drawn(engine.submit([request(1)]))[0], alone[0])
    assert engine.stats().running == engine.stats().waiting == 0
    engine.check()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e308])
@pytest.mark.parametrize("field", ["guidance_scale", "strength"])
def test_a_request_with_it_is_refused(field: str, bad: float) -> None:
    with pytest.raises(RequestError, match=field):
        request(1, **{field: bad})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def opened(folder: Path, backend: str = "jax") -> None:
    if backend == "jax":
        JaxBackend(str(folder), sizes=[SIZE], dtype="float32")
    else:
        Engine.load(StableDiffusionConfig(model=str(folder), sizes=("64x64",), backend=backend)).shutdown()


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("component", ["unet", "vae", "text_encoder"])
def test_a_checkpoint_with_it_is_refused(model: Path, component: str, backend: str) -> None:
    (file,) = (model / component).glob("*.safetensors")
    tensors = {name: tensor.copy() for name, tensor in load_file(file).items()}
    name = sorted(name for name in tensors if "conv_in" in name or "q_proj.weight" in name)[0]
    tensors[name].reshape(-1)[-1] = np.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"tensor {name.removeprefix('text_model.')}|tensor {name}"):
        opened(model, backend)


BAD = (float("nan"), float("inf"), -7, 1e308, 10**30, "8", True, [float("nan")])
MAY_BE_NEGATIVE = ("freq_shift", "shift_factor", "base_shift", "max_shift")


def cases() -> list[tuple[str, str]]:
    """Those of a transformer are in `flow/`."""
    others = "text_encoder_2", "transformer"
    files = {f"{name}/config.json": fields for name, fields in FIELDS.items() if name not in others}
    files["scheduler/scheduler_config.json"] = SCHEDULER
    return [(file, field) for file, fields in files.items() for field in fields]


@pytest.mark.parametrize(("file", "field"), cases())
def test_a_config_out_of_range_is_refused(model: Path, file: str, field: str) -> None:
    sound = json.loads((model / file).read_text())
    for bad in BAD:
        if bad == -7 and field in MAY_BE_NEGATIVE:
            continue
        (model / file).write_text(json.dumps(sound | {field: bad}))
        with pytest.raises(CheckpointError, match=rf"{file}: {field}\b.* not "):
            opened(model)
