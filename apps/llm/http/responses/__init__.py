"""OpenAI's Responses API: /v1/responses. Start with `routes`; `items` has the elements of a conversation."""
