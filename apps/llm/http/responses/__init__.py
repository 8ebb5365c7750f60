"""OpenAI's Responses API: /v1/responses. `routes` begins; `items` is what a conversation consists of."""
