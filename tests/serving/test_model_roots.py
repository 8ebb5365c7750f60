"""Which places callers may name. The oracles: `os.path.realpath` for what a path is, fsspec for what it would open."""

import json
import os
import random
from pathlib import Path

import fsspec
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from apps.arrays.model_folder import CheckpointError, ModelFolder
from apps.serving.model_roots import is_hub_id, is_plain, link_out, permitted


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with folders and links, and what lies beside it."""
    for folder in ("root/a/b", "root/c", "root-2/a", "secret/a", "root/%2e%2e", "root/a b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "up").symlink_to("..")
    (tmp_path / "root" / "a" / "in").symlink_to(tmp_path / "root" / "c")
    (tmp_path / "root" / "round").symlink_to("round")
    (tmp_path / "entry").symlink_to(tmp_path / "root")
    return tmp_path


def test_a_local_path_is_judged_by_what_it_is(tree: Path) -> None:
    root, draw = str(tree / "root"), random.Random(1)
    parts = ["a", "b", "c", "out", "up", "in", "..", ".", "", "%2e%2e", "round", "none", "root-2", "a b", " ", "secret"]
    kinds: dict[bool, int] = {True: 0, False: 0}
    for _ in range(3000):
        path = "/".join(
            [draw.choice([root, root, str(tree), f"{tree}/entry"]), *draw.choices(parts, k=draw.randrange(5))]
        )
        text = draw.choice(["", "", "file://", "local://"]) + path
        found = permitted(text, [draw.choice([root, f"file://{root}", f"{root}/", f"{tree}/entry"])])
        fs, opened = url_to_fs(text)
        assert isinstance(fs, LocalFileSystem)
        real = os.path.realpath(opened)
        inside = os.path.commonpath([real, root]) == root
        assert (found is not None) == inside, text
        if found is not None:
            assert os.path.realpath(url_to_fs(found)[1]) == real, "what is opened is what was judged"
        kinds[inside] += 1
    assert min(kinds.values()) > 300


@pytest.mark.parametrize(
    "text",
    [
        "{root}/a::file:///etc",
        "{root}/out::file://{root}/a",
        "tar://x::file:///etc/passwd",
        "tar://x::file://{root}/a",
        "simplecache::gs://bucket/models/x",
        "reference://",
        "http://127.0.0.1:1/models",
        "memory://models",
        "data:,x",
        "FILE://{root}/a",
        "File://{root}/a",
        "file:{root}/a",
        "~/models",
        "~root",
        "root/a",
        "a",
        "",
        "{root}/a\0",
        "{root}/a\n",
        " {root}/a",
        "{root}/../secret",
        "gs://bucket/models-2/x",
        "gs://bucket/models/../x",
        "gs://bucket/models/%2e%2e/x",
        "gs://bucket/models/%252e%252e/x",
        "gs://bucket/models/./x",
        "gs://bucket",
        "GS://bucket/models/x",
        "gs://bucket@other/models/x",
        "gs://bucket/models/x?y",
        "gs://bucket/models/x#1",
        "s3://bucket/models/x",
        "https://host.evil/models",
        "https://host@evil/models",
        "https://host/models/..%5cx",
    ],
)
def test_no_other_spelling_leaves_the_roots(text: str, tree: Path) -> None:
    root = str(tree / "root")
    assert permitted(text.format(root=root), [root, "gs://bucket/models", "https://host/models"]) is None


def test_urls_below_a_root(tree: Path) -> None:
    roots = ["gs://bucket/models/", "gs://all", "https://host/models"]
    for text in ("gs://bucket/models", "gs://bucket/models/x/y", "gs://all/x", "https://host/models/a-b.c"):
        assert permitted(text + "/", roots) == text
    assert permitted(str(tree), []) is permitted("gs://all/x", ["gs://a::gs://all"]) is None


def test_links_of_a_folder_that_callers_may_name_stay_in_the_roots(tree: Path) -> None:
    root, other = tree / "root", tree / "root-2"
    folder = root / "c"
    (folder / "config.json").write_text("{}")
    inner = folder / "1_Pooling"
    inner.mkdir()
    (inner / "config.json").symlink_to(folder / "config.json")
    assert link_out(str(folder), [str(root)]) is None
    (folder / "weights").symlink_to(other / "a")
    assert link_out(str(folder), [str(root)]) == str(folder / "weights")
    assert link_out(str(folder), [str(root), str(other)]) is None, "other roots are as good"
    (other / "a" / "tokenizer.json").symlink_to(tree / "secret")
    assert link_out(str(folder), [str(root), str(other)]) == str(folder / "weights" / "tokenizer.json"), "behind a link"
    with pytest.raises(CheckpointError, match="leads out of model_roots"):
        ModelFolder(str(folder), [str(root), str(other)])
    ModelFolder(str(folder))
    assert link_out(str(folder), []) is link_out(str(folder), ["gs://bucket"]) is None, "of the config's own"
    assert link_out(str(root / "out"), [str(root)]) == str(root / "out"), "a link that was a folder when it was judged"


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/", "a\0", "a\n", "file:///x", "x::file:///y", "*"]
)
def test_a_name_in_an_index_stays_in_the_folder(name: str, tree: Path) -> None:
    folder = tree / "root" / "a"
    assert not is_plain(name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model.safetensors", "v": name}}))
    opened = ModelFolder(str(folder))
    with pytest.raises(CheckpointError, match=r"index\.json: .* is no name of a file"):
        opened.shards(index.name)
    with pytest.raises(CheckpointError, match="is no name of a file"):
        opened.path(name)


def test_what_fsspec_chains_is_what_is_refused() -> None:
    """Every protocol that fsspec knows, before and behind `::`."""
    for protocol in fsspec.available_protocols():
        for text in (
            f"{protocol}://x::file:///models/a",
            f"/models/a::{protocol}://x",
            f"{protocol}::file:///models/a",
        ):
            assert permitted(text, ["/models"]) is None


@pytest.mark.parametrize(
    "text", ["a/b/c", "../b", "a/..", "/a", "a/", ".a", "~a", "a b", "a/b\n", "a--b", "http:", "a" * 97, ""]
)
def test_what_is_no_hub_id(text: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    assert not is_hub_id(text)
    if text.count("/") < 2 and text not in ("../b", "~a", ".a", "a/..", "/a"):
        with pytest.raises(HFValidationError):
            validate_repo_id(text)
