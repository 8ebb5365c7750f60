"""Where a model's weights come from: a checkpoint in Hugging Face layout, quantized or not, or a prepared one."""
