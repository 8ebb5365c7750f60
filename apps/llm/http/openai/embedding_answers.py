"""The answer of /v1/embeddings."""

from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from pydantic_core import to_json


def embeddings(model: str, vectors: Sequence[np.ndarray], prompt_tokens: int, as_base64: bool) -> bytes:
    """The answer of /v1/embeddings, as JSON. Base64, the official client's default, encodes little-endian float32.

    It can have millions of numbers: the GIL is held for one vector at a time.
    """
    data = []
    for index, vector in enumerate(vectors):
        written = b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector.tolist()
        data.append(to_json({"object": "embedding", "index": index, "embedding": written}))
    counts = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (b",".join(data), to_json(model), to_json(counts))
