#!/usr/bin/env python3
"""Saxml's saxutil for a Podslice cell: publish models, watch them, query them.

    python clients/saxutil.py publish -wait /sax/test/m lm_cloud.LmCloudSpmd2BTest None 1 BATCH_SIZE=4
    python clients/saxutil.py ls -details /sax/test
    python clients/saxutil.py lm.generate -stream /sax/test/m "How many days are in a week?"

Commands, arguments and flags are saxutil's, and so are Go's rules for flags: -name or --name, before the arguments.
Where the cell is: -sax_root (or -url), else PODSLICE_URL, else http://localhost:8000. Exit codes: 0 done, 1 not done
(stderr says why), 2 wrong usage, 130 Ctrl-C, 141 stdout was closed (`| head`).
"""

import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from http_command import Failure, auth_header, exit_code, read_stdin
from saxutil_cell import Cell, addresses, details, print_stream, print_table, row, summary, wait_until_active
from saxutil_flags import (
    Flag,
    Help,
    Usage,
    base_url,
    boolean,
    cell_id,
    count,
    duration,
    extra_inputs,
    model_id,
    override,
    take_flags,
    whose,
)


@dataclass(frozen=True)
class Command:
    usage: str
    about: str
    run: Callable[..., None]  # takes the cell, the flags' values and the arguments
    flags: dict[str, Flag]


COMMANDS: dict[str, Command] = {}


