"""Two engines share one draft: greedy output is that without speculation, and both speculate."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from vllm import SamplingParams

from specray.draft.service import DraftService
from specray.router.relay import Relay
from specray.wire.server import serve_draft
from tests.target.engine import PATIENCE_S, ROUTER, Engine, Job, specray_engine
from tests.target.identity import Tally, assert_same, capped, prompts
from tests.target.sources import KINDS, Sources, followers, served
from tests.target.tiny_model import TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOST = "127.0.0.1"
SMALL = {"max_num_seqs": 4, "num_gpu_blocks_override": 48}
GREEDY = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)


@contextmanager
def relayed(draft: DraftService, targets: list[Engine]) -> Iterator[None]:
    """A router between the draft and the targets."""
    server, relay = serve_draft(draft, HOST), Relay(ROUTER, stall_timeout_s=PATIENCE_S)
    relay.start()
    try:
        addresses = tuple(sorted(target.address for target in targets))
        relay.update_replicas(addresses, [server.address])
        deadline = time.monotonic() + PATIENCE_S
        while (stats := asyncio.run(relay.snapshot())).connected_targets != addresses or (
            stats.connected_drafts != (server.address,)
        ):
            assert time.monotonic() < deadline, stats
            time.sleep(0.01)
        yield
    finally:
        relay.stop()
        server.stop(0)


def test_two_targets_share_a_draft(tiny_folder: Path, tiny: TinyModel, sources: Sources) -> None:
    """At the same time, and each has requests of its own, whose sessions it numbers as the other.

    Proposals for the other's would be accepted by chance only.
    """
    jobs = [[Job(prompt, GREEDY) for prompt in prompts(4, 20, seed)] for seed in (7, 8)]
    with ExitStack() as stack:
        engines = [stack.enter_context(specray_engine(tiny_folder, **SMALL)) for _ in jobs]
        plain = [engine.answers(some) for engine, some in zip(engines, jobs, strict=True)]
        tallies = [Tally(engine) for engine in engines]
        proposer = sources.proposer(KINDS["model"], followers([*plain[0], *plain[1]]))
        draft = stack.enter_context(served(proposer))
        stack.enter_context(relayed(draft, engines))
        with ThreadPoolExecutor(len(engines)) as pool:
            got = list(pool.map(Engine.answers, engines, map(capped, jobs)))

        for some, expected, speculated in zip(jobs, plain, got, strict=True):
            assert_same(tiny, some, expected, speculated)
        for tally in tallies:
            proposed, accepted = tally.take()
            assert proposed > 200
            assert accepted > 0.3 * proposed
