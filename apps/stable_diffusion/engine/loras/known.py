"""The LoRAs that requests may name, and what they ask of them."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.loras.file import LoraFile
from apps.stable_diffusion.engine.loras.names import LoraNames
from apps.stable_diffusion.engine.request import LoraUse

log = logging.getLogger("podslice")


@dataclass(frozen=True)
class LoraInfo:
    """A LoRA that requests may name."""

    name: str
    alias: str
    """Its trainer's name for it, by which requests may name it too; without one, `name`."""
    file: str
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Combination:
    """LoRAs with their weights, as a picture has them."""

    parts: tuple[tuple[LoraFile, float, float], ...] = ()
    """A file, its weight for the denoiser, and for the text encoders."""

    def of(self, component: str) -> tuple[tuple[LoraFile, float], ...]:
        """The files that change a component, with their weights."""
        text = component.startswith("text_encoder")
        weighted = ((file, for_text if text else weight) for file, weight, for_text in self.parts)
        return tuple(
            (file, weight) for file, weight in weighted if weight and any(one[0] == component for one in file.layers)
        )

    def key(self, components: Sequence[str]) -> tuple[tuple[str, int, float], ...]:
        """What tells it from others that change these components in another way; empty: it changes none."""
        found = ((component, self.of(component)) for component in components)
        return tuple((component, file.serial, weight) for component, files in found for file, weight in files)


NO_LORAS = Combination()


@dataclass
class KnownLoras:
    """The LoRAs by name: those of the config, of a folder, and those loaded since. Thread-safe.

    Args:
        max_rank: sum of the ranks that one picture may use; 0: the server has no LoRA.
        folder: a local folder; each `*.safetensors` in it, or in a folder in it, is known by its name without the
            ending.
    """

    names: LoraNames | None = None
    max_rank: int = 0
    folder: str | None = None
    _files: dict[str, LoraFile] = field(default_factory=dict)
    _in_folder: dict[str, LoraFile | str] = field(default_factory=dict)
    """A file, or why it is none."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, name: str, location: str, roots: Sequence[str] | None = None) -> None:
        """Load one, which reads its file.

        Raises:
            CheckpointError: it cannot be read, or does not fit the model.
            RequestError: the name is taken, or no name.
        """
        if self.names is None:
            raise RequestError("lora_name", "lora_name: this server has no LoRA")
        if not name or any(letter in "<>:=" for letter in name):
            raise RequestError("lora_name", f"lora_name is {name!r}; it must be a name without < > : =")
        if name in self._files:
            raise RequestError("lora_name", f"lora_name: there is a LoRA {name} already; unload it first")
        opened = LoraFile.open(location, self.names, roots)
        _check_ranks(opened, self.max_rank)
        opened.check_numbers()
        with self._lock:
            self._files.setdefault(name, opened)

    def unload(self, name: str) -> None:
        """Forget one; pictures that have begun keep it. Raises RequestError: there is none of this name."""
        with self._lock:
            if name not in self._files:
                raise RequestError("lora_name", f"lora_name: no LoRA {name!r} was loaded; {self._choice()}")
            del self._files[name]

    def refresh(self) -> None:
        """Read the folder anew. A file that does not fit this model is refused when a request names it."""
        if self.folder is None or self.names is None:
            return
        found: dict[str, LoraFile | str] = {}
        for path in sorted(Path(self.folder).expanduser().rglob("*.safetensors")):
            before = self._in_folder.get(path.stem)
            try:
                if isinstance(before, LoraFile) and before.where == str(path):
                    before.check_unchanged()
                    found[path.stem] = before
                    continue
            except CheckpointError:
                pass
            try:
                opened = LoraFile.open(str(path), self.names)
                _check_ranks(opened, self.max_rank)
                found[path.stem] = opened
            except (CheckpointError, OSError) as error:
                log.warning("a LoRA cannot be used: %s", error)
                found[path.stem] = str(error).replace(str(path), path.name)
        with self._lock:
            self._in_folder = found

    def all(self) -> list[LoraInfo]:
        """Those that requests may name, sorted."""
        usable = {name: file for name, file in self._in_folder.items() if isinstance(file, LoraFile)} | self._files
        return [LoraInfo(name, file.alias or name, file.name, file.metadata) for name, file in sorted(usable.items())]

    def combination(self, uses: Sequence[LoraUse]) -> Combination:
        """What a request asks for. The same LoRA twice adds its weights up.

        Raises:
            RequestError: an unknown name, a file that does not fit the model, or more ranks than there are places for.
        """
        if uses and not self.max_rank:
            raise RequestError(
                "loras", "loras: this server has no LoRA; set loras or lora_folder in its config, or leave them out"
            )
        weights: dict[LoraFile, tuple[float, float]] = {}
        for use in uses:
            file = self._named(use.name)
            before = weights.get(file, (0.0, 0.0))
            weights[file] = before[0] + use.weight, before[1] + use.text_weight
        ordered = sorted(weights.items(), key=lambda item: item[0].serial)
        found = Combination(tuple((file, *both) for file, both in ordered))
        ranks: dict[tuple[str, str], int] = {}
        for file, *_ in found.parts:
            for place, rank in file.ranks.items():
                ranks[place] = ranks.get(place, 0) + rank
        if (most := max(ranks.values(), default=0)) > self.max_rank:
            raise RequestError(
                "loras",
                f"loras: their ranks add up to {most}, and a picture may use {self.max_rank}: name fewer of them, or "
                "raise max_lora_rank in the server's config",
            )
        return found

    def _named(self, name: str) -> LoraFile:
        with self._lock:
            every = {**self._in_folder, **self._files}
            file = every.get(name)
            if file is None:  # the name that its trainer gave it, as AUTOMATIC1111 has it
                file = next(
                    (each for each in every.values() if isinstance(each, LoraFile) and each.alias == name), None
                )
        if isinstance(file, LoraFile):
            return file
        why = f"the LoRA {name!r:.100} cannot be used: {file}" if file else f"there is no LoRA {name!r:.100}"
        raise RequestError("loras", f"loras: {why}; {self._choice()}")

    def _choice(self) -> str:
        known = ", ".join(info.name for info in self.all())
        return f"choose one of: {known}" if known else "none are known here"


def _check_ranks(file: LoraFile, max_rank: int) -> None:
    place, rank = max(file.ranks.items(), key=lambda item: item[1])
    if rank > max_rank:
        raise CheckpointError(
            f"{file.where}: the rank of {'.'.join(place)} is {rank}, but the server's max_lora_rank is {max_rank}: "
            "raise it"
        )
