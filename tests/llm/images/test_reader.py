"""Images of all kinds become what transformers' `load_image` and the model's processor make of them, bit for bit."""

import base64
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from transformers.image_utils import load_image

from apps.llm.api import RequestError
from apps.llm.chat.images import SentImage
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.text.images import opening
from apps.llm.text.images.reader import ImageReader
from tests.llm.images import seeing_models
from tests.llm.images.conftest import SEES
from tests.llm.images.seeing_models import PROCESSOR, scene
from tests.llm.router.test_storms import SIZES

ORIENTATION = 274


def in_file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def sent(file: bytes, detail: str = "auto") -> SentImage:
    return SentImage(base64.b64encode(file).decode(), "messages[0].content[1].image_url.url", detail)


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return in_file(image, "JPEG", exif=exif)


def reader_of(folder: Path, **more: int) -> ImageReader:
    limits = {name: SEES[name] for name in ("image_tokens", "max_image_tokens")} | more
    found = ImageReader.of(Checkpoint(str(folder)), seeing_models.spelled, replace(SIZES, **limits))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reader(seeing: Callable[[str], Path]) -> ImageReader:
    return reader_of(seeing("qwen3_5"))


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_models.with_larger_images(tmp_path_factory.mktemp("larger"))


random = np.random.default_rng(7)
FILES = {
    "png": in_file(scene(1, 40, 24)),
    "jpeg": in_file(scene(2, 61, 33), "JPEG", quality=80),
    "webp": in_file(scene(3, 48, 48), "WEBP"),
    "bmp": in_file(scene(4, 20, 90), "BMP"),
    "one frame of a gif": in_file(scene(5, 64, 20), "GIF"),
    "palette": in_file(scene(6, 50, 40).quantize(16)),
    "palette with transparency": in_file(scene(6, 50, 40).quantize(16), transparency=3),
    "transparent": in_file(Image.fromarray(random.integers(0, 256, (30, 50, 4), np.uint8), "RGBA")),
    "grey": in_file(scene(7, 33, 33).convert("L")),
    "grey with transparency": in_file(scene(7, 33, 33).convert("LA")),
    "two colours": in_file(scene(8, 33, 33).convert("1")),
    "cmyk": in_file(scene(9, 44, 28).convert("CMYK"), "JPEG"),
    "one pixel": in_file(scene(10, 2, 2).crop((0, 0, 1, 1))),
    "large": in_file(scene(11, 500, 300)),
    "long": in_file(scene(12, 400, 9)),
} | {f"turned {orientation}": turned(scene(13, 40, 24), orientation) for orientation in range(1, 9)}


