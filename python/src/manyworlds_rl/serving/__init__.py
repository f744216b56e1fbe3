"""
A model endpoint for trainers that have no inference server: the transformers model that is being trained, behind SGLang's `/generate`.

    with ModelServer(model, eos_ids=[tokenizer.eos_token_id]) as server:
        run.set_policy(0, model=server.model_name, endpoints=[server.endpoint])

Token ids in, token ids out, with the logprob of each under the distribution that it was drawn from and the version of the weights. For small models and tests: one batch at a
time, without paging. Needs torch and transformers.
"""

from .batch import Ask, Generator, Piece
from .server import ModelServer

__all__ = ["Ask", "Generator", "ModelServer", "Piece"]
