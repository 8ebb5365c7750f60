"""clients/sd_req.py against a stand-in server on localhost: one picture of all, or one line that says what to do."""

import io
import signal
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from PIL import Image

from tests.http_servers import StandInHandler, StandInServer

PROGRAM = "sd_req.py"


class Painter(StandInHandler):
    """Behaves as the first part of the path says: /well/imagine, /busy/imagine ..."""

    protocol_version = "HTTP/1.1"
    server: "Studio"

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        kind, _, rest = path.path.lstrip("/").partition("/")
        query, studio = dict(parse_qsl(path.query)), self.server
        with studio.lock:
            studio.asked.append((kind, query, self.headers.get("Authorization")))
            studio.running += 1
            studio.most_running = max(studio.most_running, studio.running)
        try:
            self.act(kind if rest == "imagine" else "lost", query)
        finally:
            with studio.lock:
                studio.running -= 1

    def act(self, kind: str, query: dict[str, str]) -> None:
        if kind == "third":  # of the requests with even seeds, nothing comes
            kind = "well" if int(query["seed"]) % 2 else "sick"
        match kind:
            case "well":
                time.sleep(0.1)
                width, height = map(int, query.get("size", "24x16").split("x"))
                file = io.BytesIO()
                Image.new("RGB", (width, height), (int(query.get("seed", 9)), 0, 0)).save(file, "PNG")
                self.answer(file.getvalue(), headers={"Content-Type": "image/png"})
            case "stall":
                time.sleep(60)
                self.answer()
            case "busy":
                self.refuse(503, "64 pictures wait already", {"Retry-After": "7"})
            case "sick":
                self.refuse(500, "The server failed; its log says why.")
            case "strict":
                self.refuse(400, "size 24x16 is not served here;\nchoose of: 512x512")
            case "locked":
                self.refuse(401, "No API key given")
            case "moved":
                self.answer(b"", 307, {"Location": "http://elsewhere:1/imagine"})
            case "page":
                self.answer("<html>hello</html>", headers={"Content-Type": "text/html"})
            case "broken":
                self.connection.shutdown(socket.SHUT_RDWR)
            case _:
                self.answer({"detail": "Not Found"}, 404)

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.answer({"error": {"message": message}}, status, headers)


class Studio(StandInServer):
    def __init__(self) -> None:
        super().__init__(Painter)
        self.lock = threading.Lock()
        self.asked: list[tuple[str, dict[str, str], str | None]] = []
        self.running = self.most_running = 0

    def at(self, kind: str) -> str:
        return f"{self.url}/{kind}"


@pytest.fixture
def studio() -> Iterator[Studio]:
    with Studio() as studio:
        yield studio


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_as_in_the_tutorial(studio, run, tmp_path):
    code, out, err = run(PROGRAM, "--url", studio.at("well"), "--save_pictures", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("8 of 8 pictures in ") and "pictures/s" in out and "latency: mean" in out
    assert "saved 8 pictures, 4 x 2, as diffusion_results.png" in out
    with Image.open(tmp_path / "diffusion_results.png") as picture:
        assert picture.size == (4 * 24, 2 * 16)
    prompts = {query["prompt"] for _, query, _ in studio.asked}
    assert len(prompts) == 8 and all(set(query) == {"prompt"} for _, query, _ in studio.asked)
    assert 4 <= studio.most_running <= 8


def test_without_pillow(run, tmp_path):
    """As after `make serve`, which does not install it."""
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL/__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'PIL'\")")
    code, out, err = run(PROGRAM, env={"PYTHONPATH": str(tmp_path)})
    assert (code, out) == (1, "")
    assert err.startswith("error: this client needs Pillow") and "make serve-sd" in err and err.count("\n") == 1


@pytest.mark.parametrize("style", ["num_requests batch_size save_pictures", "num-requests batch-size save-pictures"])
def test_flags_in_both_spellings(studio, call, tmp_path, style):
    requests, batch, save = (f"--{name}" for name in style.split())
    more = ["--seed", "250", "--size", "8X8", "--steps", "7", "--output", "out.png", "--api-key", "k"]
    prompts = ["--prompt", "one", "--prompt", "two"]
    code, _, err = call(PROGRAM, "--url", studio.at("well"), requests, "3", batch, "2", save, *prompts, *more)
    assert (code, err) == (0, "") and studio.most_running <= 2
    asked = sorted(studio.asked, key=lambda one: one[1]["seed"])
    same = {"size": "8x8", "num_inference_steps": "7"}
    assert [query for _, query, _ in asked] == [
        {"prompt": "one", "seed": "250"} | same,
        {"prompt": "two", "seed": "251"} | same,
        {"prompt": "one", "seed": "252"} | same,
    ]
    assert {key for *_, key in asked} == {"Bearer k"}
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (24, 8)
        assert [picture.getpixel((x, 0))[0] for x in (0, 8, 16)] == [250, 251, 252], "in the order of the requests"


