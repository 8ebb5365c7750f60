"""vLLM as a token engine: `vllm serve`, a child process, spoken to by its HTTP alone.

    config -> arguments -> Child (guarded: it ends when this process does)
    TokenRequest -> POST /v1/completions with token ids -> TokenOutputs
    /metrics -> EngineStats      /health -> check      its KV events -> CacheNews

Nothing here knows vLLM's insides, so any version of it will do that has `return_token_ids`. 0.32 was run; of 0.29,
vllm-torchtpu's, the source was read.
"""
