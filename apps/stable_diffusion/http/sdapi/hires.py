"""AUTOMATIC1111's "hires fix": what its fields say of the second pass."""

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import SecondPass, Size
from apps.stable_diffusion.http.sdapi.requests import Text2ImageBody
from apps.stable_diffusion.pictures import PictureModel
from apps.stable_diffusion.upscalers import upscaler_named


def second_pass_of(model: PictureModel, body: Text2ImageBody, first: Size) -> SecondPass:
    """The second pass of a picture of this size.

    Source: `calculate_target_resolution` of its modules/processing.py.

    Raises:
        RequestError: it ends at a size that is not served, or with other proportions, or enlarges in another way.
    """
    width, height = first
    x, y = body.hr_resize_x, body.hr_resize_y
    if x and y:
        if x * height != y * width:
            raise RequestError(
                "hr_resize_x", f"hr_resize_x, hr_resize_y: {x}x{y} has other proportions than {width}x{height}"
            )
        target = x, y
    elif x or y:
        target = (x, x * height // width) if x else (y * width // height, y)
    else:
        target = int(width * body.hr_scale), int(height * body.hr_scale)
    model.size(*target)
    interpolation, antialias = upscaler_named(body.hr_upscaler or "Latent")
    return SecondPass(*target, body.denoising_strength, body.hr_second_pass_steps or None, interpolation, antialias)
