"""Prints the worst error of logits under a LoRA adapter against PEFT's merged model, over several devices.

Run by test_adapter_logits.py as a process of its own:
    python -m tests.llm.engine.adapters.sharded_adapter FAMILY DEVICES FOLDER
"""

import sys
from pathlib import Path

from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making
from tests.llm.engine.adapters.test_adapter_logits import adapted, targets
from tests.llm.engine.model.test_models import worst_error


def main(family: str, devices: int, folder: Path) -> None:
    model = tiny_models.make(family)
    base = tiny_models.save(model, folder / "base")
    peft = making.save_adapter(model, folder / "adapter", r=4, lora_alpha=8, target_modules=targets(family))
    stepper = adapted(base, folder / "adapter", str(folder / "cache"), tensor_parallel=devices)
    assert stepper.executor.mesh.size == devices
    print(worst_error(stepper, making.merged(peft)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
