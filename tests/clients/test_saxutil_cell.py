"""clients/saxutil.py against a real cell: a model's whole life, from publish to unpublish."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.llm.serve.serving import wait_until

PROGRAM = "saxutil.py"
CELL = "/sax/saxutil"
MODEL = f"{CELL}/tiny"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


@pytest.fixture
def cell_url(ray_cluster: str, serve_url: str, tmp_path) -> Iterator[str]:
    from ray import serve

    from apps.cell import build
    from ray_configs.cell import CellConfig

    config = CellConfig(name="saxutil", state_uri=str(tmp_path), tiny=True)
    serve.run(build(config), name="saxutil-cell", route_prefix="/saxutil")
    # On a busy machine the proxy learns of a route some time after the application runs.
    wait_until(lambda: httpx.get(f"{serve_url}/saxutil/v1/models").is_success, 120)
    yield f"{serve_url}/saxutil"
    serve.delete("saxutil-cell")
    for app in serve.status().applications:  # what it had published, if the test failed
        if app.startswith("sax.saxutil."):
            serve.delete(app)


@pytest.fixture
def saxutil(cell_url: str, call: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    return lambda *arguments: call(PROGRAM, "-sax_root", cell_url, *arguments)


@pytest.mark.slow
def test_the_life_of_a_model(cell_url, saxutil, start):
    code, out, err = saxutil("ls", "/sax")
    assert code == 0 and f"| {CELL} |" in out, err
    code, out, err = saxutil("publish", "-wait", MODEL, PATH, "None", "1", "BATCH_SIZE=2")
    assert (code, out.startswith(f"{MODEL}: LOADED, 1 of 1 replicas active, after")) == (0, True), err
    assert saxutil("publish", MODEL, PATH, "None", "1")[0] == 1  # it is published already
    code, out, err = saxutil("publish", f"{CELL}/other", "os.system", "None", "1")
    assert (code, out) == (1, "") and "'os.system' is not registered" in err
    code, out, _ = saxutil("ls", "-details", CELL)
    assert code == 0 and f"| {PATH}" in out and "| LOADED | 1/1          | BATCH_SIZE=2 |" in out

    assert saxutil("setacl", MODEL, "lm.score", "acl/ann,bob") == (0, "", "")
    assert saxutil("getacl", MODEL, "all") == (0, "lm.score: ann,bob\n", "")

    watch = start(PROGRAM, "-sax_root", cell_url, "watch", MODEL)
    assert " LOADED, 1 of 1 replicas active" in watch.stdout.readline()
    assert saxutil("update", "-replicas=0", MODEL) == (0, "", "")
    assert saxutil("unpublish", MODEL) == (0, "", "")
    out, err = watch.communicate(timeout=240)
    assert (watch.returncode, out.splitlines()[-1][-4:], err) == (0, "GONE", "")
    assert saxutil("unpublish", MODEL)[0] == 1
