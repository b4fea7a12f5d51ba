import asyncio

from specray.config import PromptLookupConfig, SimulationConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.serve.draft_server import DraftServer
from specray.serve.simulation import Simulation
from specray.serve.user_config import UserConfig
from tests.serve.replicas import replica_of


def test_serve_takes_an_empty_user_config_to_it_as_well() -> None:
    simulation = Simulation(SimulationConfig(pass_ms=2.0))

    async def reconfigure() -> None:
        replica = await replica_of(Drafts, simulation)
        await replica.call_reconfigure({"simulation": {"pass_ms": 9.0}}, rank=None)
        assert simulation.slowness.pass_ms == 9.0
        await replica.call_reconfigure(None, rank=None)

    asyncio.run(reconfigure())
    assert simulation.slowness.pass_ms == 2.0


class Drafts(DraftServer):
    """Only what live settings reach."""

    def __init__(self, simulation: Simulation) -> None:
        self._user_config = UserConfig("draft")
        self._proposer = PromptLookup(PromptLookupConfig())
        self._simulation = simulation

    def __del__(self) -> None: ...  # type: ignore[override]
