"""The picture model's HTTP API: one module for each dialect (/imagine, OpenAI, AUTOMATIC1111), and the app over all."""
