"""The whole way: parts in, items out, with real processes, a real store and a web server on loopback."""

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import clips
from support.web import page, web

from cosmos3_serve.errors import Cosmos3Error, NotReady, StorageAuthorizationError
from cosmos3_serve.reasoner.media.address import AllowList
from cosmos3_serve.reasoner.media.fetch import Fetcher
from cosmos3_serve.reasoner.media.gate import MediaGate
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.locate import locate
from cosmos3_serve.reasoner.media.parts import MediaPart
from cosmos3_serve.reasoner.media.picture_cost import ImageProcessor
from cosmos3_serve.reasoner.media.probe import Prober
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.sampling import Sampling, VideoProcessor
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.upload_store import UploadStore, upload_place
from cosmos3_serve.reasoner.media.upload_sweep import Bounds
from cosmos3_serve.storage.roots import AllowedRoots


@asynccontextmanager
async def gate(
    root: Path,
    *,
    allow: tuple[str, ...] = (),
    max_bytes: int = 10**8,
    quarantined: Any = lambda sha256: False,
    **limits: Any,
) -> AsyncIterator[MediaGate]:
    bounds = MediaLimits(**{"probe_workers": 1, **limits})
    store = MediaStore(root, max_bytes=max_bytes)

    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    found = MediaGate(
        root,
        bounds,
        store=store,
        uploads=UploadStore(upload_place(f"file://{root}/uploads"), store, Bounds(10**7, 10**7)),
        fetcher=Fetcher(store, bounds, allow=AllowList.parse(allow), roots=AllowedRoots(), resolver=resolver),
        prober=Prober(bounds, ReplicaDecoder()),
        videos=VideoProcessor(),
        pictures=ImageProcessor(),
        name=lambda tenant, uuid: f"{tenant}:{uuid}",
        quarantined=quarantined,
    )
    await found.start()
    try:
        yield found
    finally:
        await found.close()


def vision() -> tuple[str, float | None]:
    return "vision", None


def data_url(data: bytes, mime: str = "video/mp4") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def parts(*urls: str, **more: Any) -> list[MediaPart]:
    """As a body of one message brings them; images where the URL says so."""
    content = []
    for url in urls:
        kind = "image_url" if "image/" in url[:16] or url.endswith(".png") else "video_url"
        content.append({"type": kind, kind: {"url": url}})
    return locate(
        json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode(), MediaLimits()
    ).parts


async def refusal(found: MediaGate, *urls: str, **more: Any) -> Cosmos3Error:
    with pytest.raises(Cosmos3Error) as caught:
        await found.admit(parts(*urls, **more), "t")
    return caught.value


async def can_be_emptied(found: MediaGate) -> bool:
    """Whether nothing is held in use, as soon as threads that were at work for a cancelled request have ended."""
    for _ in range(1000):
        for name in list(found.store._sizes):
            found.store.forget(name)
        if found.store.used_bytes == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_video_and_images_are_let_in(tmp_path: Path) -> None:
    clip, shot = clips.clip(), clips.picture("JPEG")
    async with gate(tmp_path) as found:
        with await found.admit(parts(data_url(shot, "image/jpeg"), data_url(clip)), "t") as items:
            image, video = items
            assert (image.kind, image.mime, image.size, image.cost.tokens) == ("image", "image/jpeg", len(shot), 77)
            assert (video.kind, video.mime, video.where, video.param) == (
                "video", "video/mp4", (0, 1), "messages[0].content[1]",
            )  # fmt: skip
            assert video.path.read_bytes() == clip
            assert video.original is None
            assert video.source is not None
            assert video.uuid.startswith("t:") and len(video.uuid) == 2 + 64
            assert video.uuid != video.sha256
            assert isinstance(video.cost, Sampling)
            assert (video.cost.tokens, len(video.cost.indices)) == (30, 4)
        assert found.screen.probes == 2


