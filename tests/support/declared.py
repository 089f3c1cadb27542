"""A Ray cluster with the applications of a configuration, as a cluster's own tools deploy them; ends with its stdin.

Reads the configuration (JSON) from the file that is named; says on one line of stdout how the cluster is reached.
"""

import json
import os
import sys
from pathlib import Path

from cosmos3_serve.service.cluster import RayCluster


def main() -> None:
    with RayCluster():
        import ray
        from ray import serve
        from ray.serve._private.api import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
        config = ServeDeploySchema.model_validate(json.loads(Path(sys.argv[1]).read_text()))
        _get_global_client().deploy_apps(config, _blocking=False)
        names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
        address = ray.get_runtime_context().gcs_address
        print(json.dumps({"RAY_ADDRESS": address, **{n: os.environ[n] for n in names}}), flush=True)
        for line in sys.stdin:
            if line.strip() == "status":
                found = serve.status().applications.items()
                print(json.dumps({name: [app.status.value, app.message] for name, app in found}), flush=True)


if __name__ == "__main__":
    main()
