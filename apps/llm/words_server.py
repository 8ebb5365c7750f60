"""A Serve replica with the HTTP dialects of a model, wherever its engine is."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from fastapi import FastAPI

from apps.llm.batch_api.files.storage import Storage
from apps.llm.batch_api.records import BatchStore, Limits
from apps.llm.http.app import http_app
from apps.llm.served.metrics import LanguageMetrics
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.api_keys import Principals
from apps.serving.replica import EngineServer
from ray_configs.llm import LLMConfig

if TYPE_CHECKING:
    from apps.llm.text import Engine


class WordsServer(EngineServer):
    """A process with the HTTP dialects of a model. A subclass says where its engine is."""

    METRICS: ClassVar[type[LanguageMetrics]] = LanguageMetrics

    _stored_responses: int
    _batch_store: BatchStore | None
    _tokenizer_info: bool
    _adapter_loading: bool

    @abstractmethod
    def engine(self, config: LLMConfig) -> "Engine":
        """The model in words. Called in a thread."""

    def load(self, config: LLMConfig) -> TextModel:
        self._batch_store = None
        if config.batches is not None:  # first: what is wrong with it is known at once
            self._batch_store = BatchStore(
                Storage(config.batches),
                Limits(
                    config.batch_file_mib * 2**20,
                    config.batch_lines,
                    int(config.batch_key_gib * 2**30),
                    config.batch_key_files,
                    config.batch_key_open,
                    None if config.batch_keep_days is None else config.batch_keep_days * 24 * 3600,
                ),
            )
        engine = self.engine(config)
        self._stored_responses, self._tokenizer_info = config.kept_responses, config.tokenizer_info
        self._adapter_loading = config.adapter_loading
        return TextModel(config.served_name, engine, config.health_step_deadline_s, self.METRICS)

    def http_app(self, model: TextModel, keys: Principals) -> FastAPI:
        return http_app(
            model, keys, self._stored_responses, self._batch_store, self._tokenizer_info, self._adapter_loading
        )
