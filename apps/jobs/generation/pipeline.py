"""Lines -> replicas -> answers, as a Ray Data pipeline.

The unit of work is a chunk of some tens of lines: a row of the dataset, alone in its block. So a chunk is one task of a
replica, and Ray Data's own machinery (the pool of actors, their restarts and retries, back-pressure) works on chunks.
Each replica has as many open chunks as its engine has slots. So the batch stays full whatever the answers' lengths:
even if every chunk is down to its last long answer, these alone fill it.

Chunks complete in any order, each when its last line is done: a long answer does not delay other chunks, which can be
saved. The writer of the output restores the order.
"""

import logging
import math
import time
from collections.abc import Generator, Iterator

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask, TaskPoolStrategy
from ray.data.block import BlockMetadata

from apps.jobs.generation.deaths import Deaths
from apps.jobs.generation.parts import Chunk
from apps.jobs.generation.replica import Replica
from apps.jobs.generation.requests import Defaults
from apps.llm.batch_api.input_file import InputFile, Todo
from apps.serving.replica_options import options
from ray_configs.llm import LLMConfig

MOST_CHUNK_LINES = 64
MOST_READ_TASKS = 1000
PROGRESS_PERIOD_S = 1.0

# Ray Data's console says how to turn its progress bars on, and repeats errors that are raised as well.
for _handler in logging.getLogger("ray.data").handlers:
    if isinstance(_handler, logging.StreamHandler):
        _handler.setLevel(logging.CRITICAL)


def chunk_lines(lines: int, replicas: int, open_chunks: int) -> int:
    """Lines per chunk: many, since a chunk costs Ray some milliseconds; few enough that replicas finish together."""
    return max(1, min(MOST_CHUNK_LINES, math.ceil(lines / (2 * replicas * open_chunks))))


class LinesSource(Datasource):
    """The unanswered lines of the input, one chunk per row. Read on the driver's host, where a local file is."""

    def __init__(self, source: InputFile, todo: list[Todo], lines: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._todo, self._lines = source, todo, lines

    @property
    def supports_distributed_reads(self) -> bool:
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None  # because of an estimate Ray Data might split blocks

    def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
        """One task for several spans of the file each, whatever parallelism Ray proposes."""
        each = math.ceil(len(self._todo) / MOST_READ_TASKS)
        return [self._read_task(self._todo[at : at + each]) for at in range(0, len(self._todo), each)]

    @property
    def read_tasks(self) -> int:
        return len(self.get_read_tasks(1))

    def _read_task(self, todo: list[Todo]) -> ReadTask:
        source, lines = self._source, self._lines

        def read() -> Iterator[pa.Table]:
            for span in todo:
                left = span.lines(source)
                for at in range(0, len(left), lines):
                    indices, texts = zip(*left[at : at + lines])
                    numbers = pa.array([indices], pa.list_(pa.int64()))
                    yield pa.table({"indices": numbers, "lines": pa.array([texts], pa.list_(pa.binary()))})

        return ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))


def answers(
    source: InputFile, todo: list[Todo], config: LLMConfig, defaults: Defaults, replicas: int
) -> Generator[Chunk]:
    """Run the pipeline in the Ray cluster that this process is connected to. Close the iterator to stop it.

    Raises:
        ray.exceptions.RayError: a replica cannot load the model, or died too often.
    """
    context = DataContext.get_current().copy()
    context.target_max_block_size = 1  # byte: never two rows in one block
    context.execution_options.preserve_order = False
    context.execution_no_progress_timeout_s = -1  # a slice or a long answer may take long
    context.enable_progress_bars = context.print_on_execution_start = False
    left = sum(len(item.missing) for item in todo)
    # No more than each replica can use: a few lines do not need 32 threads.
    open_chunks = min(config.max_batch_size, math.ceil(left / replicas))
    reading = LinesSource(source, todo, chunk_lines(left, replicas, open_chunks))
    deaths = Deaths.remote(replicas)  # type: ignore[attr-defined]  # an actor class
    with DataContext.current(context):
        answered = ray.data.read_datasource(
            reading,
            override_num_blocks=reading.read_tasks,
            num_cpus=0,  # on GKE the head has no CPUs for tasks
            compute=TaskPoolStrategy(size=min(2, reading.read_tasks)),
        ).map_batches(
            Replica,
            fn_constructor_args=(config, defaults, deaths),
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                size=replicas,
                max_concurrent_calls_per_actor=open_chunks,
                max_tasks_in_flight_per_actor=open_chunks + 2,
                enable_true_multi_threading=True,
            ),
            **options(config)["ray_actor_options"],
        )
        told = 0.0
        for table in answered.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=4):
            for row in table.to_pylist():
                yield Chunk(**row)
            if time.monotonic() - told > PROGRESS_PERIOD_S:
                told = time.monotonic()
                deaths.answered.remote()
