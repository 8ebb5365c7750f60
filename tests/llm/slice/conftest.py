"""Slices for tests: of plain processes, and of a Ray cluster that pretends to have TPUs."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


@pytest.fixture(scope="session")
def slice_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compiled programs, shared by all hosts of all slices."""
    return str(tmp_path_factory.mktemp("slice-compile-cache"))
