"""Native kernels for CPUs, compiled by Numba for the machine and called by XLA: attention, and matrix products."""

import hashlib
import os
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def _of_this_source(folder: Path) -> Path:
    """A folder of compiled kernels for each state of this package.

    Numba looks only at the file of the function that it is asked for, not at those of the functions that it calls.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    own = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return folder if folder.name == own else folder / own


if folder := os.environ.get(VARIABLE):  # Numba's decorators read it when the modules here are imported
    os.environ[VARIABLE] = str(_of_this_source(Path(folder)))
