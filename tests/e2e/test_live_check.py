"""The operator's live check, run as an operator would, against a double of the framework's service. Against a real
service, the diffusers engine on a CPU with random weights, it runs in `test_wire_compatibility`, which has one."""

from pathlib import Path

import pytest
from support.baseline_server import BaselineServer
from support.live import CHECKS, assert_passed, bare_environ, run_live_check

from cosmos3_serve.trial.local_s3 import LocalS3

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_without_the_variable_it_skips_and_with_it_alone_it_fails_loudly() -> None:
    bare = bare_environ()
    asleep = run_live_check(bare)
    assert asleep.returncode == 0 and f"{CHECKS} skipped" in asleep.stdout, asleep.stdout
    alone = run_live_check({**bare, "NPA_INTEGRATION_E2E": "1"})
    assert alone.returncode == 1 and "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI" in alone.stdout


@pytest.mark.parametrize("custom_defaults", [False, True], ids=["own defaults", "custom defaults"])
def test_image2image_goes_through_where_the_service_is_a_double_of_the_framework(
    custom_defaults: bool, tmp_path: Path
) -> None:
    """No model runs here: the double speaks the baseline's contract at the pin, and its media are drawn."""
    with LocalS3() as s3, BaselineServer(tmp_path / "server", roots=("s3://live/owned",)) as server:
        s3.create_bucket("live")
        server.faults.announced = {"custom_defaults": custom_defaults}
        done = run_live_check(
            {
                **bare_environ(),
                **s3.environ,
                "NPA_INTEGRATION_E2E": "1",
                "NPA_COSMOS3_RAY_TOKEN": server.token,
                "NPA_COSMOS3_RAY_ENDPOINT": server.endpoint,
                "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI": "s3://live/owned/prefix",
                "NO_PROXY": "127.0.0.1",
            }
        )
        assert_passed(done)
        (request_id,) = server.batches
        assert server.generated.keys() == {f"{request_id}/live-text", f"{request_id}/live-implicit"}