async def test_nothing_is_probed_twice_even_after_a_restart(tmp_path: Path) -> None:
    good, bad = data_url(clips.clip()), data_url(clips.clip(frames=1))
    async with gate(tmp_path) as found:
        many = await asyncio.gather(*[found.admit(parts(good), "t") for _ in range(8)])
        assert len({items[0].uuid for items in many}) == 1
        assert found.screen.probes == 1
        for _ in range(3):
            assert (await refusal(found, bad)).stable_code == "media_too_few_frames"
        assert found.screen.probes == 2
        for items in many:
            items.release()
    async with gate(tmp_path) as again:
        with await again.admit(parts(good), "t") as items:
            assert items[0].info.frames == 24
        assert (await refusal(again, bad)).stable_code == "media_too_few_frames"
        assert again.screen.probes == 0


async def test_the_uuid_binds_content_and_options(tmp_path: Path) -> None:
    async with gate(tmp_path) as found:

        async def uuid(data: bytes, **more: Any) -> str:
            with await found.admit(parts(data_url(data), **more), "t") as items:
                return items[0].uuid

        first, second = clips.clip(), clips.clip(frames=30)
        eight = {"mm_processor_kwargs": {"num_frames": 8}}
        small = {"mm_processor_kwargs": {"size": {"longest_edge": 9_000}}}
        seen = [await uuid(first), await uuid(second), await uuid(first, **eight), await uuid(first, **small)]
        assert len(set(seen)) == 4
        assert await uuid(first, temperature=0.5) == seen[0]
        # However a client asks for them: the same frames are the same item.
        for same in ({"fps": 2}, {"num_frames": 4}, {"max_frames": 9}, {"min_frames": 2}):
            assert await uuid(first, mm_processor_kwargs=same) == seen[0]
        for same in ({"fps": 4}, {"num_frames": 8}, {"min_frames": 8, "fps": 3}, {"num_frames": -1, "max_frames": 8}):
            assert await uuid(first, media_io_kwargs={"video": same}) == seen[2]


async def test_frames_are_those_asked_for_and_replicas_are_told_so(tmp_path: Path) -> None:
    async with gate(tmp_path) as found:

        async def chosen(*data: bytes, **asked: Any) -> tuple[list[int], dict[str, Any]]:
            several = [one for clip in data for one in parts(data_url(clip), **asked)]
            with await found.admit(several, "t") as items:
                counts = [len(item.cost.indices) for item in items if isinstance(item.cost, Sampling)]
                for item in items:
                    assert item.options.get("media_io_kwargs", {}) == items.loading
                return counts, dict(items.loading)

        two_s, three_s = clips.clip(), clips.clip(frames=36)
        assert await chosen(two_s) == ([4], {})
        assert await chosen(two_s, mm_processor_kwargs={"fps": 2}) == ([4], {})
        assert await chosen(two_s, mm_processor_kwargs={"fps": 4}) == ([8], {"min_frames": 8, "max_frames": 8})
        assert await chosen(two_s, mm_processor_kwargs={"num_frames": 24}) == (
            [24],
            {"min_frames": 24, "max_frames": 24},
        )
        assert await chosen(two_s, three_s, mm_processor_kwargs={"num_frames": 8}) == (
            [8, 8], {"min_frames": 8, "max_frames": 8},
        )  # fmt: skip
        # A request has one set of options: where its clips differ in the number of frames, the rule is sent.
        assert await chosen(two_s, three_s, mm_processor_kwargs={"fps": 4}) == (
            [8, 12], {"fps": 4, "min_frames": 2, "max_frames": 768},
        )  # fmt: skip
        assert await chosen(two_s, three_s, mm_processor_kwargs={"num_frames": 8}) == (
            [8, 8], {"min_frames": 8, "max_frames": 8},
        )  # fmt: skip


async def test_frames_that_a_clip_lacks_are_refused_by_the_option_s_name(tmp_path: Path) -> None:
    async with gate(tmp_path) as found:
        for asked, field in (
            ({"mm_processor_kwargs": {"num_frames": 25}}, "mm_processor_kwargs.num_frames"),
            ({"mm_processor_kwargs": {"videos_kwargs": {"fps": 13}}}, "mm_processor_kwargs.videos_kwargs.fps"),
            ({"media_io_kwargs": {"video": {"min_frames": 30}}}, "media_io_kwargs.video.min_frames"),
        ):
            error = await refusal(found, data_url(clips.clip()), **asked)
            assert (error.status, error.stable_code, error.errors[0].field) == (400, "media_option_invalid", field)
            assert error.detail.startswith("messages[0].content[0]: ")
            assert error.errors[0].remedy


