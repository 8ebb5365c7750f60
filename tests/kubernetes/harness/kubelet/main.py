"""The kubelet and the network of the test cluster, until SIGTERM.

    python -m tests.kubernetes.harness.kubelet.main KUBECONFIG FOLDER

Run it where harness/namespace.py has made the bridge. Prints a line when it is up. FOLDER keeps the Pods' logs.
"""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.harness.async_api import Api
from tests.kubernetes.harness.kubelet.kubelet import Kubelet
from tests.kubernetes.harness.kubelet.server import Server
from tests.kubernetes.harness.namespace import NODE_ADDRESS
from tests.kubernetes.harness.net.cluster_ips import ClusterIPs
from tests.kubernetes.harness.net.dns import NameServer
from tests.kubernetes.harness.net.services import Services

PORT = 10250


async def main(kubeconfig: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet", "-days", "30"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    api = Api(kubeconfig)
    kubelet = Kubelet(api, folder, PORT)
    services = Services(api)
    cluster_ips = ClusterIPs(services)
    await NameServer.listen(services, NODE_ADDRESS)
    await Server(kubelet).listen(NODE_ADDRESS, PORT, certificate, key)
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    tasks = [
        asyncio.create_task(work)
        for work in (kubelet.run(), services.watch(cluster_ips.changed), cluster_ips.follow(), told_to_stop.wait())
    ]
    print("up", flush=True)
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await kubelet.stop()
    await api.close()
    for task in done:
        task.result()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
