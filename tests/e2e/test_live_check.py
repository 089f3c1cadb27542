"""The operator's live check, run as an operator would, against what can run here: the diffusers engine on a CPU with
random weights and a local S3 API server. On that engine its conditioned sample is image2video; image2image is refused
by name there and needs the framework engine."""

from pathlib import Path

import pytest
from support.baseline_server import BaselineServer
from support.live import CHECKS, assert_passed, bare_environ, run_live_check
from support.processes import left_after, new_mark
from support.service import shared_cache

from cosmos3_serve.cli.local_s3 import LocalS3
from cosmos3_serve.cli.serve_command import ServeCommand

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
    with LocalS3() as s3, BaselineServer(tmp_path / "server") as server:
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


def test_it_passes_against_a_real_service(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mark = new_mark()
    flags = [
        *("--host", "127.0.0.1", "--port", "0", "--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails"),
        *("--device", "cpu", "--allowed-s3-roots", "s3://live/owned", "--output-path", str(tmp_path / "outputs")),
        *("--drain-timeout-s", "5", "--cache-dir", str(shared_cache(tmp_path_factory))),
    ]
    with LocalS3() as s3, ServeCommand(flags, {**s3.environ, **mark}, shared_cache(tmp_path_factory)) as service:
        s3.create_bucket("live")
        done = run_live_check(
            {
                **service.environ,
                "NPA_INTEGRATION_E2E": "1",
                "NPA_COSMOS3_RAY_ENDPOINT": service.url,
                "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI": "s3://live/owned/prefix/",
                "NO_PROXY": "127.0.0.1",
            }
        )
    assert_passed(done)
    assert left_after(mark) == {}
