"""A Pod's volumes, as folders of this machine that are mounted into its containers."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from tests.kubernetes.harness.kubelet.environment import NotYet, Sources
from tests.kubernetes.harness.kubelet.sandbox import Mount

Object = Mapping[str, Any]
GCSFUSE = "gcsfuse.csi.storage.gke.io"


class Volumes:
    def __init__(self, sources: Sources, folder: Path, buckets: Path):
        """`buckets`: parent of the folders that stand in for buckets, shared by all Pods."""
        self._sources, self._folder, self._buckets = sources, folder, buckets

    async def make(self) -> None:
        """Makes the Pod's volumes. Raises NotYet while an object that one of them refers to is missing."""
        for volume in self._sources.pod["spec"].get("volumes", ()):
            await self._one(volume, self._folder / volume["name"])

    def mounts(self, container: Object) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in self._sources.pod["spec"].get("volumes", ())}
        found = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            source = self._folder / volume["name"]
            if bucket := self._bucket(volume):
                source = bucket
            if below := mount.get("subPath"):
                source /= below
                if not source.exists():
                    source.mkdir(parents=True)
            found.append(Mount(source, mount["mountPath"], mount.get("readOnly", False)))
        return found

    def _bucket(self, volume: Object) -> Path | None:
        if volume.get("csi", {}).get("driver") != GCSFUSE:
            return None
        return self._buckets / volume["csi"]["volumeAttributes"]["bucketName"]

    async def _one(self, volume: Object, folder: Path) -> None:
        if bucket := self._bucket(volume):
            bucket.mkdir(parents=True, exist_ok=True)
            return
        files: dict[str, bytes] = {}
        if "emptyDir" in volume:
            if folder.exists():
                return
            folder.mkdir(parents=True)
            if volume["emptyDir"].get("medium") == "Memory":
                await _memory(folder, volume["emptyDir"].get("sizeLimit"))
        elif "projected" in volume:
            for source in volume["projected"].get("sources", ()):
                files |= await self._projected(source)
        elif "secret" in volume or "configMap" in volume or "downwardAPI" in volume:
            if "secret" in volume:  # a projected one calls the name by another name
                volume = {"secret": volume["secret"] | {"name": volume["secret"]["secretName"]}}
            files = await self._projected(volume)
        else:
            raise NotYet(f"this kubelet has no such volume: {dict(volume)}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    async def _projected(self, source: Object) -> dict[str, bytes]:
        if token := source.get("serviceAccountToken"):
            return {token["path"]: (await self._sources.token(token.get("audience"))).encode()}
        if downward := source.get("downwardAPI"):
            return {
                item["path"]: self._sources.field(item["fieldRef"]["fieldPath"]).encode()
                for item in downward.get("items", ())
            }
        kind = "secret" if "secret" in source else "configMap"
        reference = source[kind]
        read = self._sources.secret if kind == "secret" else self._sources.config_map
        values = await read(reference["name"], reference.get("optional", False)) or {}
        if "items" not in reference:
            return values
        missing = [item["key"] for item in reference["items"] if item["key"] not in values]
        if missing and not reference.get("optional"):
            raise NotYet(f"{kind} {reference['name']} has no key {missing[0]}")
        return {item["path"]: values[item["key"]] for item in reference["items"] if item["key"] in values}


async def _memory(folder: Path, limit: str | None) -> None:
    options = ["-o", f"size={int(parse_quantity(limit))}"] if limit else []
    mount = await asyncio.create_subprocess_exec("mount", "-t", "tmpfs", *options, "memory", str(folder))
    if await mount.wait():
        raise NotYet(f"cannot mount {folder}")
