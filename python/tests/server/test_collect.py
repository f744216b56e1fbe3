"""Groups awaited by name: each call gets its own, whatever becomes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from conftest import restart_service, submissions

from manyworlds_rl import AsyncClient, AsyncCollector, Collector, ManyworldsError, Run


def test_each_gets_its_own_in_order(make_run: Callable[..., Run]) -> None:
    run = make_run(quarantine_after=None)
    with Collector(run) as collector:
        mixed = submissions(3, prefix="a") + submissions(1, "/t/broken", "b") + submissions(2, "/t/half", "c")
        ends = collector.collect(mixed)
        assert [end.group_id for end in ends] == [submission["group_id"] for submission in mixed]
        assert [end.outcome for end in ends] == ["complete", "complete", "complete", "failed", "partial", "partial"]
        assert ends[3].group is None
        partial = ends[4].group
        assert partial is not None
        assert partial.rewards() == [None, 1.0, None, 1.0][: partial.expected]
        collector.consumed([end.group_id for end in ends], step=1)
    assert run.status().groups["consumed"] == 5


def test_many_threads_and_few_credits(make_run: Callable[..., Run]) -> None:
    run = make_run(credits={"groups": 4, "bytes": 1 << 30})
    found: dict[int, list[str]] = {}
    with Collector(run) as collector:

        def work(number: int) -> None:
            for part in range(3):
                ends = collector.collect(submissions(3, prefix=f"t{number}.{part}."))
                found.setdefault(number, []).extend(end.group_id for end in ends if end.group is not None)
                collector.consumed([end.group_id for end in ends])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {number: len(names) for number, names in found.items()} == {0: 9, 1: 9, 2: 9, 3: 9}
    assert run.status().groups["consumed"] == 36


def test_more_at_once_than_there_are_credits_is_an_error(make_run: Callable[..., Run]) -> None:
    run = make_run(credits={"groups": 64, "bytes": 1 << 30})
    with Collector(run) as collector:
        with pytest.raises(ManyworldsError, match="credits for 64"):
            collector.collect(submissions(65))
        assert all(end.group is not None for end in collector.collect(submissions(64)))


def test_asyncio_tasks(make_run: Callable[..., Run]) -> None:
    run = make_run()

    async def main() -> int:
        async with AsyncClient() as client, AsyncCollector(await client.run(run.name)) as collector:

            async def row(number: int) -> int:
                (end,) = await collector.collect(submissions(1, prefix=f"r{number}."))
                await collector.consumed([end.group_id])
                return 0 if end.group is None else 1

            return sum(await asyncio.gather(*(row(number) for number in range(40))))

    assert asyncio.run(main()) == 40
    assert run.status().groups["consumed"] == 40


def test_the_service_may_go_away_for_a_while(make_run: Callable[..., Run]) -> None:
    run = make_run()
    with Collector(run) as collector:
        restarting = threading.Timer(0.05, restart_service)
        restarting.start()
        ends = collector.collect(submissions(6, task="/t/slow"))
        restarting.join()
        assert all(end.group is not None for end in ends)


def test_waiting_for_what_a_dead_run_owes_is_an_error(make_run: Callable[..., Run]) -> None:
    run = make_run()
    run.finish()
    with Collector(run) as collector, pytest.raises(ManyworldsError):
        collector.collect(submissions(1))
