"""The YAML that people read."""

import pytest
from ruamel.yaml import YAML

from kuberay.render import render, to_yaml
from kuberay.render.manifests import file_name, manifest
from kuberay.render.notes import noted
from ray_configs.loading import catalog, load


@pytest.mark.parametrize("name", catalog())
def test_it_reads_back_as_what_was_rendered(name: str) -> None:
    objects = render(load(name))
    assert list(YAML(typ="safe").load_all(to_yaml(objects))) == objects


NUMBERS = ["4", "1e3", "0x10", "1.5", "0123", "2026-01-01", "12:30"]
WORDS = ["true", "No", "on", "null", "~", "*a", "{a", "'", '"', "é", "@x", "%y", "=", "<<"]


@pytest.mark.parametrize("text", ["", " a", "a: b", "# a", "- a", "a #b", "a\nb", "a\nb\n", *NUMBERS, *WORDS])
def test_strings_stay_strings(text: str) -> None:
    assert YAML(typ="safe").load(to_yaml([{"value": text, "list": [text]}])) == {"value": text, "list": [text]}


def test_comments_stand_above_their_key_at_its_column() -> None:
    text = to_yaml([{"a": {"b": [{"c": 1, noted("d", "why d"): 2}], noted("e", "why e"): {"f": 3}}}])
    assert text == "a:\n  b:\n  - c: 1\n    # why d\n    d: 2\n  # why e\n  e:\n    f: 3\n"


def test_long_comments_are_wrapped() -> None:
    lines = to_yaml([{noted("key", "word " * 60): 1}]).splitlines()
    assert all(len(line) < 120 for line in lines) and len(lines) > 2


COMMITTED = [name for name in catalog() if ".models." not in name]
"""Those of `catalog.models` differ from them in sizes alone."""


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_manifest_is_current(name: str) -> None:
    """`make manifests` writes them anew."""
    from pathlib import Path

    import kuberay

    path = Path(kuberay.__file__).parent / "manifests" / file_name(name)
    assert path.read_text() == manifest(name, render(load(name)))


def test_no_manifest_is_left_of_a_config_that_is_gone() -> None:
    from pathlib import Path

    import kuberay

    folder = Path(kuberay.__file__).parent / "manifests"
    assert {path.name for path in folder.iterdir()} == {file_name(name) for name in COMMITTED}
