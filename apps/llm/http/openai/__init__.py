"""OpenAI's completions, chat completions and embeddings, with what vLLM adds to them."""
