"""What a draft writes down about its sessions."""

import logging
import time

import pytest

from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.service import DraftService
from specray.observability.journal import Journal
from specray.types import Commit, OpenSession, SamplingSettings, SessionFrame
from tests.draft.test_service import TIMEOUT_S, Router


def opened(session_id: int, request_id: str, num_tokens: int = 6) -> OpenSession:
    token_ids = (1, 2, 3, 1, 2, 3)[:num_tokens]
    return OpenSession(session_id, token_ids, num_tokens, SamplingSettings(), 4, request_id)


def wait_for_lines(caplog: pytest.LogCaptureFixture, number: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(caplog.records) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(caplog.records) == number


@pytest.mark.parametrize("is_logging", [True, False])
def test_each_session_ends_with_a_line_that_names_its_request(
    is_logging: bool, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal("specray.draft", is_logging=is_logging)
    service = DraftService(PromptLookup(PromptLookupConfig()), journal=journal)
    service.start()
    router = Router()
    with caplog.at_level(logging.INFO, "specray.sessions"):
        service.received(router, SessionFrame((opened(5, "r5"), opened(6, "r6"))))
        service.received(router, SessionFrame(commits=(Commit(5, 6, (1,), 4, 0),)))
        assert router.next_frame().proposals
        service.received(router, SessionFrame(commits=(Commit(6, 99, (1,), 4, 0),)))
        assert router.next_frame().lost == (6,)
        service.received(router, SessionFrame(closes=(5,)))
        if is_logging:
            wait_for_lines(caplog, 2)
        service.close()

    told = {record.__dict__["request_id"]: vars(record) for record in caplog.records}
    if not is_logging:
        assert not told
        return
    assert told["r5"]["outcome"] == "closed"
    assert told["r5"]["proposals"] >= 1
    assert told["r5"]["proposed_tokens"] >= 4
    assert told["r6"]["outcome"].startswith("rejected: session")
