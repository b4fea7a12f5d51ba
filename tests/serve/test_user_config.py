"""A faulty `user_config` ends a start, and nothing that runs."""

from typing import Any

import pytest

from specray.config import LivePolicyConfig
from specray.errors import InvalidConfigError
from specray.serve.metrics import UserConfigMetrics
from specray.serve.user_config import UserConfig


class Metrics(UserConfigMetrics):
    """The last that was published."""

    is_refused: bool | None = None

    def __init__(self) -> None: ...

    def publish(self, *, is_refused: bool) -> None:
        self.is_refused = is_refused


def take(config: UserConfig, given: dict[str, Any]) -> LivePolicyConfig | None:
    with config:
        return LivePolicyConfig.model_validate(given)
    return None


def test_at_the_start_it_is_an_error_that_names_the_field() -> None:
    config = UserConfig("controller", Metrics())

    with pytest.raises(InvalidConfigError, match=r"user_config of the controller(.|\n)*is_enabeld"):
        take(config, {"is_enabeld": False})


def test_later_it_is_logged_and_reported_until_a_sound_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    config = UserConfig("controller", metrics)
    take(config, {"is_enabled": True})
    config.in_use()
    assert metrics.is_refused is False

    assert take(config, {"is_enabeld": False}) is None
    config.in_use()
    assert metrics.is_refused is True
    assert "is_enabeld" in caplog.text

    assert take(config, {"is_enabled": False}) is not None
    config.in_use()
    assert metrics.is_refused is False


def test_other_errors_are_not_hidden() -> None:
    config = UserConfig("controller", Metrics())
    config.in_use()

    with pytest.raises(ZeroDivisionError), config:
        _ = 1 / 0
