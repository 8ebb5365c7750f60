"""OpenAI's Files and Batch APIs of a language model: where files are kept, and how many."""

from pydantic import Field

from ray_configs.base import Config


class BatchesConfig(Config):
    """The part of a language model's config that is about batches."""

    batches: str | None = Field(None, min_length=1)
    """Folder or bucket (`gs://bucket/batches`) for OpenAI's Files and Batch APIs, `/v1/files` and `/v1/batches`. All
    replicas must see the same one. None: both answer 404; but `podslice serve` on one machine keeps them in
    `~/.cache/podslice/batches`, unless it is `off`. Batches run in slots that other requests leave free; with
    `min_replicas` 0, only while other requests keep a replica alive."""
    batch_file_mib: int = Field(200, ge=1)
    """Largest file that may be uploaded for a batch, in MiB."""
    batch_lines: int = Field(50_000, ge=1)
    """Most requests in a batch's file."""
    batch_key_gib: float = Field(100, gt=0)
    """Most that the files of one API key may have in all, in GiB, outputs of batches included; what is uploaded counts
    while it arrives. One more is refused with 429 `insufficient_quota` until files are deleted."""
    batch_key_files: int = Field(10_000, ge=1)
    """Most files that one API key may keep."""
    batch_key_open: int = Field(200, ge=1)
    """Most batches of one API key that have not ended."""
    batch_keep_days: float | None = Field(None, gt=0)
    """Days after which files, and batches that have ended, are deleted. None: kept until a client deletes them."""
