"""The controller deployment: who is there, and the policy that may change while they run."""

from typing import Any

from pydantic import ValidationError

from specray.config import LivePolicyConfig, SpeculationConfig
from specray.errors import InvalidConfigError
from specray.serve.membership import Member, Registry, View


class Controller:
    """One replica. Holds nothing that heartbeats do not bring back within seconds."""

    def __init__(self, speculation: SpeculationConfig) -> None:
        self._start_policy = self._policy = speculation.policy
        self._registry = Registry()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take over the live policy from `user_config`, without a restart of anything.

        Raises:
            InvalidConfigError: naming the field; Serve then reports the deployment as unhealthy,
                and requests go on under the last policy.
        """
        try:
            live = LivePolicyConfig.model_validate(user_config)
        except ValidationError as error:
            raise InvalidConfigError(f"user_config of the controller: {error}") from None
        self._policy = live.apply(self._start_policy)

    async def heartbeat(self, member: Member) -> View:
        """Note that a replica is alive, and answer with everything known."""
        self._registry.hear(member)
        return await self.view()

    async def leave(self, member: Member) -> None:
        """Forget a replica that is going away."""
        self._registry.forget(member)

    async def view(self) -> View:
        """All live replicas and the policy."""
        return View(
            self._registry.addresses("target"),
            self._registry.addresses("draft"),
            self._policy,
            self._registry.is_complete,
        )
