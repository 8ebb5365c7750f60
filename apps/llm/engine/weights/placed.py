"""A model's weights on a mesh, from wherever the model has them."""

import jax.numpy as jnp
from jax.sharding import Mesh

from apps.llm.engine.model import params
from apps.llm.engine.model.param import Params
from apps.llm.engine.weights import prepared_shards
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared


def placed(model: Model, declared: Params, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Params:
    """The weights that are declared, as `params.load` returns them; drawn if the model is to have random ones."""
    if model.checkpoint is None or model.random_weights:
        return params.random(declared, mesh, dtype, int8)
    if isinstance(model.checkpoint, Prepared):
        return prepared_shards.load(declared, model.checkpoint, mesh, dtype, int8)
    return params.load(declared, model.checkpoint, mesh, dtype, int8)
