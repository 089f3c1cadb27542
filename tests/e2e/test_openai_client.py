"""The official openai client against the running generator: pictures and videos of the tiny checkpoint."""

import base64
import io
import time
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from support.service import client

from cosmos3_serve.trial.serve_command import ServeCommand

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
FAST = {"num_inference_steps": 1, "num_frames": 5, "seed": 7}


@pytest.fixture
def api(generator: ServeCommand) -> Iterator[openai.OpenAI]:
    warnings.simplefilter("ignore", DeprecationWarning)
    token = generator.headers["Authorization"].split()[-1]
    with openai.OpenAI(base_url=f"{generator.url}/v1", api_key=token, max_retries=0, timeout=120) as opened:
        yield opened


def picture(kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (320, 192), (200, 30, 30)).save(out, kind)
    return out.getvalue()


def test_a_picture_comes_as_base64_or_as_an_address(api: openai.OpenAI, generator: ServeCommand) -> None:
    extra: dict[str, Any] = {"num_inference_steps": 1, "seed": 7}
    answer = api.images.generate(prompt="a red ball", size="256x256", extra_body=extra)  # type: ignore[arg-type]
    assert answer.data and answer.data[0].b64_json
    content = base64.b64decode(answer.data[0].b64_json)
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (256, 256)
    linked = api.images.generate(
        prompt="a red ball", size="256x256", response_format="url", n=1, extra_body=extra  # type: ignore[arg-type]
    )  # fmt: skip
    assert linked.data and linked.data[0].url
    assert httpx.get(linked.data[0].url, headers=generator.headers).content == content  # the same seed, the same bytes
    assert httpx.get(linked.data[0].url).status_code == 401


def test_a_video_is_made_polled_fetched_listed_and_deleted(api: openai.OpenAI, generator: ServeCommand) -> None:
    video = api.videos.create_and_poll(prompt="a red ball rolls", size="320x192", extra_body=FAST)  # type: ignore[arg-type]
    assert (video.status, video.progress, video.size) == ("completed", 100, "320x192")
    assert video.completed_at and video.expires_at and video.expires_at > video.completed_at
    content = api.videos.download_content(video.id).read()
    assert content[4:8] == b"ftyp"
    assert api.videos.download_content(video.id, extra_headers={"Range": "bytes=4-7"}).read() == b"ftyp"
    other = api.videos.create(
        prompt="a blue ball", size="320x192", seconds="0.2", extra_body={"num_inference_steps": 1}
    )  # type: ignore[arg-type]
    assert [v.id for v in api.videos.list(limit=1)][:2] == [other.id, video.id]  # two pages
    assert api.videos.retrieve(other.id).seconds == "0.208333"  # five frames: the model makes 4k + 1
    with client(generator) as http:  # in the same ledger
        assert http.get(f"/v1/batches/{video.id}").json()["state"] == "succeeded"
    assert api.videos.delete(video.id).deleted
    for call in (api.videos.retrieve, api.videos.download_content, api.videos.delete):
        with pytest.raises(openai.NotFoundError) as gone:
            call(video.id)
        assert gone.value.code == "batch_expired"
    assert video.id not in {v.id for v in api.videos.list()}


@pytest.mark.parametrize("how", ["form", "json"])
def test_a_video_begins_with_the_picture_that_came_along(how: str, api: openai.OpenAI, generator: ServeCommand) -> None:
    if how == "form":
        video = api.videos.create_and_poll(
            prompt="it moves", input_reference=("first.png", picture(), "image/png"), extra_body=FAST
        )
        made = video.id
    else:
        data = "data:image/jpeg;base64," + base64.b64encode(picture("JPEG")).decode()
        body = {"prompt": "it moves", "input_reference": {"image_url": data}, **FAST}
        with client(generator) as http:
            answer = http.post("/v1/videos/sync", json=body)
        assert answer.status_code == 200 and answer.headers["content-type"] == "video/mp4", answer.text
        made = answer.headers["x-video-id"]
    with client(generator) as http:
        response = http.get(f"/v1/batches/{made}/response").json()
        assert response["outputs"][0]["args"]["model_mode"] == "image2video"
        assert response["outputs"][0]["args"]["vision_path"].startswith("upload://")
        assert response["samples"][0]["media"]
        assert "/.cosmos3/" not in str(response)
    kept = generator.output_root / ".cosmos3" / "ledger" / made / "uploads"
    assert len(list(kept.iterdir())) == 1
    api.videos.delete(made)
    assert not kept.exists()


def test_refusals_are_the_clients_own_errors(api: openai.OpenAI, generator: ServeCommand) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        api.videos.create(prompt="a ball", size="100x100")  # type: ignore[arg-type]
    assert refused.value.param == "size" and "1280x720" in str(refused.value.body)
    with pytest.raises(openai.BadRequestError) as refused:
        api.images.generate(prompt="a ball", style="vivid")
    assert refused.value.param == "style"
    with pytest.raises(openai.BadRequestError) as refused:
        api.videos.create(prompt="a ball", extra_body={"num_inference_steps": 0})
    assert refused.value.param == "num_inference_steps"
    with pytest.raises(openai.BadRequestError) as refused:
        api.videos.create(prompt="a ball", extra_body={"enable_sound": True})
    assert refused.value.param == "enable_sound"
    with pytest.raises(openai.NotFoundError):
        api.videos.create(prompt="a ball", model="sora-2")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{generator.url}/v1", api_key="wrong", max_retries=0).images.generate(prompt="a ball")


def test_a_client_that_leaves_a_blocking_call_cancels_its_sample(generator: ServeCommand) -> None:
    body = {"prompt": "never seen", "num_frames": 25, "num_inference_steps": 400}
    with client(generator, timeout=2.0) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/videos/sync", json=body)
    with client(generator) as http:
        made = http.get("/v1/videos?limit=1").json()["data"][0]
        deadline = time.monotonic() + 60
        while made["status"] != "failed":
            assert time.monotonic() < deadline, made
            time.sleep(0.2)
            made = http.get(f"/v1/videos/{made['id']}").json()
        assert made["error"]["code"] == "cancelled"


def test_a_video_is_found_again_after_a_restart(generator: ServeCommand, api: openai.OpenAI) -> None:
    """The last of its module: it ends the service."""
    made = api.videos.create_and_poll(prompt="a red ball rolls", size="320x192", extra_body=FAST)  # type: ignore[arg-type]
    waits = api.videos.create(
        prompt="it moves", input_reference=("first.png", picture(), "image/png"),
        extra_body={**FAST, "num_frames": 9, "num_inference_steps": 3},
    )  # fmt: skip
    content = api.videos.download_content(made.id).read()
    generator.terminate()
    assert generator.wait() == 0
    generator.launch().wait_ready()
    again = openai.OpenAI(base_url=f"{generator.url}/v1", api_key=api.api_key, max_retries=0)
    assert again.videos.retrieve(made.id) == made
    assert again.videos.download_content(made.id).read() == content
    assert again.videos.poll(waits.id).status in ("completed", "failed")  # failed: it was running just then
