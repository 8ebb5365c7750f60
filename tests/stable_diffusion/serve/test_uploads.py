"""Pictures that cost far more to decode than to send are refused. The oracle is Pillow, which takes the plain ones."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from apps.serving.errors import RequestError
from apps.stable_diffusion.http.uploads import read_image

PIXELS = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)


def jpeg(**options: bool) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_of_ordinary_programs(progressive: bool) -> None:
    data = jpeg(progressive=progressive)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert (np.asarray(read_image(data, "image")) == expected).all()


def test_a_jpeg_of_many_scans() -> None:
    data = jpeg(progressive=True)
    scans = [found.start() for found in re.finditer(b"\xff\xda", data)]
    assert 5 < len(scans) < 20
    bomb = data[:-2] + data[scans[-1] : -2] * 200 + data[-2:]
    with pytest.raises(RequestError, match="image is a JPEG of more than 100 scans"):
        read_image(bomb, "image")


def test_too_many_pixels_are_not_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (6000, 6000)).save(file, "PNG")
    assert len(file.getvalue()) < 2**20
    with pytest.raises(RequestError, match="6000x6000"):
        read_image(file.getvalue(), "image")