async def test_a_normalised_copy_is_served_and_made_again_when_lost(tmp_path: Path) -> None:
    original = clips.av1("webm")
    async with gate(tmp_path) as found:
        with await found.admit(parts(data_url(original, "video/webm")), "t") as items:
            (item,) = items
            assert item.original is not None
            assert (item.original.codec, item.info.codec, item.mime) == ("av1", "h264", "video/mp4")
            assert item.info.normalised == ("replicas cannot decode av1",)
            assert item.source is None, "the client's own text is not what replicas get"
            copy = item.path.read_bytes()
            assert copy != original
            assert len(copy) == item.size
            lost = item.path.name
        found.store.forget(lost)
        with await found.admit(parts(data_url(original, "video/webm")), "t") as items:
            assert items[0].uuid == item.uuid
            assert items[0].path.read_bytes() == copy, "the same recipe gives the same bytes"
        assert found.screen.probes == 2
        assert list((tmp_path / "copies").iterdir()) == []


async def test_refusals_name_their_part_and_hold_nothing(tmp_path: Path) -> None:
    good = data_url(clips.clip())
    async with gate(tmp_path) as found:
        cases = [
            (data_url(b"hello there"), 400, "media_not_media"),
            (data_url(clips.clip(), "video/webm"), 415, "media_type_mismatch"),
            (data_url(clips.clip(), "text/plain"), 415, "media_type_mismatch"),
            (data_url(clips.picture()), 415, "media_type_mismatch"),
            (data_url(clips.sound_only()), 422, "media_no_video"),
            (data_url(clips.recounted(clips.clip(), 500)), 422, "media_frame_count_wrong"),
            ("data:video/mp4;base64,", 400, "media_empty"),
            ("data:video/mp4;base64,!!!", 400, "media_base64_invalid"),
            ("https://10.0.0.1/a.mp4", 400, "media_url_refused"),
            ("file-id:file-0", 404, "file_not_found"),
        ]
        for url, status, code in cases:
            error = await refusal(found, url)
            assert (error.status, error.stable_code) == (status, code), error
            assert error.errors[0].field == "messages[0].content[0]"
        error = await refusal(found, data_url(clips.picture(), "image/png"), data_url(b"not an image", "image/png"))
        assert error.errors[0].field == "messages[0].content[1]"
        error = await refusal(found, "s3://bucket/a.mp4")
        assert isinstance(error, StorageAuthorizationError)
        assert error.errors[0].field == "messages[0].content[0]"
        with await found.admit(parts(good), "t"):
            pass
        assert await can_be_emptied(found)


@pytest.mark.parametrize(
    "mime", ["video/mp4", "VIDEO/MP4", "video/mp4;codecs=avc1", "", "application/octet-stream", "video/quicktime"]
)
async def test_declared_types_that_fit(tmp_path: Path, mime: str) -> None:
    async with gate(tmp_path) as found:
        with await found.admit(parts(data_url(clips.clip(), mime)), "t") as items:
            assert items[0].mime == "video/mp4"


async def test_web_servers_may_call_it_what_they_like(tmp_path: Path) -> None:
    async with web() as server:
        allow = (f"media.test:{server.port}",)
        server.pages["/a"] = page(clips.clip(), content_type="image/png")
        server.pages["/lie.mp4"] = page(b"<html><body>login</body></html>", content_type="video/mp4")
        async with gate(tmp_path, allow=allow) as found:
            with await found.admit(parts(server.url("/a")), "t") as items:
                assert items[0].mime == "video/mp4"
                assert items[0].source is None
            error = await refusal(found, server.url("/lie.mp4"))
            assert (error.status, error.stable_code) == (400, "media_not_media")
            assert "html" in error.detail
            assert (await refusal(found, server.url("/none"))).stable_code == "media_upstream_error"


