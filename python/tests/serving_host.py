"""A tiny model behind the serving endpoint, for a test in another process: it answers lines of JSON on standard input, and serves until that ends."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

import tiny_policy
import torch

from manyworlds_rl.serving import ModelServer


def main(directory: str) -> None:
    tokenizer = tiny_policy.tokenizer_of(tiny_policy.FENCED, tiny_policy.WORDS)
    tokenizer.save_pretrained(directory)
    model = tiny_policy.model_of(tokenizer, spread=0.2, context=2048)
    # The weights of each version, to ask them again later.
    versions = {0: {name: tensor.clone() for name, tensor in model.state_dict().items()}}
    with ModelServer(model, eos_ids=[tokenizer.eos_token_id], model_name="tiny") as server:
        print(json.dumps({"url": server.url, "eos": tokenizer.eos_token_id}), flush=True)
        updating = threading.Thread()

        def update(version: int) -> None:
            with server.updating(version) as weights, torch.no_grad():
                for tensor in weights.parameters():
                    tensor.mul_(1.1).add_(0.01)
            versions[version] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        for line in sys.stdin:
            ask = json.loads(line)
            if ask["do"] == "update amid":
                updating = threading.Thread(target=update, args=[ask["version"]])
                amid(server, model, ask["passes"], updating.start)
                print("{}", flush=True)
            elif ask["do"] == "updated":
                updating.join()
                print("{}", flush=True)
            else:
                print(json.dumps(score(model, versions[ask["version"]], ask["prompt"], ask["completion"], ask.get("temperature", 1.0))), flush=True)


def amid(server: ModelServer, model: torch.nn.Module, passes: int, begin: Callable[[], None]) -> None:
    """Begins an update in so many passes' time: in the middle of what is then being generated, however fast that goes."""
    left = passes

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            hook.remove()
            begin()
            while not server.generator._updating:
                time.sleep(0.001)

    hook = model.register_forward_pre_hook(count)


def score(model: torch.nn.Module, weights: dict[str, torch.Tensor], prompt: list[int], completion: list[int], temperature: float) -> list[float]:
    """Logprobs of a completion by one pass over the whole, without a cache, under other weights."""
    with torch.no_grad():
        logits = torch.func.functional_call(model, weights, (torch.tensor([prompt + completion]),)).logits[0]
    logs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return [float(logs[len(prompt) - 1 + at, token]) for at, token in enumerate(completion)]


main(sys.argv[1])
