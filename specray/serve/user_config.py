"""How a deployment takes its `user_config`: a faulty one is refused before it could do harm."""

import logging
from collections.abc import Collection
from types import TracebackType

from pydantic import ValidationError

from specray.errors import InvalidConfigError
from specray.serve.metrics import UserConfigMetrics

logger = logging.getLogger(__name__)


def check_by_hand(num_replicas: Collection[str], pools: Collection[str]) -> None:
    """Checks that replicas are chosen by hand for pools that there are.

    Raises:
        InvalidConfigError: naming the pool.
    """
    if unknown := set(num_replicas) - set(pools):
        raise InvalidConfigError(
            f"num_replicas: {min(unknown)!r} is none of the pools {', '.join(pools)}"
        )


class UserConfig:
    """A context in which a `user_config` is read and taken over.

    At the start a faulty one raises InvalidConfigError, and the deployment fails. Later it is
    logged and changes nothing: Serve stops a replica whose `reconfigure` raises and starts others
    with the same file, so that a slip in the kill switch would leave no controller at all. (A
    replica that starts while the faulty file is deployed does refuse it: mend the file.)
    """

    def __init__(self, of: str, metrics: UserConfigMetrics | None = None) -> None:
        """Takes the deployment's name, for messages."""
        self._of = of
        self._metrics = metrics or UserConfigMetrics()
        self._is_in_use = self._is_refused = False

    def in_use(self) -> None:
        """Somebody goes by what was taken over. Say it again and again: Ray drops idle gauges."""
        self._is_in_use = True
        self._metrics.publish(is_refused=self._is_refused)

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        is_faulty = isinstance(error, ValidationError | InvalidConfigError)
        if is_faulty and not self._is_in_use:
            raise InvalidConfigError(f"user_config of the {self._of}: {error}") from None
        if is_faulty:
            logger.error("user_config of the %s: %s; what was before holds", self._of, error)
        self._is_refused = is_faulty
        return is_faulty
