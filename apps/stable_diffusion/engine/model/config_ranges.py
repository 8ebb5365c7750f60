"""The numbers of a pipeline's configs: the range of each field.

Upper bounds are some ten times those of the largest models published.
"""

from apps.serving.numbers.ranges import Range, real

WIDTH, WIDTHS, LAYERS = Range(1, 2**16), Range(1, 2**15, many=True), Range(1, 100, many=True)
HEADS, EPS = Range(1, 2**13, many=True), real(0, 1)
TEXT_ENCODER = {
    "vocab_size": Range(1, 2**24),
    "hidden_size": WIDTH,
    "intermediate_size": Range(1, 2**20),
    "num_hidden_layers": Range(1, 1000),
    "num_attention_heads": Range(1, 2**13),
    "max_position_embeddings": Range(1, 2**16),
    "layer_norm_eps": EPS,
    "projection_dim": WIDTH,
    "eos_token_id": Range(0, 2**24),
}
FIELDS = {
    "text_encoder": TEXT_ENCODER,
    "text_encoder_2": TEXT_ENCODER,
    "unet": {
        "block_out_channels": WIDTHS,
        "layers_per_block": LAYERS,
        "attention_head_dim": HEADS,
        "num_attention_heads": HEADS,
        "cross_attention_dim": Range(1, 2**16, many=True),
        "norm_num_groups": Range(1, 2**12),
        "norm_eps": EPS,
        "sample_size": Range(1, 2**14),
        "freq_shift": real(-100, 100),
        "addition_time_embed_dim": WIDTH,
        "projection_class_embeddings_input_dim": Range(1, 2**20),
    },
    "transformer": {
        "dim": WIDTH,
        "n_layers": Range(1, 1000),
        "n_refiner_layers": Range(0, 100),
        "n_heads": Range(1, 2**13),
        "n_kv_heads": Range(1, 2**13),
        "in_channels": Range(1, 2**10),
        "cap_feat_dim": WIDTH,
        "axes_dims": Range(2, 2**10, many=True),
        "axes_lens": Range(1, 2**20, many=True),
        "rope_theta": real(1, 1e9),
        "t_scale": real(1e-6, 1e6),
        "num_layers": Range(0, 1000),
        "num_single_layers": Range(0, 1000),
        "num_attention_heads": Range(1, 2**13),
        "attention_head_dim": Range(1, 2**13),
        "joint_attention_dim": Range(1, 2**17),
        "timestep_guidance_channels": Range(2, 2**13),
        "mlp_ratio": real(1e-3, 100),
        "axes_dims_rope": Range(2, 2**10, many=True),
        "eps": EPS,
        "norm_eps": EPS,
    },
    "vae": {
        "latent_channels": Range(1, 2**10),
        "shift_factor": real(-1e6, 1e6),
        "block_out_channels": WIDTHS,
        "decoder_block_out_channels": WIDTHS,
        "batch_norm_eps": EPS,
        "layers_per_block": LAYERS,
        "norm_num_groups": Range(1, 2**12),
        "sample_size": Range(1, 2**14),
        "scaling_factor": real(1e-6, 1e6),
    },
}
"""By component."""
BETA = real(1e-12, 0.9999, "the share of the picture that a step replaces with noise")
SCHEDULER = {
    "num_train_timesteps": Range(1, 10**6),
    "beta_start": BETA,
    "beta_end": BETA,
    "trained_betas": real(0, 0.9999, many=True),
    "steps_offset": Range(0, 10**6),
    "sigma_min": real(0, 1e9),
    "sigma_max": real(0, 1e9),
    "original_inference_steps": Range(1, 10**6),
    "timestep_scaling": real(1e-6, 1e9),
    "solver_order": Range(1, 10),
    "shift": real(1e-6, 1e6),
    "base_shift": real(-1e3, 1e3),
    "max_shift": real(-1e3, 1e3),
    "base_image_seq_len": Range(1, 2**24),
    "max_image_seq_len": Range(1, 2**24),
    "shift_terminal": real(0, 1),
}