def command(usage: str, about: str, **flags: Flag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(run: Callable[..., None]) -> Callable[..., None]:
        COMMANDS[usage.split()[0]] = Command(usage, about, run, flags)
        return run

    return register


GLOBAL = {
    "sax_root": Flag(base_url, None, "where the cell is (default $PODSLICE_URL, else http://localhost:8000)"),
    "url": Flag(base_url, None, "the same as -sax_root"),
    "sax_timeout": Flag(duration, 60.0, "longest silence of the cell, in seconds or as 90s, 5m (default 60)"),
    "api_key": Flag(str.strip, None, "default $PODSLICE_API_KEY, else $OPENAI_API_KEY"),
}

# The commands.


@command("create <cell> <state folder> <admin ACL>", "Set up a new cell: check its folder, set its admin ACL.")
def create(cell: Cell, flags: Mapping[str, Any], sax_cell: str, fs_root: str, admin_acl: str) -> None:
    cell.call("POST", "/create", {"sax_cell": cell_id(sax_cell), "fs_root": fs_root, "admin_acl": admin_acl})


@command("delete <cell>", "Say how a cell is removed.")
def delete(cell: Cell, flags: Mapping[str, Any], sax_cell: str) -> None:
    found = own_cell(cell, cell_id(sax_cell))
    raise Failure(
        f"{sax_cell} lives as long as its application does; nothing was deleted. To remove it: unpublish its models "
        f"({len(found['models'])} now), remove its CellConfig from the service and deploy that, or stop the service, "
        f"then delete the folder {found['fs_root']}, which keeps its state."
    )


@command(
    "ls [-csv] [-details] [-acls] /sax[/cell[/model]]",
    "List the cell, its models, or one model.",
    csv=Flag(boolean, False, "comma-separated values, under a line that begins with #"),
    details=Flag(boolean, False, "state, active and asked replicas, reason, overrides, slices"),
    acls=Flag(boolean, False, "who may administer what and call which method"),
)
def ls(cell: Cell, flags: Mapping[str, Any], what: str) -> None:
    if what.rstrip("/") == "/sax":
        print_table(["#", "Cell"], [["0", cell.call("GET", "/cell")["sax_cell"]]], flags["csv"])
        return
    if what.count("/") > 2:
        found, entries = {}, [cell.call("GET", "/listcell", {"model": model_id(what)})]
    else:
        found = own_cell(cell, cell_id(what))
        entries = sorted(found["models"], key=lambda entry: entry["model"])
    header = ["Model", "Model Path", "Checkpoint Path", "# of Replicas", "(Selected) ReplicaAddress", "Methods"]
    print_table(header, map(row, entries), flags["csv"])
    if flags["details"]:
        print_table(["Model", "State", "Active/Asked", "Overrides", "Reason"], map(details, entries), flags["csv"])
    if flags["acls"]:
        acls = [[what, "admin", found["admin_acl"]]] if found.get("admin_acl") else []
        for entry in entries:
            named = {"admin": entry["admin_acl"]} | dict(sorted(entry["acls"].items()))
            acls += [[entry["model"], method, acl] for method, acl in named.items() if acl]
        print_table(["ID", "Method", "ACL"], acls, flags["csv"])
    if flags["details"] and found and not flags["csv"]:
        slices = found["slices"]
        total = "as many as fit" if slices["total"] is None else slices["total"]
        print(f"Slices: {slices['in_use']} of {total} in use ({slices['kind']})")


@command(
    "publish [-wait] <model ID> <model path> <checkpoint> <replicas> [name=value ...]",
    "Publish a model; a value is JSON, or else a string. The checkpoint None means random weights.",
    wait=Flag(boolean, False, "wait until all replicas are active"),
)
def publish(
    cell: Cell, flags: Mapping[str, Any], model: str, path: str, checkpoint: str, replicas: str, *overrides: str
) -> None:
    asked = {"model": model_id(model), "model_path": path, "checkpoint": checkpoint, "replicas": count(replicas)}
    cell.call("POST", "/publish", asked | {"overrides": dict(map(override, overrides))})
    if flags["wait"]:
        wait_until_active(cell, model)


@command("unpublish <model ID>", "Unpublish a model.")
def unpublish(cell: Cell, flags: Mapping[str, Any], model: str) -> None:
    cell.call("POST", "/unpublish", {"model": model_id(model)})


@command(
    "update -replicas=<N> <model ID>", "Change how many replicas a model has.", replicas=Flag(count, None, "how many")
)
def update(cell: Cell, flags: Mapping[str, Any], model: str) -> None:
    if flags["replicas"] is None:
        raise Usage("-replicas is missing, before the model's ID")
    cell.call("PUT", "/update", {"model": model_id(model), "replicas": flags["replicas"]})


@command("update_checkpoint <model ID> <checkpoint>", "Serve a model from another checkpoint.")
def update_checkpoint(cell: Cell, flags: Mapping[str, Any], model: str, checkpoint: str) -> None:
    cell.call("PUT", "/update", {"model": model_id(model), "checkpoint": checkpoint})


@command(
    "setacl <cell> <ACL> | <model ID> [method] <ACL>",
    'Set who may administer a cell or a model, or call a method of it; "" removes the ACL.',
)
def setacl(cell: Cell, flags: Mapping[str, Any], target: str, *method_and_acl: str) -> None:
    arguments = whose(target)
    if not 1 <= len(method_and_acl) <= 1 + ("model" in arguments):
        raise Usage("give a cell and an ACL, or a model, perhaps a method, and an ACL")
    *method, acl = method_and_acl
    cell.call("PUT", "/acl", arguments | {"method": "".join(method), "acl": acl})


@command(
    "getacl <cell> | <model ID> [all | method]", "Print who may administer a cell or a model, or call a method of it."
)
def getacl(cell: Cell, flags: Mapping[str, Any], target: str, method: str = "") -> None:
    arguments = whose(target)
    if method and "model" not in arguments:
        raise Usage("a cell has only an admin ACL: leave out the method")
    acls = cell.call("GET", "/acl", arguments | ({"method": method} if method else {}))["acls"]
    if method == "all":
        lines = [f"{name}: {acl}" for name, acl in sorted(acls.items()) if acl]
        print("\n".join(lines) or f"No ACL is set for {target}.")
    else:
        print(acls.get(method or "admin") or f"No {method or 'admin'} ACL is set for {target}.")


@command("watch <model ID>", "Print each change of a model, until it is gone or Ctrl-C.")
def watch(cell: Cell, flags: Mapping[str, Any], model: str) -> None:
    for entry in cell.changes(model_id(model)):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), summary(entry), *addresses(entry), flush=True)


