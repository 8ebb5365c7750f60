"""A small set of programs, and a process that writes or loads it: python making.py write|load FOLDER"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import ProgramSet, ProgramSpec
from apps.arrays.stored_programs import fingerprint, loading, trial
from apps.arrays.stored_programs.folder import ProgramFolder, ProgramManifest, StoredProgram
from apps.jobs.preparation.programs import _stored

KEY = "a key of the tests, long enough"
PARTS = {"config": "the tests'"}


def scaled(factor: float, x: jax.Array, unused: jax.Array) -> dict[str, jax.Array]:
    return {"scaled": x * factor, "sum": jnp.sum(x)}


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("tensor",))


def specs(factor: float = 3.0) -> list[ProgramSpec]:
    form = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh(), P("tensor")))
    whole = jax.ShapeDtypeStruct((2,), jnp.int32, sharding=NamedSharding(mesh(), P()))
    return [
        ProgramSpec(("scaled",), partial(scaled, factor), (form, whole), donate=(0,)),
        ProgramSpec(("negative", 1), jnp.negative, (form,), out_shardings=form.sharding),
    ]


def here() -> dict[str, str]:
    return PARTS | fingerprint.machine(jax.devices())


def write(location: str, key: str = KEY) -> ProgramManifest:
    """Compile the programs and write them."""
    folder = ProgramFolder(location, key.encode())
    manifest = ProgramManifest(made_for=here(), platform="cpu", slice=None, pages=0)
    programs: list[StoredProgram] = []
    for spec in specs():
        with loading.compiled_anew():
            program, content = _stored(spec.key, fingerprint.program(spec), spec.compiled(), mesh(), 1.0)
        folder.write(manifest, program.file, content)
        programs.append(program)
    manifest = manifest.model_copy(update={"programs": tuple(programs)})
    folder.write_manifest(manifest)
    return manifest


def register(names: Any) -> None:
    """There are no kernels behind these programs."""


def register_and_die(names: Any) -> None:
    os.abort()


def run(location: str) -> dict[str, Any]:
    """Try and load the programs, run them, and say what had to be compiled for that."""
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: events.append(event) if "/compile/" in event else None
    )
    trial.try_sets(location, PARTS, register)
    programs = ProgramSet(specs(), loading.find(location, here(), register))
    programs.compile()
    form, whole = programs.specs["scaled",].arguments
    x = jax.device_put(np.arange(8, dtype=np.float32), form.sharding)
    negative = np.asarray(programs["negative", 1](x)).tolist()
    scaled = programs["scaled",](x, jax.device_put(np.zeros(2, np.int32), whole.sharding))
    return {
        "negative": negative,
        "scaled": np.asarray(scaled["scaled"]).tolist(),
        "sum": float(scaled["sum"]),
        "loaded": programs.loaded,
        "compiled": programs.compiled,
        "events": events,
        "digests": [fingerprint.program(spec) for spec in specs()],
    }


if __name__ == "__main__":
    import logging

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    from tests.arrays.stored_programs import making  # by the name that a child process can import it by

    order, location = sys.argv[1:]
    print(json.dumps(making.write(location).model_dump(mode="json") if order == "write" else making.run(location)))
