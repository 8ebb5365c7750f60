"""A Pod as Linux namespaces: one network for it all, a process tree and a copy-on-write file system for each container.

There are no images. A container sees this machine's files; what it writes is private to it and discarded when it ends.
/tmp, /run, /dev/shm and its home directory are empty when it starts.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.harness.namespace import BRIDGE, NODE_ADDRESS

HOME = "/home/ray"
# An overlay's upper folder must lie on another file system than its lower one: hence a tmpfs for each container. Mount
# targets are resolved inside, for /var/run and others are symbolic links, and would else lead to the machine's own.
SCRIPT = textwrap.dedent("""
    set -e
    layer=$1 pod=$2
    shift 2
    mount --make-rprivate /
    mount -t tmpfs layer "$layer"
    mkdir "$layer/upper" "$layer/work" "$layer/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
    root=$layer/root
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o size=64m shm "$root/dev/shm"
    mount -t tmpfs run "$root/run"
    mount -t tmpfs tmp "$root/tmp"
    mkdir -p "$root$HOME"
    rm -f "$root/etc/hosts" "$root/etc/resolv.conf"
    cp "$pod/hosts" "$pod/resolv.conf" "$root/etc/"
    while read -r options source target; do
        target=$(chroot "$root" realpath -m "$target")
        mkdir -p "$root$target"
        mount --rbind "$source" "$root$target"
        [ "$options" = rw ] || mount -o remount,bind,ro "$root$target"
    done < "$layer.mounts"
    exec chroot "$root" /bin/sh -c 'mkdir -p "$0"; cd "$0" && exec "$@"' "$@"
""")
_links = itertools.count()


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Exec:
    code: int
    said: str


class Process:
    """A container's process tree."""

    def __init__(self, outer: asyncio.subprocess.Process, env: Mapping[str, str]):
        self._outer = outer
        """unshare(1), which waits for the container's process 1 and ends as that did."""
        self.env = env
        self._killed = False

    @property
    def alive(self) -> bool:
        return self._outer.returncode is None

    async def wait(self) -> int:
        """The exit code as a container runtime reports it: 137 after SIGKILL."""
        code = await self._outer.wait()
        if self._killed:  # unshare cannot end as its child did, and says 1
            return 128 + signal.SIGKILL
        return code if code >= 0 else 128 - code

    @property
    def first(self) -> int | None:
        """The host's pid of the container's process 1; None before it starts and after it has ended."""
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()[0])
        return None

    def signal(self, number: int) -> None:
        """Signals process 1, which as in any container receives only signals that it handles, and SIGKILL."""
        self._killed |= number == signal.SIGKILL and self.alive
        with contextlib.suppress(ProcessLookupError):
            if (first := self.first) is not None:
                os.kill(first, number)
            elif number == signal.SIGKILL and self.alive:
                self._outer.kill()  # still preparing its mounts

    async def start(self, command: Sequence[str], **streams: int) -> asyncio.subprocess.Process:
        """Starts another process in the container. Raises ProcessLookupError if the container has ended."""
        if (first := self.first) is None:
            raise ProcessLookupError("the container is not running")
        inside = ("nsenter", "--target", str(first), "--all", "--root", "--wd", "--")
        return await asyncio.create_subprocess_exec(*inside, *command, env=self.env, start_new_session=True, **streams)

    async def run(self, command: Sequence[str], timeout_s: float) -> Exec:
        """Like `start`, but waits for the process to end."""
        try:
            process = await self.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return Exec(1, str(error))
        try:
            said, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            return Exec(124, f"not done after {timeout_s:g} s")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        return Exec(process.returncode or 0, said.decode(errors="replace")[-300:])


class Sandbox:
    """The Pod's network namespace and host name, kept alive by a sleeping process."""

    def __init__(self, folder: Path, ip: str):
        self.folder, self.ip = folder, ip
        self._link = f"pod{next(_links)}"
        self._pause: asyncio.subprocess.Process | None = None

    async def make(self, hostname: str, domain: str | None, namespace: str) -> None:
        """`domain`: of a Pod with a subdomain, what follows the host name in its FQDN."""
        self.folder.mkdir(parents=True)
        names = f"{hostname}.{domain} {hostname}" if domain else hostname
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.ip} {names}\n")
        search = f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
        (self.folder / "resolv.conf").write_text(f"nameserver {NODE_ADDRESS}\nsearch {search}\noptions ndots:5\n")
        (self.folder / "start.sh").write_text(SCRIPT)
        pause = await asyncio.create_subprocess_exec(
            "unshare", "--net", "--uts", "sh", "-c", 'hostname "$0"; echo; exec sleep infinity', hostname,
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._pause = pause
        await pause.stdout.readline()  # now it is in its namespaces
        there = f"nsenter --target {pause.pid} --net ip"
        await _sh(
            f"ip link add {self._link} type veth peer name eth0 netns {pause.pid}",
            f"ip link set {self._link} master {BRIDGE} up",
            f"{there} addr add {self.ip}/16 dev eth0",
            f"{there} link set lo up",
            f"{there} link set eth0 up",
            f"{there} route add default via {NODE_ADDRESS}",
        )

    async def start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        mounts: Sequence[Mount],
        working_folder: str,
        log: Path,
    ) -> Process:
        """Starts a container. `name` must be unused, also for restarts."""
        layer = self.folder / name
        layer.mkdir()
        lines = (f"{'ro' if one.read_only else 'rw'} {one.source} {one.target}\n" for one in mounts)
        Path(f"{layer}.mounts").write_text("".join(lines))
        with log.open("ab") as file:
            outer = await asyncio.create_subprocess_exec(
                "nsenter", "--target", str(self._pause.pid), "--net", "--uts", "--",
                "unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child",
                "sh", str(self.folder / "start.sh"), str(layer), str(self.folder), working_folder, *command,
                env=env,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        return Process(outer, env)

    async def remove(self) -> None:
        if self._pause is not None:
            _kill_all_in(self._pause.pid)
            await self._pause.wait()
        for mount in Path("/proc/mounts").read_text().splitlines():  # an emptyDir in memory
            if (target := mount.split()[1]).startswith(f"{self.folder}/"):
                await _sh(f"umount --lazy {target}")
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


def _kill_all_in(pid: int) -> None:
    """Kills every process in the network namespace of that process, itself included."""
    network = os.readlink(f"/proc/{pid}/ns/net")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/net") == network:
                    os.kill(int(entry.name), signal.SIGKILL)


async def _sh(*commands: str) -> None:
    for command in commands:
        process = await asyncio.create_subprocess_exec(*command.split(), stderr=subprocess.PIPE)
        _, said = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{command}: {said.decode().strip()}")
