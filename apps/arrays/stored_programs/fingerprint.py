"""What a compiled program hangs on: the machine and the versions in words, the program itself as a digest.

A program is known without tracing it: by its function and all that the function is given, and by the source code of
the packages that such functions are in. Two equal digests are equal programs; unequal ones may be.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import apps
from apps.arrays.programs import ProgramSpec

SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
"""JAX's settings that change what is traced or compiled."""
OPTIONS = "XLA_FLAGS", "LIBTPU_INIT_ARGS"
"""The compilers' own, in the environment."""
COUNT = "--xla_force_host_platform_device_count="
"""An option that says nothing beyond the devices themselves."""
SHORT = 12


def machine(devices: Sequence[jax.Device]) -> dict[str, str]:
    """What all programs for these devices hang on, by name, in words where there are any.

    Args:
        devices: all of the slice, or this host's alone. They need not exist.
    """
    device = devices[0]
    on_tpu = device.platform == "tpu"
    settings = {name: value for name in SETTINGS if (value := jax.config.values[name]) is not None}
    options = {name: " ".join(_flags(name)) for name in OPTIONS if _flags(name)}
    order = digest([_device(each) for each in devices])
    hosts = len({each.process_index for each in devices})
    return {
        **versions(),
        "compiler": " ".join(device.client.platform_version.split()) if on_tpu else f"XLA for {_processor()}",
        "settings": json.dumps(settings | options, sort_keys=True),
        "devices": f"{len(devices)} x {device.device_kind} on {hosts} host(s), in order {order[:SHORT]}",
    }


def versions() -> dict[str, str]:
    return {"jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib")}


def _flags(name: str) -> list[str]:
    return [flag for flag in os.environ.get(name, "").split() if not flag.startswith(COUNT)]


@functools.cache
def _processor() -> str:
    """A CPU's model and a digest of its instructions: code for one may end a process on another."""
    found = dict[str, str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags") or found.get("Features") or ""
    return f"{found.get('model name', os.uname().machine)}, {digest(sorted(flags.split()))[:SHORT]}"


@functools.cache
def sources(*packages: str) -> str:
    """Digest of the source code of these packages of `apps`, such as "arrays" and "llm/engine"."""
    root, found = Path(apps.__path__[0]), hashlib.sha256()
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def program(spec: ProgramSpec) -> str:
    """Digest of a program: of its function, its arguments' forms and where they are, and the compiler's options."""
    parts = spec.key, spec.function, spec.arguments, spec.donate, spec.out_shardings, dict(spec.options)
    return digest(parts)


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(described(value)).encode()).hexdigest()


def described(value: Any) -> Any:
    """A value that a program is made of, as JSON: equal for equal values in every process.

    Raises:
        TypeError: it is of a type that is not known to be equal wherever its description is, an array for one.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    for kinds, describe in DESCRIBED:
        if isinstance(value, kinds):
            return describe(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(type(value)), {field.name: described(getattr(value, field.name)) for field in fields(value)}]
    if type(value).__module__.partition(".")[0] == "apps":
        return [_name(type(value)), {name: described(own) for name, own in sorted(_own(value).items())}]
    if hasattr(value, "__qualname__"):  # a class, or a function in whatever wraps it
        return _name(value)
    raise TypeError(f"a program hangs on a {_name(type(value))}, which cannot be told from others: {value!r:.80}")


def _function(function: types.FunctionType) -> Any:
    """Its code is among the sources; what it closes over is not."""
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    return [_name(function), described(closed)] if closed else _name(function)


def _own(value: Any) -> dict[str, Any]:
    """What an object was given, without what it has computed of that since."""
    computed = {
        name
        for kind in type(value).__mro__
        for name, own in vars(kind).items()
        if isinstance(own, functools.cached_property)
    }
    return {name: own for name, own in vars(value).items() if name not in computed}


def _form(form: jax.ShapeDtypeStruct) -> Any:
    return ["array", list(form.shape), str(form.dtype), described(form.sharding)]


def _tree(value: tuple[Any, ...] | list[Any]) -> Any:
    name = _name(type(value)) if hasattr(value, "_fields") else type(value).__name__
    return [name, *map(described, value)]


def _mapping(value: Mapping[Any, Any]) -> Any:
    return ["dict", sorted(([described(key), described(own)] for key, own in value.items()), key=json.dumps)]


def _partial(value: functools.partial[Any]) -> Any:
    return ["partial", described(value.func), described(value.args), described(value.keywords)]


@functools.lru_cache(maxsize=64)
def _mesh(mesh: Mesh) -> Any:
    """As a digest: hundreds of arrays name one mesh."""
    devices = [_device(device) for device in mesh.devices.flat]
    return ["mesh", list(mesh.axis_names), list(mesh.devices.shape), digest(devices)]


def _device(device: jax.Device) -> list[Any]:
    where = [list(getattr(device, "coords", ())), getattr(device, "core_on_chip", 0)]
    return [device.id, device.process_index, device.device_kind, where]


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _sorted(values: Iterable[Any]) -> Any:
    return ["set", *sorted(map(described, values), key=json.dumps)]


DESCRIBED: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, str),
    (bytes, bytes.hex),
    (np.dtype, str),
    (np.generic, lambda value: [str(value.dtype), value.item()]),
    (Mesh, _mesh),
    (AbstractMesh, str),
    (NamedSharding, lambda value: ["on", _mesh(value.mesh), described(value.spec), value.memory_kind]),
    (PartitionSpec, lambda value: ["split", *map(described, value)]),
    (jax.ShapeDtypeStruct, _form),
    (tuple | list, _tree),
    (set | frozenset, _sorted),
    (Mapping, _mapping),
    (functools.partial, _partial),
    (types.FunctionType, _function),
    (types.MethodType, lambda value: ["method", _name(value.__func__), described(value.__self__)]),
    (jnp.ufunc, lambda value: f"jax.numpy.{value.__name__}"),
)
"""How values of other libraries' types are described."""
