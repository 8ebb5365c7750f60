"""A lease in a bucket: another one may begin as soon as its holder has ended."""

import threading
import time

import fsspec
import pytest

from apps.serving.files import LOCK, leased


def test_a_beat_that_is_under_way_does_not_take_the_lease_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, beating = fsspec.filesystem("memory"), threading.Event()
    write = bucket.pipe_file

    def slowly(*args: object) -> None:
        if threading.current_thread().name == "podslice-lease":
            beating.set()
            time.sleep(0.3)
        write(*args)

    monkeypatch.setattr(bucket, "pipe_file", slowly)
    with leased(bucket, "/bucket/run", lease_s=4.0):
        assert bucket.exists(f"/bucket/run/{LOCK}") and beating.wait(240)
    assert not any(thread.name == "podslice-lease" for thread in threading.enumerate())
    assert not bucket.exists(f"/bucket/run/{LOCK}")
