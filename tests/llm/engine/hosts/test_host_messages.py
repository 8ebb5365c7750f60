"""What the engine tells the hosts of a slice arrives at each as the same call."""

from types import SimpleNamespace

import numpy as np

from apps.llm.engine.adapters import stack
from apps.llm.engine.hosts.lockstep import LockstepExecutor
from apps.llm.engine.hosts.wire import HEADER, NUMBERS, MessageKind
from apps.llm.engine.hosts.worker import Worker
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.prefix.transfer import Transfer
from tests.llm.engine import tiny_models


def test_pages_are_cleaned_and_copied_and_adapters_cleared_on_every_host() -> None:
    arch = from_hf_config(tiny_models.make("llama3").config.to_dict())
    drawn = stack.drawn(arch, arch.split(1), np.dtype("float32"), 4, seed=1)
    forms = [
        {name: type(low)(*(np.zeros((part.shape[0], 2, *part.shape[1:]), np.float32) for part in low))
         for name, low in layer.items()}
        for layer in drawn
    ]  # fmt: skip
    told: list[bytes] = []
    engine_side = LockstepExecutor.__new__(LockstepExecutor)
    engine_side.hosts = SimpleNamespace(tell=told.append)
    engine_side.clean([3, 70_000])
    engine_side.write_adapter(2, 1, drawn[1])
    engine_side.write_adapter(2, 1, None)
    engine_side.keep(Transfer([3, 4], [70_000, 5]))
    engine_side.bring_back(Transfer([6], [7]))

    calls = []
    worker = Worker.__new__(Worker)
    worker._executor = SimpleNamespace(
        clean=lambda pages: calls.append(pages),
        write_adapter=lambda place, layer, values: calls.append((place, layer, values)),
        keep=lambda transfer: calls.append(("keep", transfer)),
        bring_back=lambda transfer: calls.append(("bring back", transfer)),
        adapter_forms=forms,
    )
    for message in told:
        kind, size = HEADER.unpack_from(message)
        content = message[HEADER.size :]
        assert len(content) == size
        worker._run_call(MessageKind(kind), NUMBERS.unpack_from(content), content[NUMBERS.size :])
    pages, (index, layer, written), (cleared_index, cleared_layer, cleared), *copied = calls
    assert copied == [("keep", Transfer([3, 4], [70_000, 5])), ("bring back", Transfer([6], [7]))]
    assert pages == [3, 70_000]
    assert (index, layer) == (cleared_index, cleared_layer) == (2, 1)
    for name, low in drawn[1].items():
        assert all(map(np.array_equal, written[name], low))
        assert not any(part.any() for part in cleared[name])
