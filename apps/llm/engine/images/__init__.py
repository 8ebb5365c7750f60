"""Images in prompts: encoded by a tower once, kept on the devices, and read by steps in the place of embeddings."""
