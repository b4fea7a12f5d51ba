import pytest

from tests.serve.identity import PlainAnswers


@pytest.fixture(scope="session")
def plain_answers() -> PlainAnswers:
    """Of the target of `deployments/local.yaml`, which all services of these tests have."""
    return PlainAnswers()
