"""Devices of PyTorch: a CPU, a GPU, or a chip of a TPU slice through torch_xla."""

import os

import torch


def opened(kind: str | None, precise: bool) -> tuple[torch.device, str]:
    """A device, and its human-readable name.

    Args:
        kind: cpu, cuda, cuda:1, or xla (one chip of a slice); None: a GPU if there is one.
        precise: multiply float32 in float32, also where the device does not by default.

    Raises:
        ValueError: xla without torch_xla, or without a device for it.
    """
    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind.startswith("xla"):
        return _xla_device(precise)
    device = torch.device(kind)
    return device, torch.cuda.get_device_name(device) if kind.startswith("cuda") else kind


def sync() -> None:
    """Run what torch_xla has recorded so far as one program."""
    import torch_xla

    torch_xla.sync()


def _xla_device(precise: bool) -> tuple[torch.device, str]:
    """torch_xla's device, and its human-readable name.

    Args:
        precise: multiply float32 in float32, which a TPU does in bfloat16 by default.

    Raises:
        ValueError: torch_xla cannot be imported, or finds no device.
    """
    try:
        import torch_xla
        import torch_xla.backends
        import torch_xla.runtime
    except ImportError as error:
        raise ValueError(
            f"backend torch_xla: torch_xla cannot be imported ({error}). It needs PyTorch 2.9, and so its own "
            "virtual environment: pip install -e '.[torch-xla]' there, as `make test-torch-xla` does"
        ) from error
    try:
        device, kind = torch_xla.device(), torch_xla.runtime.device_type()
    except (RuntimeError, OSError, ImportError) as error:  # OSError: no libtpu; ImportError: another device's plugin
        asked, first_line = os.environ.get("PJRT_DEVICE", ""), str(error).partition("\n")[0]
        raise ValueError(
            f"backend torch_xla: PJRT finds no device (PJRT_DEVICE={asked}): {first_line}. On a "
            "TPU, install 'torch_xla[tpu]==2.9.*' beside the extra torch-xla and set PJRT_DEVICE=TPU; PJRT_DEVICE=CPU "
            "runs on the CPU, as `make test-torch-xla` does"
        ) from error
    if precise and torch_xla.backends.get_mat_mul_precision() != "highest":
        torch_xla.backends.set_mat_mul_precision("highest")
    return device, "cpu" if kind == "CPU" else kind
