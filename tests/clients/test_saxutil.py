"""clients/saxutil.py against a server that keeps a cell's HTTP contract: what it sends, and prints of the replies."""

import json
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.http_servers import StandInHandler, StandInServer

PROGRAM = "saxutil.py"
LM = "/sax/test/lm"
PATH = "lm_cloud.LmCloudSpmd2BTest"


class ContractCell(StandInServer):
    """Replies as a cell does. What becomes of a published model, a test says."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.history: dict[str, list[dict[str, Any]]] = {}  # of each model: all that it was, last what it is
        self.sent: list[tuple[str, dict[str, Any]]] = []  # (method and path, arguments)
        self.changed = threading.Condition()
        self.connections = 0  # each watch ends when this is no more what it was

    @property
    def url(self) -> str:
        return f"{super().url}/prefix"

    def become(self, model: str, state: str, active: int = 0, reason: str | None = None) -> None:
        replicas = [{"id": i, "state": "RUNNING", "node": "n", "address": f"10.0.0.{i}:8471"} for i in range(active)]
        now = {"state": state, "active_replicas": active, "reason": reason, "replicas": replicas}
        with self.changed:
            self.history[model].append(self.history[model][-1] | now)
            self.changed.notify_all()

    def drop_watches(self) -> None:
        """As a proxy does that restarts."""
        with self.changed:
            self.connections += 1
            self.changed.notify_all()


class Handler(StandInHandler):
    server: ContractCell

    def do_GET(self) -> None:  # and the others
        parts = urlsplit(self.path)
        body = self.body()
        arguments = dict(parse_qsl(parts.query)) | (json.loads(body) if body else {})
        call = f"{self.command} {parts.path.removeprefix('/prefix')}"
        self.server.sent.append((call, arguments))
        history, name = self.server.history, arguments.get("model", "")
        if name == "/sax/test/locked" and self.headers["Authorization"] != "Bearer secret":
            call = "401"
        elif call not in ("POST /publish", "GET /cell") and name and name not in history:
            call = "404"
        match call:
            case "401":
                self.refuse(401, "no key was given")
            case "404":
                self.refuse(404, f"{name} is not published")
            case "POST /generate" if name == "/sax/test/loading":
                self.refuse(503, f"no replica of {name} is active yet", {"Retry-After": "7"})
            case "GET /cell":
                slices = {"kind": "v5e:4x8", "total": 2, "in_use": 1}
                self.answer(
                    {"sax_cell": "/sax/test", "fs_root": "/state", "admin_acl": "ops", "principal": None}
                    | {"slices": slices, "models": [past[-1] for past in history.values()]}
                )
            case "GET /listcell":
                self.answer(history[name][-1])
            case "POST /publish" if name in history:
                self.refuse(409, f"{name} is already published")
            case "POST /publish":
                history[name] = [entry(**arguments)]
                self.answer({key: arguments[key] for key in ("model", "model_path", "checkpoint", "replicas")})
            case "GET /acl":
                named = {"admin": "ops", "lm.score": "ann,bob"} if name else {"admin": ""}
                self.answer({"model": name, "acls": named})
            case "GET /watch":
                self.watch(name)
            case "POST /generate":
                self.generate(arguments)
            case "POST /score":
                scores = [-1.5, -20.0][: len(arguments["suffix"])]
                self.answer({"model": name, "scores": scores, "token_log_probs": [[score] for score in scores]})
            case _:
                self.answer(arguments)

    do_POST = do_PUT = do_GET

    def generate(self, arguments: dict[str, Any]) -> None:
        if not arguments.get("stream"):
            pairs = [["Eight.\nNo.", -2.5], ["Seven [b]days", -0.123456789]]
            self.answer(pairs if "extra_inputs" in arguments else {"generate_response": pairs})
        elif arguments["query"] == "cut":
            self.stream([["Seven", -0.5]])
        else:
            self.stream([["Seven", -0.5]], [[" days\u2028", -0.25]], "[DONE]")

    def watch(self, name: str) -> None:
        past, begun = self.server.history[name], self.server.connections
        sent = len(past) - 1
        self.stream()
        with self.server.changed:
            while self.server.connections == begun:
                for now in past[sent:]:
                    self.send({"model": name, "state": "GONE"} if now["state"] == "GONE" else now)
                    if now["state"] == "GONE":
                        return
                sent = len(past)
                self.server.changed.wait(20)

    def stream(self, *events: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        for event in events:
            self.send(event)

    def send(self, event: Any) -> None:
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        self.wfile.write(f"data: {data}\n\n".encode())

    def refuse(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.answer({"Error": sentence, "detail": sentence}, status, headers)


def entry(model: str, model_path: str, checkpoint: str, replicas: int, overrides: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "model_path": model_path,
        "checkpoint": checkpoint,
        "max_replicas": replicas,
        "active_replicas": 0,
        "state": "WAITING",
        "reason": None,
        "assigned_replicas": 0,
        "overrides": overrides,
        "methods": ["lm.generate", "lm.score"],
        "acls": {"lm.score": "ann,bob"},
        "admin_acl": "",
        "replicas": [],
    }


@pytest.fixture
def cell() -> Iterator[ContractCell]:
    with ContractCell() as server:
        for name in ("lm", "locked", "loading"):
            server.history[f"/sax/test/{name}"] = [entry(f"/sax/test/{name}", PATH, "None", 2, {"BATCH_SIZE": 4})]
        yield server
        server.drop_watches()


@pytest.fixture
def saxutil(cell: ContractCell, call: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    return lambda *arguments: call(PROGRAM, "-sax_root", cell.url, *arguments)


OVERRIDES = {"BATCH_SIZE": [1, 4], "A": "tiny", "B": "x=y", "C": "1e999"}


@pytest.mark.parametrize(
    ("arguments", "path", "sent"),
    [
        (
            ["publish", "/sax/test/a", PATH, "gs://b/c", "2", "BATCH_SIZE=[1,4]", "A=tiny", 'B="x=y"', "C=1e999"],
            "POST /publish",
            {
                "model_path": PATH,
                "checkpoint": "gs://b/c",
                "replicas": 2,
                "overrides": OVERRIDES,
                "model": "/sax/test/a",
            },
        ),
        (["unpublish", LM], "POST /unpublish", {"model": LM}),
        (["update", "-replicas=0", LM], "PUT /update", {"model": LM, "replicas": 0}),
        (["update", "--replicas", "3", LM], "PUT /update", {"model": LM, "replicas": 3}),
        (["update_checkpoint", LM, "/ckpt"], "PUT /update", {"model": LM, "checkpoint": "/ckpt"}),
        (["setacl", "/sax/test", "ops"], "PUT /acl", {"sax_cell": "/sax/test", "method": "", "acl": "ops"}),
        (["setacl", LM, ""], "PUT /acl", {"model": LM, "method": "", "acl": ""}),
        (["setacl", LM, "lm.score", "acl/a"], "PUT /acl", {"model": LM, "method": "lm.score", "acl": "acl/a"}),
        (
            ["create", "/sax/test", "gs://b/fs", "acl/all"],
            "POST /create",
            {"sax_cell": "/sax/test", "fs_root": "gs://b/fs", "admin_acl": "acl/all"},
        ),
    ],
)
def test_commands_that_change_something_are_silent(cell, saxutil, arguments, path, sent):
    assert saxutil(*arguments) == (0, "", "")
    assert cell.sent == [(path, sent)]


PAGES = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
SHOWN = [line.strip() for page in PAGES for line in page.read_text().splitlines() if "clients/saxutil.py " in line]


@pytest.mark.parametrize("line", [line for line in SHOWN if line.startswith("python clients/saxutil.py ")])
def test_commands_of_the_docs_are_no_wrong_usage(saxutil, line):
    """The oracle: the pages that tell a reader to type them."""
    arguments = [word for word in shlex.split(line, comments=True)[2:] if word != "-wait"]
    assert saxutil(*arguments)[0] != 2


def test_an_adapter_is_published_under_its_models_name(cell, saxutil):
    assert saxutil("publish", f"{LM}:sql", "/models/sql", "", "1") == (0, "", "")
    sent = {"model": f"{LM}:sql", "model_path": "/models/sql", "checkpoint": "", "replicas": 1, "overrides": {}}
    assert cell.sent == [("POST /publish", sent)]
    assert saxutil("lm.generate", "-terse", f"{LM}:sql", "q")[0] == 0
    assert saxutil("unpublish", f"{LM}:sql") == (0, "", "")
    for wrong in (f"{LM}:", f"{LM}:SQL", f"{LM}:a:b", f"{LM}/a"):
        assert saxutil("unpublish", wrong)[0] == 2


def test_ls(cell, saxutil):
    cell.become(LM, "PARTLY_LOADED", 1, "no free slice, of 2")
    assert saxutil("ls", "/sax")[1].splitlines()[3] == "| 0 | /sax/test |"
    code, out, _ = saxutil("ls", "/sax/test")
    rule, head, _, *rows, _ = out.splitlines()
    assert code == 0 and len(rows) == 3 and set(rule) == {"+", "-"}
    assert cells(head) == (
        ["Model", "Model Path", "Checkpoint Path", "# of Replicas", "(Selected) ReplicaAddress", "Methods"]
    )
    assert cells(rows[0]) == ["lm", PATH, "None", "1", "10.0.0.0:8471", "lm.generate, lm.score"]
    out = saxutil("ls", "-details", "-acls", "/sax/test")[1]
    assert "| lm      | PARTLY_LOADED | 1/2          | BATCH_SIZE=4 | no free slice, of 2 |" in out
    assert "Slices: 1 of 2 in use (v5e:4x8)" in out
    assert "| /sax/test         | admin    | ops     |" in out and "| /sax/test/lm      | lm.score | ann,bob |" in out
    assert saxutil("ls", "-csv", "--details=true", LM)[1].splitlines() == [
        "# Model,Model Path,Checkpoint Path,# of Replicas,(Selected) ReplicaAddress,Methods",
        f'lm,{PATH},None,1,10.0.0.0:8471,"lm.generate, lm.score"',
        "# Model,State,Active/Asked,Overrides,Reason",
        'lm,PARTLY_LOADED,1/2,BATCH_SIZE=4,"no free slice, of 2"',
    ]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_getacl(saxutil):
    assert saxutil("getacl", LM)[1] == "ops\n"
    assert saxutil("getacl", LM, "all")[1] == "admin: ops\nlm.score: ann,bob\n"
    assert saxutil("getacl", LM, "lm.score")[1] == "ann,bob\n"
    assert saxutil("getacl", LM, "lm.embed")[1] == f"No lm.embed ACL is set for {LM}.\n"
    assert saxutil("getacl", "/sax/test")[1] == "No admin ACL is set for /sax/test.\n"


def test_generate_and_score(cell, saxutil, run):
    table = saxutil("lm.generate", LM, "-5 degrees?")[1].splitlines()
    assert [cells(line) for line in table[1:-1] if line[0] == "|"] == (
        [["Generate", "Score"], ["Eight.", "-2.5"], ["No.", ""], ["Seven [b]days", "-0.12345679"]]
    )
    assert saxutil("lm.generate", "-terse", "-n", "1", LM, "x")[1] == "Seven [b]days\n"
    assert saxutil("lm.generate", "-terse=true", "-extra", "temperature:0.2,top:3", LM, "x")[0] == 0
    assert cell.sent[0][1] == {"model": LM, "query": "-5 degrees?"}
    assert cell.sent[2][1]["extra_inputs"] == {"temperature": 0.2, "top": 3}
    asked = run(PROGRAM, "lm.generate", "-stream", LM, "-", stdin="How?\n", env={"PODSLICE_URL": cell.url + "/"})
    assert asked == (0, "Seven days\u2028\n", "")
    assert cell.sent[3] == ("POST /generate", {"model": LM, "query": "How?\n", "stream": True})
    assert saxutil("lm.generate", "-stream", LM, "cut")[:2] == (1, "Seven\n")
    table = saxutil("lm.score", LM, "A week has", " seven days", " -")[1]
    assert (
        "| Suffix      | Score |" in table and "|  seven days | -1.5  |" in table and "|  -          | -20   |" in table
    )


def test_wait_until_active(cell, start):
    process = start(PROGRAM, "-sax_root", cell.url, "publish", "-wait", "/sax/test/new", PATH, "None", "1")
    assert process.stderr.readline() == "/sax/test/new: WAITING, 0 of 1 replicas active\n"
    cell.become("/sax/test/new", "LOADING")
    assert process.stderr.readline() == "/sax/test/new: LOADING, 0 of 1 replicas active\n"
    cell.become("/sax/test/new", "LOADED", 1)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and out.startswith("/sax/test/new: LOADED, 1 of 1 replicas active, after")
    assert err == "/sax/test/new: LOADED, 1 of 1 replicas active\n"


def test_wait_in_vain(cell, start):
    begin = ("-sax_root", cell.url, "publish", "-wait")
    bad, gone = (start(PROGRAM, *begin, f"/sax/test/{name}", PATH, "/none", "1") for name in ("bad", "gone"))
    bad.stderr.readline()
    cell.become("/sax/test/bad", "FAILED", 0, "no checkpoint at /none")
    out, err = bad.communicate(timeout=240)
    assert (bad.returncode, out) == (1, "")
    assert err.endswith("\nerror: /sax/test/bad failed to load: no checkpoint at /none\n")
    gone.stderr.readline()
    cell.become("/sax/test/gone", "GONE")
    out, err = gone.communicate(timeout=240)
    assert (gone.returncode, out) == (1, "")
    assert err.endswith("\nerror: /sax/test/gone was unpublished before all of its replicas were active.\n")


def test_watch_ends_with_the_model_or_with_the_user(cell, start):
    user, other = (start(PROGRAM, "-sax_root", cell.url, "watch", LM) for _ in range(2))
    assert "WAITING, 0 of 2 replicas active" in user.stdout.readline()
    user.send_signal(signal.SIGINT)
    assert user.communicate(timeout=240) == ("", "") and user.returncode == 130
    assert "WAITING" in other.stdout.readline()
    cell.drop_watches()  # it begins anew, and says nothing while nothing has changed
    cell.become(LM, "LOADED", 2)
    assert other.stdout.readline().endswith(" LOADED, 2 of 2 replicas active 10.0.0.0:8471 10.0.0.1:8471\n")
    cell.become(LM, "GONE")
    out, err = other.communicate(timeout=240)
    assert (other.returncode, out.splitlines()[-1][-5:], err) == (0, " GONE", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ls", "/sax/test/gone"], "/sax/test/gone is not published"),
        (["watch", "/sax/test/gone"], "/sax/test/gone is not published"),
        (["publish", LM, PATH, "None", "1"], f"{LM} is already published"),
        (["unpublish", "/sax/test/locked"], "no key was given. Set PODSLICE_API_KEY to a valid key."),
        (
            ["lm.generate", "-stream", "/sax/test/loading", "x"],
            "no replica of /sax/test/loading is active yet. Try again in 7 s.",
        ),
        (["ls", "/sax/other"], "the cell at URL is /sax/test. Pass the address of /sax/other as -sax_root."),
        (
            ["delete", "/sax/test"],
            "/sax/test lives as long as its application does; nothing was deleted. To remove it: unpublish its models "
            "(3 now), remove its CellConfig from the service and deploy that, or stop the service, then delete the "
            "folder /state, which keeps its state.",
        ),
    ],
)
def test_refusals_are_the_servers_sentence(cell, saxutil, arguments, sentence):
    assert saxutil(*arguments) == (1, "", f"error: {sentence.replace('URL', cell.url)}\n")


def test_a_key_from_the_environment(saxutil, monkeypatch):
    monkeypatch.setenv("PODSLICE_API_KEY", "secret\n")
    assert saxutil("unpublish", "/sax/test/locked") == (0, "", "")


def test_no_cell_there(server, call, closed_port):
    assert call(PROGRAM, "ls", "-url", f"localhost:{closed_port}", "/sax") == (
        1,
        "",
        f"error: cannot reach http://localhost:{closed_port}: connection refused. Is a cell served there? "
        "-sax_root or PODSLICE_URL says where the cell is.\n",
    )
    code, out, err = call(PROGRAM, "-sax_root", server.url("steady"), "ls", "/sax")  # another program's server
    assert (code, out) == (1, "") and "answered 404 Not Found" in err and "Is a cell there? Check -sax_root." in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "a command is missing"),
        (["publsh"], "there is no command 'publsh'"),
        (["-sax_root", "gs://bucket/sax-root", "ls", "/sax"], "write it like http://localhost:8000"),
        (["-sax_timeout=soon", "ls", "/sax"], "-sax_timeout: 'soon' is not a time"),
        (["publish", LM, PATH, "None"], "publish does not take 3 arguments\nusage: saxutil [global flags] publish"),
        (["publish", "lm", PATH, "None", "1"], "'lm' is not a model's ID: /sax/CELL/MODEL"),
        (["publish", LM, PATH, "None", "-1"], "'-1' is not a whole number"),
        (["publish", LM, PATH, "None", "1", "-wait"], "'-wait' is not NAME=VALUE; flags come before"),
        (["update", LM], "-replicas is missing"),
        (["update", "-replicas"], "-replicas needs a value"),
        (["setacl", "/sax/test", "lm.score", "ops"], "give a cell and an ACL"),
        (["lm.generate", "-stream", "-n=2", LM, "x"], "leave out -terse and -n"),
        (["lm.generate", "-extra=temperature", LM, "x"], "is not NAME:NUMBER"),
        (["lm.generate", LM, "caf\udce9"], "is not UTF-8 text"),
        (["ls", "-csv=maybe", "/sax"], "neither true nor false"),
        (["ls", "-l", "/sax"], "there is no flag -l"),
    ],
)
def test_wrong_usage(call, arguments, says):
    code, out, err = call(PROGRAM, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and says in err and "usage: saxutil" in err


def test_help(call):
    assert "lm.generate" in call(PROGRAM, "help")[1]
    for arguments in (["help", "update"], ["update", "-help"]):
        assert call(PROGRAM, *arguments)[1].startswith("usage: saxutil [global flags] update -replicas=<N> <model ID>")
