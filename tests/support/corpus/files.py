"""The corpus: every container and codec that is taken, and every oddity that a reader was once wrong about."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
from PIL import Image
from support.corpus import stills, video
from support.corpus.entry import Entry
from support.corpus.paint import HEIGHT, WIDTH, picture
from support.corpus.video import FRAMES, clip

ALL = range(FRAMES)
TURNED = (HEIGHT, WIDTH)
_MATRICES: dict[str, tuple[tuple[int, int, int, int], str]] = {
    # what a display matrix does to a stored picture, by Pillow's name
    "90": ((0, -1, 1, 0), "ROTATE_90"),
    "180": ((-1, 0, 0, -1), "ROTATE_180"),
    "270": ((0, 1, -1, 0), "ROTATE_270"),
    "mirror": ((-1, 0, 0, 1), "FLIP_LEFT_RIGHT"),
    "mirror90": ((0, 1, 1, 0), "TRANSPOSE"),
    "mirror180": ((1, 0, 0, -1), "FLIP_TOP_BOTTOM"),
    "mirror270": ((0, -1, -1, 0), "TRANSVERSE"),
}
_UNDO = {"ROTATE_90": "ROTATE_270", "ROTATE_270": "ROTATE_90"}


def _codecs() -> list[Entry]:
    kinds: dict[str, tuple[str, str, dict[str, str]]] = {
        "h264.mp4": ("libx264", "yuv420p", {}),
        "h264.mov": ("libx264", "yuv420p", {}),
        "h264.mkv": ("libx264", "yuv420p", {}),
        "h264.ts": ("libx264", "yuv420p", {}),
        "h264_444.mp4": ("libx264", "yuv444p", {}),
        "h264_10bit.mp4": ("libx264", "yuv420p10le", {}),
        "bframes.mp4": ("libx264", "yuv420p", {"bf": "3", "b_strategy": "0"}),
        "bframes.mkv": ("libx264", "yuv420p", {"bf": "3", "b_strategy": "0"}),
        "interlaced.mp4": ("libx264", "yuv420p", {"flags": "+ilme+ildct"}),
        "hevc.mp4": ("libx265", "yuv420p", {}),
        "hevc.mkv": ("libx265", "yuv420p", {}),
        "hevc.ts": ("libx265", "yuv420p", {}),
        "vp8.webm": ("libvpx", "yuv420p", {}),
        "vp9.webm": ("libvpx-vp9", "yuv420p", {}),
        "vp9.mp4": ("libvpx-vp9", "yuv420p", {}),
        "vp9_hidden.webm": ("libvpx-vp9", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "8", "cpu-used": "5"}),
        "av1.mp4": ("libsvtav1", "yuv420p", {}),
        "av1.webm": ("libsvtav1", "yuv420p", {}),
        "mpeg4.mp4": ("mpeg4", "yuv420p", {}),
        "mpeg4.avi": ("mpeg4", "yuv420p", {}),
        "mpeg2.ts": ("mpeg2video", "yuv420p", {}),
        "mpeg2.mkv": ("mpeg2video", "yuv420p", {}),
        "mjpeg.avi": ("mjpeg", "yuvj420p", {}),
        "mjpeg.mov": ("mjpeg", "yuvj420p", {}),
        "prores.mov": ("prores_ks", "yuv422p10le", {}),
        "ffv1.mkv": ("ffv1", "yuv420p", {}),
        "ffv1.avi": ("ffv1", "bgr0", {}),
    }
    entries = []
    for name, (codec, pixels, options) in kinds.items():
        fps = 25 if codec == "mpeg2video" else 10
        make = partial(clip, codec=codec, pixels=pixels, options=options, fps=fps)
        lossy = codec in ("libvpx", "libvpx-vp9", "libsvtav1")
        copied = True if "av1" in name or name.endswith(".ts") else None
        entries.append(Entry(name, make, numbers=ALL, fps=fps, by=14 if lossy else 8, copied=copied))
    return entries


def _containers() -> list[Entry]:
    return [
        Entry("faststart.mp4", partial(clip, container={"movflags": "faststart"}), numbers=ALL, copied=False),
        Entry("fragments.mp4", _fragments("frag_keyframe+empty_moov+default_base_moof"), numbers=ALL),
        Entry("fragments_behind_moov.mp4", _fragments("frag_keyframe"), numbers=ALL, copied=True),
        Entry("fragment_a_frame.mp4", _fragments("frag_every_frame+delay_moov"), numbers=ALL),
        Entry("live.webm", partial(clip, codec="libvpx", container={"live": "1"}), numbers=ALL, by=14, copied=True),
        Entry("zeros_behind.mp4", _changed("mp4", lambda data: data + bytes(20_000)), numbers=ALL),
        Entry("trimmed.mp4", partial(video.trimmed, start_s=0.6), numbers=range(6, 20)),
        Entry("late.mp4", _late, numbers=ALL, start_s=2.0, copied=True),
        Entry("late.mkv", _late, numbers=ALL, start_s=2.0, copied=True),
        Entry("uneven.mp4", _uneven, numbers=ALL, times_s=_UNEVEN_S, copied=True),
        Entry("uneven.mkv", _uneven, numbers=ALL, times_s=_UNEVEN_S, copied=True),
        Entry("fast.mp4", partial(clip, fps=240), numbers=ALL, fps=240),
        Entry("timelapse.mkv", partial(clip, frames=4, fps=1, times=[0, 60, 120, 180]), numbers=range(4), fps=1 / 60),
        Entry("two_frames.mp4", partial(clip, frames=2), numbers=range(2)),
        Entry("one_frame.mp4", partial(clip, frames=1), numbers=range(1), reasoner="media_too_few_frames"),
        Entry("odd_size.mp4", partial(clip, size=(161, 97), pixels="yuv444p"), numbers=ALL, size=(161, 97)),
        Entry("counts_one_too_few.avi", _avi_count(-1), numbers=ALL, notes="counts 11 frames"),
        Entry("counter_jumps.ts", _counter_jumps, numbers=ALL, notes="marked as damaged"),
        Entry("begins_between_keyframes.ts", _mid_gop, numbers=range(10, 30), fps=25, start_s=0.24, copied=True),
        Entry("animation.gif", _gif, numbers=range(5), by=10),
    ]


def _tracks() -> list[Entry]:
    return [
        Entry("cover_first.mp4", partial(clip, before=video.cover), numbers=ALL),
        Entry("still_first.mp4", partial(video.tracks, clips=[(1, 200), (12, 0)]), numbers=ALL, notes="stream 1 of 2",
              copied=True),
        Entry("still_first.mkv", partial(video.tracks, clips=[(1, 200), (12, 0)]), numbers=ALL, notes="stream 1 of 2",
              copied=True),
        Entry("default_second.mkv", partial(video.tracks, clips=[(12, 100), (12, 0)], default=1), numbers=ALL,
              notes="the default one", copied=True),
        Entry("longest_second.mp4", partial(video.tracks, clips=[(4, 100), (12, 0)]), numbers=ALL,
              notes="the longest one", copied=True),
    ]  # fmt: skip


def _colours() -> list[Entry]:
    tagged = [
        Entry(f"{name}.mp4", partial(clip, pixels="yuv444p", colorspace=matrix, color_range=wide), numbers=ALL,
              copied=False)
        for name, matrix, wide in (
            ("bt709", 1, 1), ("bt709_full", 1, 2), ("bt601", 6, 1), ("bt601_full", 6, 2), ("bt2020_matrix", 9, 1),
        )
    ]  # fmt: skip
    hdr = {"color_primaries": 9, "colorspace": 9, "color_range": 1}
    graded = partial(clip, codec="libx265", pixels="yuv444p10le", **hdr)
    return [
        *tagged,
        Entry("pq.mp4", partial(graded, color_trc=16, frame=video.graded("pq")), numbers=ALL, by=14, copied=True,
              conversions="PQ mapped"),
        Entry("hlg.mp4", partial(graded, color_trc=18, frame=video.graded("hlg")), numbers=ALL, by=14, copied=True,
              conversions="HLG mapped"),
        Entry("grey16.mkv", partial(clip, codec="ffv1", pixels="gray16le"), numbers=ALL, left=(88,) * 3,
              right=(105,) * 3, by=12),
        Entry("alpha.mkv", partial(clip, codec="ffv1", pixels="bgra", frame=_half_clear), numbers=ALL,
              right=(255, 255, 255), copied=True, conversions="on white"),
    ]  # fmt: skip


def _geometry() -> list[Entry]:
    entries = [
        Entry("anamorphic.mp4", partial(clip, sample_aspect_ratio=Fraction(64, 45)), numbers=ALL, size=(228, 96),
              copied=True, conversions="64:45"),
        Entry("tall_pixels.mkv", partial(clip, sample_aspect_ratio=Fraction(1, 2)), numbers=ALL, size=(160, 192),
              copied=True, conversions="1:2"),
    ]  # fmt: skip
    for name, (matrix, shown_by) in _MATRICES.items():
        undone = _UNDO.get(shown_by, shown_by)
        sideways = shown_by in ("ROTATE_90", "ROTATE_270", "TRANSPOSE", "TRANSVERSE")
        make = partial(
            video.turned,
            matrix=matrix,
            paint=partial(_stored, undone=undone),
            size=TURNED if sideways else (WIDTH, HEIGHT),
        )
        entries.append(Entry(f"turned_{name}.mp4", make, numbers=ALL, copied=True if "mirror" in name else None))
    return entries


def _stills() -> list[Entry]:
    still = partial(Entry, kind="image", numbers=[5])
    save = stills.save
    return [
        still("plain.png", lambda path: save(path, stills.plain())),
        still("plain.jpg", lambda path: save(path, stills.plain(), quality=95, subsampling=0)),
        still("plain.webp", lambda path: save(path, stills.plain(), lossless=True)),
        still("plain.gif", lambda path: save(path, stills.plain())),
        still("see_through.png", stills.see_through, right=(255, 255, 255), copied=False),
        still("see_through_palette.png", stills.see_through_palette, right=(255, 255, 255), copied=False),
        still("see_through.webp", stills.see_through, right=(255, 255, 255), copied=False),
        still("grey16.png", stills.grey16, left=(64,) * 3, right=(192,) * 3, by=2, copied=True),
        still("grey.png", lambda path: save(path, stills.plain().convert("L")), left=(88,) * 3, right=(105,) * 3),
        still("cmyk.jpg", lambda path: save(path, stills.plain().convert("CMYK"), quality=95)),
        still("palette.png", lambda path: save(path, stills.plain().quantize(16))),
        still("display_p3.png", stills.profiled, copied=True, by=6),
        still("several.png", lambda path: stills.several(path, "PNG"), notes="the first"),
        still("several.webp", lambda path: stills.several(path, "WEBP"), notes="the first"),
        still("several.gif", lambda path: stills.several(path, "GIF"), notes="the first"),
        still("several.jpg", lambda path: stills.several(path, "MPO"), notes="the first", by=10),
        *[
            still(f"exif_{orientation}.jpg", partial(stills.oriented, orientation=orientation))
            for orientation in range(1, 9)
        ],
    ]


def _refused() -> list[Entry]:
    cut, corrupt = ("media_truncated",), ("media_truncated", "media_corrupt")
    other = ("media_not_media",)
    bad = partial(Entry, numbers=())
    return [
        bad("cut_index.mp4", _changed("mp4", lambda data: data[: data.index(b"moov") + 40]), refused=cut),
        bad("cut_codec.mp4", _changed("mp4", _faststart_to(b"avcC", 6)), refused=cut),
        bad("cut_half.mp4", _changed("mp4", lambda data: data[: len(data) * 3 // 5], movflags="faststart"),
            refused=cut),
        bad("cut_last.mp4", _changed("mp4", lambda data: data[:-9], movflags="faststart"), refused=cut),
        bad("cut_half.mkv", _changed("mkv", lambda data: data[: len(data) * 3 // 5]), refused=cut),
        bad("cut_last.webm", _changed("webm", lambda data: data[:-400], codec="libvpx"), refused=cut),
        bad("cut_half.avi", _changed("avi", lambda data: data[: len(data) // 2], codec="mpeg4"), refused=cut),
        bad("cut_half.mov", _changed("mov", lambda data: data[: len(data) // 2]), refused=cut),
        bad("cut_last.ts", _changed("ts", lambda data: data[:-100]), refused=cut),
        bad("cut_half.gif", _changed_file(_gif, lambda data: data[: len(data) // 2]), refused=cut),
        bad("lost_packet.ts", _lost_packet, refused=("media_corrupt",), says="damaged after"),
        bad("zeroed_middle.mp4", _changed("mp4", _zeroed), refused=corrupt),
        bad("counts_two_too_many.avi", _avi_count(2), refused=("media_frame_count_wrong",), says="14"),
        bad("size_changes.webm", video.size_changes, refused=("media_size_changes",), says="320x192"),
        bad("tilted.mp4", partial(video.turned, matrix=(0.7, 0.7, -0.7, 0.7)),
            refused=("media_rotation_unsupported",)),
        bad("sliver_pixels.mp4", partial(clip, sample_aspect_ratio=Fraction(30, 1)),
            refused=("media_aspect_extreme",)),
        bad("sound_only.mp4", video.sound_only, refused=("media_no_video",), says="only sound"),
        bad("playlist.mp4", _text("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nfile:///etc/passwd\n"), refused=other),
        bad("concat.mp4", _text("ffconcat version 1.0\nfile h264.mp4\n"), refused=other),
        bad("dash.mp4", _text('<?xml version="1.0"?><MPD><BaseURL>h264.mp4</BaseURL></MPD>'), refused=other),
        bad("page.mp4", _text("<!DOCTYPE html><html>404</html>"), refused=other, says="html"),
        bad("empty.mp4", _text(""), refused=other),
        bad("noise.mp4", _text("\0\0\0\x18ftypisom" + "\x7f" * 400), refused=cut),
        bad("ogg.mp4", _text("OggS" + "\0" * 100), refused=("media_type_unsupported",), says="ogg"),
        bad("picture.mp4", lambda path: path.write_bytes(stills.encoded("PNG")), refused=("media_type_mismatch",)),
        bad("clip.png", _changed("mp4", lambda data: data), kind="image", refused=("media_type_mismatch",)),
        bad("bomb.png", stills.bomb, kind="image", refused=("media_too_many_pixels",), says="60000x60000"),
        bad("cut.png", lambda path: path.write_bytes(stills.encoded("PNG")[:-60]), kind="image", refused=corrupt),
        bad("cut.jpg", lambda path: path.write_bytes(stills.encoded("JPEG")[:-300]), kind="image", refused=corrupt),
        bad("cut.webp", lambda path: path.write_bytes(stills.encoded("WEBP")[:-60]), kind="image", refused=corrupt),
        bad("strip.png", lambda path: stills.save(path, Image.new("RGB", (3000, 10))), kind="image",
            refused=("media_aspect_extreme",)),
        bad("heic.png", _text("\0\0\0\x1cftypheic" + "\0" * 100), kind="image", refused=("media_type_unsupported",)),
    ]  # fmt: skip


def corpus() -> list[Entry]:
    return [*_codecs(), *_containers(), *_tracks(), *_colours(), *_geometry(), *_stills(), *_refused()]


# ---- how the odd ones are made ---------------------------------------------------------------------------------------

_UNEVEN = [0, 1, 2, 3, 4, 5, 15, 25, 35, 45, 46, 47]  # tenths of a second
_UNEVEN_S = [tick / 10 for tick in _UNEVEN]
Change = Callable[[bytes], bytes]


def _fragments(flags: str) -> Callable[[Path], None]:
    return partial(clip, container={"movflags": flags}, options={"g": "4"})


def _late(path: Path) -> None:
    clip(path, times=[20 + n for n in range(FRAMES)], sound=4.0)


def _uneven(path: Path) -> None:
    clip(path, times=_UNEVEN)


def _gif(path: Path) -> None:
    images = [Image.fromarray(picture(number)) for number in range(5)]
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=100, loop=0)


def _stored(index: int, undone: str) -> object:
    import numpy as np

    return np.asarray(Image.fromarray(picture(index)).transpose(getattr(Image.Transpose, undone)))


def _half_clear(made: object) -> object:
    shown = made.to_ndarray(format="rgba")  # type: ignore[attr-defined]
    shown[24:84, 80:] = 0
    return av.VideoFrame.from_ndarray(shown, format="rgba").reformat(format="bgra")


def _changed(suffix: str, change: Change, *, movflags: str = "", **options: str) -> Callable[[Path], None]:
    container = {"movflags": movflags} if movflags else {}
    return _changed_file(partial(clip, container=container, **options), change, suffix)


def _changed_file(make: Callable[[Path], None], change: Change, suffix: str = "") -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        whole = path.with_name(f"whole_{path.stem}.{suffix or path.suffix[1:]}")
        make(whole)
        path.write_bytes(change(whole.read_bytes()))
        whole.unlink()

    return changed


def _faststart_to(box: bytes, more: int) -> Change:
    return lambda data: data[: data.index(box) + more]


def _zeroed(data: bytes) -> bytes:
    at = data.index(b"mdat") + 4
    end = data.index(b"moov") - 4
    third = (end - at) // 3
    return data[: at + third] + bytes(third) + data[at + 2 * third :]


def _avi_count(by: int) -> Callable[[Path], None]:
    import struct

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for tag, offset in ((b"avih", 24), (b"strh", 40)):
            at = changed.index(tag) + offset
            struct.pack_into("<I", changed, at, struct.unpack_from("<I", changed, at)[0] + by)
        return bytes(changed)

    return _changed("avi", change, codec="mpeg4")


def _counter_jumps(path: Path) -> None:
    clip(path)
    packets = video.ts_packets(path.read_bytes())
    starts = [n for n, packet in enumerate(packets) if video.of_video(packet) and packet[1] & 0x40]
    half = starts[len(starts) // 2]
    path.write_bytes(
        b"".join(
            packet[:3] + bytes([packet[3] & 0xF0 | (packet[3] + 5) & 0x0F]) + packet[4:]
            if n >= half and video.of_video(packet)
            else packet
            for n, packet in enumerate(packets)
        )
    )


def _lost_packet(path: Path) -> None:
    clip(path, frames=30, fps=25, size=(320, 192), options={"g": "5"})
    packets = video.ts_packets(path.read_bytes())
    inner = [n for n, packet in enumerate(packets) if video.of_video(packet) and not packet[1] & 0x40]
    del packets[inner[-1]]
    path.write_bytes(b"".join(packets))


def _mid_gop(path: Path) -> None:
    """Its first keyframe is frame 10."""
    clip(path, frames=30, fps=25, options={"g": "10", "keyint_min": "10", "sc_threshold": "0"})
    packets = video.ts_packets(path.read_bytes())
    starts = [n for n, packet in enumerate(packets) if video.of_video(packet) and packet[1] & 0x40]
    path.write_bytes(b"".join([*packets[:3], *packets[starts[4] :]]))


def _text(content: str) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content.encode("latin-1")), None)[1]
