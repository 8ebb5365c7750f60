"""Opens a checkpoint of pictures, in either of its layouts."""

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.ldm.autoencoder import Autoencoder
from apps.stable_diffusion.engine.ldm.locations import PICKLES, located
from apps.stable_diffusion.engine.ldm.single_file import TOKENIZER, Prediction, SingleFile
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint


def open_checkpoint(
    location: str, tokenizer: str | None = None, prediction: Prediction | None = None, vae: str | None = None
) -> Checkpoint:
    """A checkpoint in diffusers' layout, or in a single file.

    Args:
        location: a folder, or a file in safetensors: local, at an fsspec URL, or on the hub as OWNER/NAME or
            OWNER/NAME/FILE.
        tokenizer: of a single file; default: the hub's.
        prediction: of a single file: see `SingleFile`.
        vae: an autoencoder in place of its own: see `Autoencoder`.

    Raises:
        CheckpointError: it cannot be read, or is of a kind that is not served.
    """
    opened: Checkpoint
    if location.endswith((".safetensors", *PICKLES)):
        folder, name = located(location, [])
        assert name is not None  # the location ends in one
        opened = SingleFile(folder, name, tokenizer or TOKENIZER, prediction, has_vae=vae is None)
    else:
        for field, value in (("tokenizer", tokenizer), ("prediction", prediction)):
            if value is not None:
                raise CheckpointError(
                    f"{field} is for checkpoints in a single file; {location} has its own: leave it out"
                )
        opened = Checkpoint(location)
    if vae is not None:
        opened.other_vae = Autoencoder(vae, opened.is_xl)
    return opened