@pytest.mark.parametrize("name", FILES)
def test_pixels(reader: ImageReader, tmp_path: Path, name: str) -> None:
    (tmp_path / "image").write_bytes(FILES[name])
    expected = seeing_models.processor()(images=load_image(str(tmp_path / "image")))
    (found,) = reader.read([sent(FILES[name])], lambda: None)
    rows, columns = expected["image_grid_thw"][0][1:]
    assert found.grid == (rows // 2, columns // 2)
    bytes_ = np.frombuffer(found.pixels, np.uint8).reshape(-1, 3, 1, 16).astype(np.float32)
    mean, std = (np.array(PROCESSOR[each], np.float32).reshape(3, 1, 1) for each in ("image_mean", "image_std"))
    values = np.repeat((bytes_ / np.float32(255) - mean) / std, 2, axis=2)
    np.testing.assert_array_equal(values.reshape(len(bytes_), -1), expected["pixel_values"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("family", ["mistral3", "gemma3"])
def test_pixels_in_squares(seeing: Callable[[str], Path], tmp_path: Path, family: str, name: str) -> None:
    (tmp_path / "image").write_bytes(FILES[name])
    expected = seeing_models.processor(family)(images=load_image(str(tmp_path / "image")))["pixel_values"][0]
    (found,) = reader_of(seeing(family)).read([sent(FILES[name])], lambda: None)
    rows, columns = found.grid
    assert family != "gemma3" or found.grid == (4, 4)
    assert (rows * 8, columns * 8) == expected.shape[1:]
    patches = np.frombuffer(found.pixels, np.uint8).reshape(rows, columns, 2, 2, 3, 4, 4)
    bytes_ = patches.transpose(4, 0, 2, 5, 1, 3, 6).reshape(expected.shape).astype(np.float32)
    mean, std = (np.array(PROCESSOR[each], np.float32).reshape(3, 1, 1) for each in ("image_mean", "image_std"))
    np.testing.assert_array_equal((bytes_ / np.float32(255) - mean) / std, expected)


@pytest.mark.parametrize("name", FILES)
def test_pixels_of_images_that_keep_their_shape(larger: Path, tmp_path: Path, name: str) -> None:
    """Gemma 4's: as many tokens as there is room for, in one of its five sizes; its processor pads them."""
    (tmp_path / "image").write_bytes(FILES[name])
    for most, size in ((70, 70), (139, 70), (300, 280)):
        expected = seeing_models.processor("gemma4", max_soft_tokens=size)(images=load_image(str(tmp_path / "image")))
        reader = reader_of(larger, max_image_tokens=most, image_tokens=300)
        (found,) = reader.read([sent(FILES[name])], lambda: None)
        rows, columns = found.grid
        assert rows * columns == expected["num_soft_tokens_per_image"][0]
        patches = np.frombuffer(found.pixels, np.uint8).reshape(rows, columns, 2, 2, 3, 4, 4)
        own = patches.transpose(0, 2, 1, 3, 5, 6, 4).reshape(4 * rows * columns, -1)
        np.testing.assert_array_equal(own.astype(np.float32) / np.float32(255), expected["pixel_values"][0, : len(own)])
        places = expected["image_position_ids"][0]
        assert (
            places[: len(own)].max(axis=0).tolist() == [2 * columns - 1, 2 * rows - 1]
            and (places[len(own) :] < 0).all()
        )


def test_sizes_for_pixtral(seeing: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as fits, in the model's own steps."""
    monkeypatch.setattr("apps.llm.text.images.reader.LOW_DETAIL", 12)
    reader = reader_of(seeing("mistral3"))
    for size in ((500, 300), (30, 400), (64, 64), (5, 5)):
        image = scene(1, *size)
        whole, small = reader.read([sent(in_file(image)), sent(in_file(image), "low")], lambda: None)

        def grid(edge: int, image: Image.Image = image) -> tuple[int, ...]:
            pixels = seeing_models.processor("mistral3", size={"longest_edge": edge})(images=image)["pixel_values"]
            return tuple(side // 8 for side in pixels.shape[2:])

        assert whole.grid == grid(64)
        assert small.grid == next(found for found in map(grid, range(64, 7, -8)) if found[0] * found[1] <= 12)


def test_detail_and_size(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.llm.text.images.reader.LOW_DETAIL", 16)
    whole, small = reader.read([sent(FILES["large"]), sent(FILES["large"], "low")], lambda: None)
    assert whole.parts <= SEES["max_image_tokens"] and 8 < small.parts <= 16 and whole.digest != small.digest
    expected = seeing_models.processor(size={"shortest_edge": 256, "longest_edge": 16 * 64})
    grid = expected(images=scene(11, 500, 300))["image_grid_thw"][0]
    assert small.grid == (grid[1] // 2, grid[2] // 2)


def animated() -> bytes:
    first, *others = (scene(seed, 16, 16) for seed in range(3))
    return in_file(first, "GIF", save_all=True, append_images=others)


BAD = {
    "no base64": (SentImage("%%%", "f"), "f: the image is not in base64"),
    "no image": (sent(b"hello"), "no image of a known format: PNG, JPEG, WEBP, GIF, BMP"),
    "empty": (sent(b""), "no image of a known format"),
    "another format": (sent(in_file(scene(1, 20, 20), "TIFF")), "no image of a known format"),
    "cut": (sent(FILES["large"][:3000]), "the image is damaged"),
    "animated": (sent(animated()), "animated: send one frame"),
    "16 bits": (sent(in_file(Image.fromarray(np.ones((20, 20), np.uint16)))), "more than 8 bits a channel"),
    "too long": (sent(in_file(scene(1, 900, 4))), "the model's processor refuses the image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_refused(reader: ImageReader, name: str) -> None:
    image, said = BAD[name]
    with pytest.raises(RequestError, match=said) as refused:
        reader.read([image], lambda: None)
    assert refused.value.field == image.field


def test_bombs_are_refused_before_they_are_opened(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = in_file(Image.new("1", (9000, 9000)))
    assert len(huge) < 20_000
    with pytest.raises(RequestError, match="9000 x 9000 pixels; at most 33554432"):
        reader.read([sent(huge)], lambda: None)
    monkeypatch.setattr(opening, "MOST_BYTES", 1000)
    with pytest.raises(RequestError, match="has more than 0 MiB"):
        reader.read([sent(FILES["large"])], lambda: None)


def test_large_images_are_read_one_at_a_time(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LARGE", 50 * 50)
    assert not opening.LARGE_ONES.locked()
    with opening.opened(FILES["large"], "f"), opening.opened(FILES["png"], "f"):
        assert opening.LARGE_ONES.locked()
    with pytest.raises(RequestError):
        reader.read([sent(FILES["large"]), sent(in_file(scene(1, 900, 4)))], lambda: None)
    assert not opening.LARGE_ONES.locked()


def test_all_images_together_are_bounded(reader: ImageReader) -> None:
    images = [sent(in_file(scene(seed, 64, 64))) for seed in (1, 2, 1, 3)]
    assert len(reader.read(images[:3], lambda: None)) == 3  # one of them twice
    with pytest.raises(RequestError, match="up to this one have 192 tokens; one request may have 160"):
        reader.read(images, lambda: None)