@command(
    "lm.generate [-n=<N>] [-terse] [-stream] [-extra=<name:number,...>] <model ID> <query>",
    "Ask a language model; the query - is read from stdin.",
    n=Flag(count, 0, "most texts to print; 0 for all"),
    terse=Flag(boolean, False, "only the texts, best first"),
    stream=Flag(boolean, False, "print the text as it comes"),
    extra=Flag(extra_inputs, None, "extra inputs, such as temperature:0.2,per_example_max_decode_steps:32"),
)
def generate(cell: Cell, flags: Mapping[str, Any], model: str, query: str) -> None:
    if flags["stream"] and (flags["terse"] or flags["n"]):
        raise Usage("-stream prints one text as it comes: leave out -terse and -n")
    asked: dict[str, Any] = {"model": model_id(model), "query": read_stdin("query") if query == "-" else query}
    if flags["extra"]:
        asked["extra_inputs"] = flags["extra"]
    if flags["stream"]:
        print_stream(cell.events("POST", "/generate", asked | {"stream": True}))
        return
    reply = cell.call("POST", "/generate", asked)
    found = reply.get("generate_response") if isinstance(reply, dict) else reply
    if not isinstance(found, list):
        raise Failure(f"{cell.url} answered, but not as a cell does. Check -sax_root.")
    if flags["terse"]:
        found = sorted(found, key=lambda pair: -pair[1])
    found = found[: flags["n"] or None]
    if flags["terse"]:
        for text, _ in found:
            print(text)
    else:
        print_table(["Generate", "Score"], [[text, f"{score:.8G}"] for text, score in found])


@command("lm.score <model ID> <prefix> <suffix> [suffix ...]", "Score suffixes of a prefix with a language model.")
def score(cell: Cell, flags: Mapping[str, Any], model: str, prefix: str, suffix: str, *more: str) -> None:
    suffixes = [suffix, *more]
    asked = {"model": model_id(model), "prefix": prefix, "suffix": suffixes}
    scores = cell.call("POST", "/score", asked)["scores"]
    print_table(["Suffix", "Score"], [[text, f"{value:.8G}"] for text, value in zip(suffixes, scores, strict=True)])


@command("help [command]", "Describe the commands, or one of them.")
def describe(cell: Cell | None, flags: Mapping[str, Any], name: str = "") -> None:
    if name and name not in COMMANDS:
        raise Usage(f"there is no command {name!r}; `saxutil help` lists them")
    print(help_text(name))


# What the commands share.


def own_cell(cell: Cell, sax_cell: str) -> dict[str, Any]:
    """The answer of GET /cell. Raises Failure if the cell at this address is another one."""
    found = cell.call("GET", "/cell")
    if found["sax_cell"] != sax_cell:
        raise Failure(f"the cell at {cell.url} is {found['sax_cell']}. Pass the address of {sax_cell} as -sax_root.")
    return found


# The command line.


def help_text(name: str = "") -> str:
    if name in COMMANDS:
        found = COMMANDS[name]
        flags = [f"  -{flag}: {value.about}" for flag, value in found.flags.items() if value.about]
        return "\n".join([f"usage: saxutil [global flags] {found.usage}", found.about, *flags])
    width = max(map(len, COMMANDS))
    lines = ["usage: saxutil [global flags] <command> [flags] <arguments>", "", "Commands:"]
    lines += [f"  {name:{width}}  {found.about}" for name, found in COMMANDS.items()]
    return "\n".join([*lines, "", "Global flags:", *(f"  -{name}: {flag.about}" for name, flag in GLOBAL.items())])


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Raises Failure."""
    name = ""
    try:
        for argument in arguments:
            if any("\ud800" <= char <= "\udfff" for char in argument):
                raise Usage(f"{argument!r} is not UTF-8 text")
        values, rest = take_flags(arguments, GLOBAL)
        name, *rest = rest or [""]
        if name not in COMMANDS:
            raise Usage(f"there is no command {name!r}" if name else "a command is missing")
        chosen = COMMANDS[name]
        own, rest = take_flags(rest, GLOBAL | chosen.flags)
        flags = {name: flag.default for name, flag in (GLOBAL | chosen.flags).items()} | values | own
        url = flags["sax_root"] or flags["url"] or environment_url()
        cell = Cell(url, auth_header(flags["api_key"], "-api_key"), flags["sax_timeout"])
        try:
            inspect.signature(chosen.run).bind(cell, flags, *rest)
        except TypeError:
            raise Usage(f"{name} does not take {len(rest)} arguments") from None
        chosen.run(cell, flags, *rest)
    except Help:
        print(help_text(name))
    except Usage as error:
        print(f"error: {error}\n{help_text(name)}", file=sys.stderr)
        return 2
    return 0


def environment_url() -> str:
    try:
        return base_url(os.environ.get("PODSLICE_URL") or "localhost:8000")
    except Usage as error:
        raise Usage(f"PODSLICE_URL: {error}") from None


def main() -> int:
    return exit_code(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
