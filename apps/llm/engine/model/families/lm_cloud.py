"""Saxml's LmCloud test models, under the names that Saxml publishes them by. They have sizes but no weights.

The sizes are in ray_configs/applications/lm_cloud.py. The block is paxml's TransformerLmSpmdAdafactor
(paxml/tasks/lm/model_params.py) with the defaults of praxis' layers:
- LayerNorm (normalizations.py): scale kept as its distance from one, bias, epsilon 1e-6, one more before the logits.
- Attention (attentions.py): q, k and v without bias, no rotary embedding, scores over sqrt(head_dim), then capped at
  50 by tanh. praxis' learned scale of each query channel starts at one. It is left out, because scaling the rows of
  q's matrix has the same effect.
- Feed-forward (transformers.py): one matrix in, one out, both with bias; GELU by its tanh approximation.
- Embeddings (embedding_softmax.py): times sqrt(hidden_size), sinusoids added; the same table gives the logits, with
  bias and capped at 30.
Ids 0 and 1 begin and end a text (saxml's template.py).
"""

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import Activation, Attention, LayerSpec, Mlp, Norm
from apps.llm.engine.model.rope import UnsupportedModel
from ray_configs.applications.lm_cloud import MODELS, bare_name, unknown


def find(name: str) -> Architecture | None:
    """The model registered as `lm_cloud.NAME` or by its full Saxml path; None if the name has neither form.

    Raises:
        UnsupportedModel: the name has such a form, but there is no such model.
    """
    bare = bare_name(name)
    if bare is None:
        return None
    size = MODELS.get(bare)
    if size is None:
        raise UnsupportedModel(unknown(name))
    head_dim = size.hidden // size.heads
    norm = Norm(1e-6, kind="layer", plus_one=True)
    attention = Attention(size.heads, size.heads, head_dim, scale=head_dim**-0.5, softcap=50.0)
    mlp = Mlp(4 * size.hidden, Activation("gelu_tanh"), gated=False, bias=True)
    return Architecture(
        family="lm_cloud",
        vocab_size=32000,
        hidden_size=size.hidden,
        intermediate_size=mlp.width,
        layers=(LayerSpec(attention, mlp, norm),) * size.layers,
        # Sinusoids have no last position, and Saxml runs 128 tokens in and 128 out. Up to this length a batch's KV
        # cache stays small beside the weights (2048 tokens of the large model are 9.7 GB in bfloat16).
        max_position=2048,
        norm=norm,
        tied_embeddings=True,
        sinusoids=True,
        scaled_embeddings=True,
        head_bias=True,
        final_softcap=30.0,
        eos_token_ids=(1,),
    )
