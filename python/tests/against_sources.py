"""
The adaptors of trainers that no package index has, against their own source: `against_sources.py slime CHECKOUT`, `against_sources.py miles CHECKOUT`.

Needs torch and whatever the trainer's modules import. What this found is written in docs/trainers/README.md; the tests beside it hold the same facts as plain fields.
"""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from groups import group_of

SEGMENTS = [(1, 1), (3, 1), (1, 0), (0, 0)]
SIZE = 2


def batch(module: Any) -> list[Any]:
    """Four groups of two, flat as the trainer has them: with several segments, with one member missing, with none."""
    nested = [module.samples_of(group_of(segments, [1.0, 0.0]), SIZE, index, index * SIZE) for index, segments in enumerate(SEGMENTS)]
    return [sample for group in nested for sample in group]


def check(data: Any, rewards: list[float]) -> None:
    lengths = data["response_lengths"]
    assert [len(mask) for mask in data["loss_masks"]] == lengths == [len(logprobs) for logprobs in data["rollout_log_probs"]]
    assert len(set(data["rollout_ids"])) == SIZE * len(SEGMENTS)
    assert data["rewards"] == rewards, data["rewards"]
    # Group 1, rollout 2 has three segments of three trained tokens each: its denominator is all of them.
    assert [total for name, total in zip(data["rollout_ids"], data["rollout_mask_sums"]) if name == 2] == [9, 9, 9]
    assert [sum(mask) for name, mask in zip(data["rollout_ids"], data["loss_masks"]) if name in (5, 6, 7)] == [0, 0, 0]


def slime() -> None:
    import slime.ray.rollout as trainer
    from slime.rollout.base_types import RolloutFnTrainOutput, call_rollout_fn
    from slime.utils.types import Sample

    from manyworlds_rl import slime as ours

    samples = batch(ours)
    assert all(isinstance(sample, Sample) for sample in samples)
    for sample in samples:
        assert Sample.from_dict(sample.to_dict()) == sample
        sample._validate_response_metadata_lengths()
    args = SimpleNamespace(
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False, n_samples_per_prompt=SIZE, rollout_batch_size=4, rollout_top_p=1.0, reward_key=None
    )
    manager = SimpleNamespace(args=args, custom_reward_post_process_func=ours.post_process_rewards, custom_convert_samples_to_train_data_func=None)
    plain = trainer.RolloutManager.__ray_metadata__.modified_class if hasattr(trainer.RolloutManager, "__ray_metadata__") else trainer.RolloutManager
    manager._post_process_rewards = lambda rows: plain._post_process_rewards(manager, rows)
    check(plain._convert_samples_to_train_data(manager, samples), [0.5, -0.5, 0.5, 0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0])
    output = call_rollout_fn(lambda args, rollout_id, source, evaluation: RolloutFnTrainOutput(samples=[samples]), args, 0, None, evaluation=False)
    trainer.validate_rollout_id_annotated(output.samples)


def miles() -> None:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.rollout.fully_async_data_buffer import DataBuffer, DataBufferConstructorInput, DataBufferInput, group_oldest_weight_version
    from miles.utils.types import Sample

    from manyworlds_rl import miles as ours

    samples = batch(ours)
    assert all(isinstance(sample, Sample) for sample in samples)
    for sample in samples:
        sample.validate()
    assert group_oldest_weight_version(samples) == 3
    args = SimpleNamespace(
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=False,
        n_samples_per_prompt=SIZE,
        rollout_batch_size=4,
        reward_key=None,
        use_dynamic_global_batch_size=False,
    )
    for hook in (ours.post_process_rewards, None):
        # miles' own normalisation agrees: a stand-in has the mean of its group.
        check(convert_samples_to_train_data(args, samples, {}, None, hook), [0.5, -0.5, 0.5, 0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0])
    assert {name for name in vars(DataBuffer) if not name.startswith("_")} == {"put", "get", "get_metrics"}
    assert all(hasattr(ours.ManyworldsBuffer, name) for name in ("put", "get", "get_metrics"))

    async def buffered() -> None:
        args.manyworlds = {"run": "r"}
        buffer = ours.ManyworldsBuffer(DataBufferConstructorInput(args=args, unused_handler_fn=lambda prompts: None))
        prompts = [Sample(group_index=9, index=40), Sample(group_index=9, index=41)]
        await buffer._limit.acquire()
        buffer._ready.put_nowait((prompts, SimpleNamespace(group=group_of([3, 0]))))
        entry = await buffer.get(current_version=None)
        assert isinstance(entry, DataBufferInput)
        assert [len(rollout) for rollout in entry.group] == [3, 1]
        assert [sample.index for rollout in entry.group for sample in rollout] == [40, 40, 40, 41]
        assert [sample.group_index for rollout in entry.group for sample in rollout] == [9] * 4

    asyncio.run(buffered())


class Anything(ModuleType):
    """What is imported beside the modules that are looked at, and never called: engines and GPU kernels."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder:
    names = ("sglang", "sglang_router", "megatron", "wandb", "sgl_kernel", "nvtx", "ring_flash_attn", "mbridge")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


if __name__ == "__main__":
    trainer, checkout = sys.argv[1:]
    sys.path.insert(0, checkout)
    sys.meta_path.append(Finder())  # type: ignore[arg-type]
    {"slime": slime, "miles": miles}[trainer]()
    print(f"{trainer}: as its own source has it")
