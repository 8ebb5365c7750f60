"""A model's whole life in a cell: python examples/cell_session.py [URL], with `serve run apps.cell:app` running.

Publishes the demo model, waits until it is loaded, queries it, and unpublishes it.
"""

import sys
import time

import httpx

cell = httpx.Client(base_url=(sys.argv[1:] or ["http://localhost:8000"])[0], timeout=60)


def call(method: str, path: str, **body: object) -> dict:
    """What the cell answers; ends the script with its reason if it refuses."""
    answer = cell.request(method, path, json=body)
    if answer.is_error:
        sys.exit(f"{path}: {answer.text}")
    return answer.json()


name = f"{call('GET', '/cell')['sax_cell']}/example"
small = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 64}  # few programs to compile
call("POST", "/publish", model=name, model_path="catalog.local", replicas=1, overrides=small)
told = ""
while (entry := call("GET", "/listcell", model=name))["active_replicas"] == 0:
    if (now := ": ".join(filter(None, (f"{name} is {entry['state']}", entry["reason"])))) != told:
        print(now, flush=True)
        told = now
    time.sleep(2)
answer = call(
    "POST",
    "/v1/chat/completions",
    model=name,
    messages=[{"role": "user", "content": "How many days are in a week?"}],
    temperature=0,
)
print(answer["choices"][0]["message"]["content"])
call("POST", "/unpublish", model=name)