async def test_quarantined_content_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    guilty: set[str] = set()
    async with gate(tmp_path, quarantined=guilty.__contains__) as found:
        with await found.admit(parts(data_url(clips.clip())), "t") as items:
            guilty.add(items[0].sha256)
        error = await refusal(found, data_url(clips.clip()))
        assert (error.status, error.stable_code) == (422, "media_quarantined")
        guilty.clear()
        (await found.admit(parts(data_url(clips.clip())), "t")).release()


async def test_budgets_of_a_request(tmp_path: Path) -> None:
    clip = clips.clip()
    async with gate(tmp_path, max_request_media_bytes=len(clip) + 10, max_sampled_bytes=4 * 160 * 96 * 3) as found:
        (await found.admit(parts(data_url(clip)), "t")).release()
        error = await refusal(found, data_url(clips.picture(), "image/png"), data_url(clip))
        assert (error.status, error.stable_code) == (413, "media_too_large")
        error = await refusal(found, data_url(clip), media_io_kwargs={"video": {"fps": 12}})
        assert (error.status, error.stable_code) == (413, "media_too_many_pixels")
        assert "24 frames of 160x96" in error.detail
        assert found.screen.probes == 1
    async with gate(tmp_path / "b", max_media_bytes=100) as found:
        assert (await refusal(found, data_url(clip))).stable_code == "media_too_large"


async def test_a_store_full_of_what_is_in_use_says_come_again(tmp_path: Path) -> None:
    first, second = clips.clip(), clips.clip(frames=30)
    async with gate(tmp_path, max_bytes=len(second) + 100) as found:
        items = await found.admit(parts(data_url(first)), "t")
        error = await refusal(found, data_url(second))
        assert isinstance(error, NotReady)
        assert error.stable_code == "media_store_full"
        items.release()
        (await found.admit(parts(data_url(second)), "t")).release()


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def test_upload_once_and_ask_by_id(tmp_path: Path) -> None:
    clip = clips.clip()
    async with gate(tmp_path) as found:
        record = await found.upload(stream(clip), "t", filename="a.mp4", terms=vision)
        assert (record.bytes, record.media.frames) == (len(clip), 24)
        with await found.admit(parts(f"file-id:{record.id}"), "t") as items:
            by_id = items[0].uuid
            assert items[0].sha256 == record.sha256
        with await found.admit(parts(data_url(clip)), "t") as items:
            assert items[0].uuid == by_id, "however the content came"
        assert found.screen.probes == 1
        with pytest.raises(Cosmos3Error) as caught:
            await found.admit(parts(f"file-id:{record.id}"), "other tenant")
        assert caught.value.status == 404
        picture = await found.upload(stream(clips.picture()), "t", filename="a.png", terms=vision)
        assert picture.media.kind == "image"
        assert (await refusal(found, f"file-id:{picture.id}")).stable_code == "media_type_mismatch"
        for data, code in (
            (b"text", "media_not_media"),
            (b"", "media_empty"),
            (clips.clip(frames=1), "media_too_few_frames"),
        ):
            with pytest.raises(Cosmos3Error) as caught:
                await found.upload(stream(data), "t", filename="x", terms=vision)
            assert caught.value.stable_code == code
            assert caught.value.errors[0].field == "file"
        assert len(await found.uploads.list("t")) == 2


async def test_a_cancelled_request_lets_go(tmp_path: Path) -> None:
    async with web() as server:
        release = asyncio.Event()

        async def held(asked: Any, writer: asyncio.StreamWriter) -> None:
            await release.wait()

        server.pages["/held"] = held
        async with gate(tmp_path, allow=(f"media.test:{server.port}",)) as found:
            shot = data_url(clips.picture(), "image/png")
            task = asyncio.ensure_future(found.admit(parts(shot, server.url("/held")), "t"))
            await server.until_asked()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()
            assert await can_be_emptied(found)


def test_limits_are_one_frozen_thing() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MediaLimits().max_body_bytes = 1  # type: ignore[misc]
    assert (MediaLimits().max_body_bytes, MediaLimits().max_media_bytes) == (64 * 2**20, 512 * 2**20)
    assert (MediaLimits().videos_per_message, MediaLimits().images_per_message) == (1, 8)
