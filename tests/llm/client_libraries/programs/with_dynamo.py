"""Dynamo's SelectionService over one engine's events, beside a worker without any: ENDPOINT REPLAY BLOCK PROMPTS."""

import asyncio
import json
import sys
import time

from dynamo.llm import SelectionService

endpoint, replay, block_size, prompts = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
NAMED = {"model_name": "m", "tenant_id": "t"}


async def main() -> None:
    service = SelectionService()
    for worker, events in ((1, {0: endpoint}), (2, {0: "tcp://127.0.0.1:1"})):
        await service.upsert_worker(
            NAMED
            | {
                "worker_id": worker,
                "endpoint": f"ray://{worker}",
                "block_size": block_size,
                "max_num_batched_tokens": 2048,
                "data_parallel_start_rank": 0,
                "data_parallel_size": 1,
                "kv_events_endpoints": events,
                "replay_endpoint": replay if worker == 1 else None,
            }
        )
    print("listening", flush=True)
    sys.stdin.readline()  # the engine has answered the prompts
    deadline, found = time.monotonic() + 60, []
    while time.monotonic() < deadline:
        scores = [await service.overlap_scores(NAMED | {"token_ids": prompt}) for prompt in prompts]
        found = [[worker["device_blocks"] for worker in score["workers"]] for score in scores]
        if all(blocks[0] for blocks in found):
            break
        await asyncio.sleep(0.1)
    chosen = [(await service.select(NAMED | {"token_ids": prompt}))["worker_id"] for prompt in prompts]
    print(json.dumps({"blocks": found, "chosen": chosen}), flush=True)
    service.shutdown()


asyncio.run(main())
