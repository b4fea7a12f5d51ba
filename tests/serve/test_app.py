from pathlib import Path
from typing import Any

import pytest
import yaml

from specray.errors import InvalidConfigError
from specray.serve.app import build_app

LOCAL = Path(__file__).parents[2] / "deployments" / "local.yaml"


@pytest.fixture
def args(tmp_path: Path) -> dict[str, Any]:
    """The local deployment's arguments, for a model that needs not be made."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    args: dict[str, Any] = yaml.safe_load(LOCAL.read_text())["applications"][0]["args"]
    args["target"]["model_loading_config"]["model_source"] = str(tmp_path)
    return args


@pytest.mark.parametrize("pool", ["draft", "router"])
@pytest.mark.parametrize(
    ("options", "message"), [({"num_replica": 3}, "num_replica"), ({"num_replicas": -2}, "-2")]
)
def test_options_that_serve_refuses_are_named_with_their_field(
    args: dict[str, Any], pool: str, options: dict[str, Any], message: str
) -> None:
    args[pool] = args.get(pool, {}) | {"deployment_config": options}
    with pytest.raises(InvalidConfigError, match=rf"(?s)^{pool}\.deployment_config: .*{message}"):
        build_app(args)
