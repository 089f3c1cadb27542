"""Services that several end-to-end modules share."""

from collections.abc import Iterator

import obstore
import pytest
from obstore.store import S3Store
from support.fleet import need_engine
from support.processes import left_after, new_mark
from support.real_fleet import RealFleet
from support.s3 import LocalS3
from support.service import shared_cache

from cosmos3_serve.trial import demo
from cosmos3_serve.trial.serve_command import ServeCommand

# As the bucket holds it; `test_wire_compatibility` names it with its slash and its letters encoded.
ELSEWHERE = "inputs/étage/première 1.png"


@pytest.fixture(scope="session")
def started_generator(s3_server: LocalS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCommand]:
    """The generator as operators start it: its command, its flags, inputs from S3. The tiny checkpoint has random
    weights. However it ends, nothing of it stays."""
    root, mark = tmp_path_factory.mktemp("generator"), new_mark()
    for bucket in ("wire", "live", "recover"):
        s3_server.create_bucket(bucket)
    files = demo.write_media(root / "inputs")
    store = S3Store(
        "wire",
        endpoint=s3_server.endpoint,
        access_key_id=s3_server.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=s3_server.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    for key, path in files.items():
        obstore.put(store, key, path)
    obstore.put(store, ELSEWHERE, files[demo.FIRST_FRAME])
    flags = [
        *("--host", "127.0.0.1", "--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails", "--device", "cpu"),
        *("--allowed-s3-roots", "s3://wire/inputs,s3://live/owned", "--max-body-bytes", "200000"),
        # On a busy machine the samples of one request reach the model replica more than the usual 50 ms apart.
        *("--batch-wait-timeout-s", "0.3"),
        *("--drain-timeout-s", "20", "--cache-dir", str(shared_cache(tmp_path_factory))),
    ]
    environ = {
        **s3_server.environ,
        **mark,
        "NPA_COSMOS3_RAY_PORT": "0",  # no flag, so that one who starts it again may name the port it had
        "NPA_COSMOS3_RAY_OUTPUT_DIR": str(root / "outputs"),
    }
    with ServeCommand(flags, environ, root) as running:
        yield running
    assert left_after(mark) == {}


@pytest.fixture(scope="module")
def generator(started_generator: ServeCommand) -> ServeCommand:
    """The shared generator, running: a module may end it with its last test, and pays for the next one's start."""
    if started_generator.exit_code is not None:
        started_generator.launch().wait_ready()
    return started_generator


@pytest.fixture(scope="session")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Real vLLM, the dearest thing that tests start: once, for `test_reasoner_answers`, `test_reasoner_surface` and,
    after them, the killing in `test_reasoner_deaths`."""
    need_engine()
    with RealFleet(shared_cache(tmp_path_factory), tmp_path_factory.mktemp("tokens") / "tokens") as running:
        yield running
