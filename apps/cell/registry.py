"""The models that may be published, by name. Names are looked up, never imported: no request decides what code runs.

    lm_cloud.LmCloudSpmd2BTest      Saxml's test models (its own full names work too); random weights only
    catalog.llama3_8b_v5e           a language model of the catalog, as that config serves it
    huggingface:OWNER/NAME          any supported model of the hub
    /models/NAME, gs://...          a checkpoint folder under one of the cell's `model_roots`

`checkpoint` selects the weights: "None" draws random ones, as in Saxml; a folder or hub id replaces the model's own,
which are read when it is left out.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import ValidationError

from apps.cell.desired.state import Published
from apps.cell.errors import CellError
from apps.serving.model_roots import HUB, is_hub_id, permitted
from ray_configs.applications import lm_cloud
from ray_configs.applications.scaling import ScalingConfig
from ray_configs.cell import CellConfig
from ray_configs.llm import AdapterSource, LLMConfig
from ray_configs.loading import catalog, explained, load
from ray_configs.service import Service

RANDOM = "None"
CATALOG = "catalog."

OVERRIDES = {"BATCH_SIZE": "max_batch_size", "NUM_CACHE_SLOTS": "max_batch_size"}
"""Saxml's name -> the field of LLMConfig."""
NOT_OVERRIDDEN = frozenset(
    {"model", "model_id", "slice", "min_replicas", "max_replicas", "api_keys", "random_weights", "compile_cache"}
    | {"tiny", "tiny_layers", "stored_responses", "callers", "batches", *ScalingConfig.model_fields}
    | {"adapters", "adapter_loading", "model_roots", "routers", "vllm_args"}
)
"""Fields that the cell sets, or that name files or code."""