def test_ip_is_where_it_goes(studio, call):
    port = studio.server_port
    code, out, _ = call(PROGRAM, "--ip", f"127.0.0.1:{port}/well", "--num_requests", "1")
    assert code == 0 and "1 of 1 pictures" in out
    assert "--ip" in call(PROGRAM, "--ip", "1.2.3.4", "--url", "x")[2], "one or the other"


def test_some_fail(studio, call, tmp_path):
    flags = ["--seed", "0", "--num_requests", "4", "--save_pictures"]
    code, out, err = call(PROGRAM, "--url", studio.at("third"), *flags)
    assert code == 1 and out.startswith("2 of 4 pictures in") and "saved 2 pictures, 2 x 2" in out
    assert err.startswith("error: 2 requests of 4 failed: ") and err.count("\n") == 1
    assert "500 Internal Server Error: The server failed; its log says why. The server's log says more." in err
    with Image.open(tmp_path / "diffusion_results.png") as picture:
        assert [picture.getpixel(at)[0] for at in ((0, 0), (24, 0), (0, 16), (24, 16))] == [128, 1, 128, 3]


@pytest.mark.parametrize(
    ("kind", "says", "advises"),
    [
        ("busy", "503 Service Unavailable: 64 pictures wait already.", "try again in 7 s"),
        ("sick", "500 Internal Server Error", "log"),
        ("strict", "400 Bad Request: size 24x16 is not served here; choose of: 512x512.", "Change the request"),
        ("locked", "401 Unauthorized: No API key given.", "--api_key or PODSLICE_API_KEY"),
        ("lost", "404 Not Found: Not Found.", "answers at /imagine"),
        ("moved", "307", "http://elsewhere:1"),
        ("page", "did not answer with a picture", "Stable Diffusion server"),
        ("broken", "broke: server disconnected", "still runs"),
        ("stall", "no picture from", "--timeout"),
    ],
)
def test_all_fail(studio, call, tmp_path, kind, says, advises):
    flags = ["--num_requests", "3", "--timeout", "0.4", "--save_pictures"]
    code, out, err = call(PROGRAM, "--url", studio.at(kind), *flags)
    assert code == 1 and out.startswith("0 of 3 pictures in")
    assert err.startswith("error: 3 requests of 3 failed: ") and err.count("\n") == 1
    assert says in err and advises in err
    assert not list(tmp_path.iterdir()), "no picture of nothing"


def test_no_server(call, closed_port):
    code, _, err = call(PROGRAM, "--url", f"localhost:{closed_port}", "--num_requests", "1")
    assert code == 1 and "error: 1 request of 1 failed: cannot reach" in err and "make serve-sd" in err


@pytest.mark.parametrize("output", ["no/such/folder.png", ".", "picture.sorry"])
def test_a_file_that_cannot_be_written_is_known_before_anything_is_asked(studio, call, output):
    code, out, err = call(PROGRAM, "--url", studio.at("well"), "--save_pictures", "--output", output)
    assert (code, out, err.count("\n"), studio.asked) == (1, "", 1, [])
    assert f"cannot write {output}" in err and ("--output" in err or ".png" in err)


def test_a_full_disk(studio, run, tmp_path):
    (tmp_path / "full.png").symlink_to("/dev/full")
    flags = ["--url", studio.at("well"), "--num_requests", "1", "--save_pictures", "--output", "full.png"]
    code, out, err = run(PROGRAM, *flags, cwd=tmp_path)
    assert code == 1 and "1 of 1 pictures" in out
    assert err == "error: cannot write full.png: No space left on device. Choose another place with --output.\n"


def test_interrupt_is_quiet(studio, start, tmp_path):
    process = start(PROGRAM, "--url", studio.at("stall"), "--save_pictures", cwd=tmp_path)
    deadline = time.monotonic() + 240
    while studio.running < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num_requests", "0"], "1 or more"),
        (["--batch-size", "many"], "1 or more"),
        (["--prompt", " "], "--prompt: is empty"),
        (["--size", "512"], "512x512"),
        (["--seed", "-1"], "from 0"),
        (["--timeout", "0"], "above 0"),
        (["--url", "ftp://x"], "http://localhost:8000"),
        (["--ip", ""], "not a server's address"),
    ],
)
def test_bad_flags(call, arguments, says):
    code, out, err = call(PROGRAM, *arguments)
    assert (code, out) == (2, "") and says in err
