"""What Serve wraps a deployment's class in within a replica, without the replica."""

from typing import Any

from ray.serve._private.common import DeploymentID
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.replica import UserCallableWrapper


async def replica_of(cls: type, *args: Any) -> UserCallableWrapper:
    wrapper = UserCallableWrapper(
        *(cls, args, {}),
        deployment_id=DeploymentID(name="any"),
        run_sync_methods_in_threadpool=True,
        run_user_code_in_separate_thread=False,
        local_testing_mode=True,
        deployment_config=DeploymentConfig(),
        actor_id="any",
    )
    await wrapper.initialize_callable()
    return wrapper