class Registry:
    """The models that one cell can publish."""

    def __init__(self, cell: CellConfig):
        self._cell = cell

    def config(self, name: str, model: Published) -> LLMConfig:
        """The application's config for a published model. Raises CellError if this cell cannot serve it."""
        if model.checkpoint in ("", model.model_path):
            location = None
        elif model.checkpoint == RANDOM:
            location = RANDOM
        else:
            location = self._location(model.checkpoint, "checkpoint")
        fields = self._base(model.model_path, location) | self._overrides(model.overrides)
        cell = self._cell
        fields |= {
            "model_id": name,
            "slice": cell.slice,
            "callers": cell.callers,
            "model_roots": cell.model_roots,
            "num_cpus": fields.get("num_cpus", cell.num_cpus),
            "min_replicas": 1,
            "max_replicas": 1,
            "routers": 0,
            "stored_responses": 0,  # a response's id names neither its model nor the replica that stores it
        }
        try:
            config = LLMConfig(**fields)
        except ValidationError as error:
            raise CellError(f"{name} cannot be served with these overrides:\n{explained(error)}") from error
        devices = (config.data_parallel or 1) * (config.tensor_parallel or 1)
        if cell.slice is not None and devices > 2 * cell.slice.chips:  # no chip has more than two
            raise CellError(
                f"overrides: data_parallel x tensor_parallel is {devices} devices, and the cell's slices "
                f"({cell.slice}) have {cell.slice.chips} chips; leave either or both out"
            )
        if taken := sorted(model.adapters.keys() & config.adapters.keys()):
            raise CellError(f"{model.model_path} itself has an adapter {taken[0]}; publish this one by another name")
        if len(config.adapters) + len(model.adapters) > config.adapter_capacity:
            raise CellError(
                f"{name} has {config.adapter_capacity} places for adapters, all taken: unpublish one, or update the "
                f'model with overrides {{"max_adapters": N}}, which replaces its replicas'
            )
        return config.as_tiny() if cell.tiny else config

    def adapters(self, model: Published) -> dict[str, AdapterSource]:
        """Where a model's adapters are, by name. Raises CellError if the cell may not read one of them."""
        return {
            name: AdapterSource(location=self._location(adapter.model_path, "model_path"), version=adapter.order)
            for name, adapter in model.adapters.items()
        }

    def _base(self, path: str, location: str | None) -> dict[str, Any]:
        """Fields that the model's path determines. `location`: where its weights are; None: with the model."""
        random = location == RANDOM
        if name := _lm_cloud(path):
            if location not in (None, RANDOM):
                raise CellError(f'model_path {path} has random weights only: set checkpoint to "None"')
            # As Saxml runs it: the large ones in int8, 128 tokens in and 128 out.
            large = "175B" in name
            sizes = {"quantize_weights": "int8", "max_model_len": 256} if large else {}
            return {"model": lm_cloud.PREFIX + name, "random_weights": True} | sizes
        short = path.removeprefix("ray_configs.")
        if short.startswith(CATALOG):
            entries = catalog_models()
            if short not in entries:
                raise CellError(f"model_path {path!r} is not in the catalog, which has {', '.join(entries)}")
            known = entries[short]
            fields = {field: getattr(known, field) for field in known.model_fields_set}
            if random:
                fields["random_weights"] = True
            elif location is not None:
                fields["model"] = location
            return fields
        model = self._location(path, "model_path")
        return {"model": model if location in (None, RANDOM) else location, "random_weights": random}

    def _location(self, text: str, field: str) -> str:
        """The folder, URL or hub id that the engine reads for `text`."""
        if text.startswith(HUB):
            if not self._cell.hub_models:
                raise CellError(f"{field} {text!r}: this cell does not publish hub models (hub_models=False)")
            name = text.removeprefix(HUB)
            try:
                validate_repo_id(name)
            except HFValidationError as error:
                raise CellError(
                    f"{field} {text!r} must be {HUB}OWNER/NAME; the hub has no such names: {error}"
                ) from None
            if name.count("/") != 1 or not is_hub_id(name):
                raise CellError(
                    f"{field} {text!r} must be {HUB}OWNER/NAME, each beginning with an ASCII letter or digit, then of "
                    "these, '-', '_' and '.'"
                )
            return name
        if text.startswith("/") or "://" in text:
            return self._under_a_root(text, field)
        raise CellError(
            f"{field} {text!r} is not registered. Known: {lm_cloud.PREFIX}NAME, {CATALOG}NAME, {HUB}OWNER/NAME, "
            f"and folders under {', '.join(self._cell.model_roots) or 'model_roots, of which this cell has none'}"
        )

    def _under_a_root(self, text: str, field: str) -> str:
        if (location := permitted(text, self._cell.model_roots)) is not None:
            return location
        roots = ", ".join(self._cell.model_roots) or "none: set model_roots in the cell's config"
        raise CellError(f"{field} {text!r} is not below any folder that this cell may read: {roots}")

    def _overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        fields = {OVERRIDES.get(key, key): value for key, value in overrides.items()}
        allowed = set(LLMConfig.model_fields) - NOT_OVERRIDDEN
        if unknown := sorted(set(fields) - allowed):
            raise CellError(f"override {unknown[0]!r} is unknown or not allowed; allowed: {', '.join(sorted(allowed))}")
        return fields


def _lm_cloud(path: str) -> str | None:
    """Bare name of one of Saxml's models; None: the path is not of their form. Raises CellError for an unknown one."""
    name = lm_cloud.bare_name(path)
    if name is not None and name not in lm_cloud.MODELS:
        raise CellError(lm_cloud.unknown(path))
    return name


@cache
def catalog_models() -> dict[str, LLMConfig]:
    """Language models of the catalog, by `catalog.NAME` of the config that serves them."""
    found = {}
    for source in catalog():
        config = load(source)
        if isinstance(config, Service):
            models = [app.config for app in config.applications if isinstance(app.config, LLMConfig)]
            if models:
                found[source.removeprefix("ray_configs.")] = models[0]
    return found
