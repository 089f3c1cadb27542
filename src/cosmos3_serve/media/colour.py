"""From a decoded frame to sRGB pixels of 8 bits, by the frame's own tags.

Matrix and range: libswscale converts BT.601, BT.709, FCC, SMPTE 240M and BT.2020 by their tags; what is untagged counts
as BT.601 of limited range, unless its format says otherwise (yuvj, RGB, grey).

High dynamic range: PQ (SMPTE ST 2084) and HLG (BT.2100) become linear light, 203 cd/m2 is white (BT.2408), primaries
become those of BT.709, and the result is coded with the gamma of 2.4 that SDR video is made for (BT.1886). Up to nine
tenths of the signal nothing changes; brighter light, up to 1000 cd/m2, is compressed into the last tenth with the hue
kept, brighter still is white. Wide primaries without HDR go the same way without the compression.

Depth: more than 8 bits are scaled by the format's full range. Alpha: shown on white.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cosmos3_serve.media.geometry import Pixels
from cosmos3_serve.media.refusal import unsupported

Floats = np.ndarray[Any, np.dtype[np.float32]]

UNSPECIFIED = "unspecified"
MATRICES = {
    0: "gbr", 1: "bt709", 2: UNSPECIFIED, 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco",
    9: "bt2020nc", 10: "bt2020c", 11: "smpte2085", 12: "chroma-derived-nc", 13: "chroma-derived-c", 14: "ictcp",
}  # fmt: skip
RANGES = {0: UNSPECIFIED, 1: "tv", 2: "pc"}
PRIMARIES = {
    1: "bt709", 2: UNSPECIFIED, 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film", 9: "bt2020",
    10: "smpte428", 11: "smpte431", 12: "smpte432", 22: "ebu3213",
}  # fmt: skip
TRANSFERS = {
    1: "bt709", 2: UNSPECIFIED, 4: "gamma22", 5: "gamma28", 6: "smpte170m", 7: "smpte240m", 8: "linear", 9: "log100",
    10: "log316", 11: "iec61966-2-4", 12: "bt1361e", 13: "iec61966-2-1", 14: "bt2020-10", 15: "bt2020-12",
    16: "smpte2084", 17: "smpte428", 18: "arib-std-b67",
}  # fmt: skip
PQ, HLG = "smpte2084", "arib-std-b67"
# libswscale has coefficients for no others, and would take them for BT.601 without a word.
_CONVERTED = frozenset({"gbr", "bt709", UNSPECIFIED, "fcc", "bt470bg", "smpte170m", "smpte240m", "bt2020nc"})
# To linear BT.709: from the chromaticities of BT.2020, DCI-P3 (D65) and its theatrical white, by BT.2087's method.
_WIDE: dict[str, Floats] = {
    "bt2020": np.array(
        [[1.660491, -0.587641, -0.072850], [-0.124550, 1.132900, -0.008349], [-0.018151, -0.100579, 1.118730]],
        np.float32,
    ),
    "smpte432": np.array(
        [[1.224940, -0.224940, 0.0], [-0.042057, 1.042057, 0.0], [-0.019638, -0.078636, 1.098274]], np.float32
    ),
}
WHITE_NITS = 203.0
PEAK_NITS = 1000.0
GAMMA = 2.4
_KNEE = 0.9**GAMMA
_PEAK = PEAK_NITS / WHITE_NITS
MATRIX_COMMAND = "ffmpeg -i INPUT -vf zscale=m=bt709:r=tv -c:v libx264 -pix_fmt yuv420p OUTPUT.mp4"
TONE_COMMAND = (
    "ffmpeg -i INPUT -vf zscale=t=linear:npl=203,format=gbrpf32le,zscale=p=bt709,tonemap=mobius,"
    "zscale=t=bt709:m=bt709:r=tv,format=yuv420p -c:v libx264 -movflags +faststart OUTPUT.mp4"
)


@dataclass(frozen=True, slots=True)
class Colour:
    """Tags of a frame by FFmpeg's names, bits of one component, and whether it has transparency."""

    matrix: str = UNSPECIFIED
    range: str = UNSPECIFIED
    primaries: str = UNSPECIFIED
    transfer: str = UNSPECIFIED
    bit_depth: int = 8
    alpha: bool = False

    @property
    def hdr(self) -> bool:
        return self.transfer in (PQ, HLG)

    @property
    def wide(self) -> bool:
        return self.primaries in _WIDE

    @property
    def plain(self) -> bool:
        """Whether a decoder that knows matrix and range alone shows it right."""
        return not (self.hdr or self.wide or self.alpha)

    @property
    def conversions(self) -> tuple[str, ...]:
        done = []
        if self.hdr:
            name = "PQ" if self.transfer == PQ else "HLG"
            done.append(f"{name} mapped to SDR with white at {WHITE_NITS:g} cd/m2")
        if self.wide:
            done.append(f"{self.primaries} primaries converted to bt709")
        if self.bit_depth > 8:
            done.append(f"{self.bit_depth} bits reduced to 8")
        if self.alpha:
            done.append("transparency shown on white")
        return tuple(done)


def describe(frame: Any) -> Colour:
    """
    Raises:
        Refused: `media_colour_unsupported`: a matrix or primaries for which there is no conversion here.
    """
    parts = frame.format.components
    colour = Colour(
        matrix=MATRICES.get(int(frame.colorspace), UNSPECIFIED),
        range=RANGES.get(int(frame.color_range), UNSPECIFIED),
        primaries=PRIMARIES.get(int(frame.color_primaries), UNSPECIFIED),
        transfer=TRANSFERS.get(int(frame.color_trc), UNSPECIFIED),
        bit_depth=max((part.bits for part in parts), default=8),
        alpha=any(part.is_alpha for part in parts),
    )
    if colour.matrix not in _CONVERTED and not frame.format.is_rgb:
        raise unsupported("media_colour_unsupported", f"the video's colour matrix is {colour.matrix}", MATRIX_COMMAND)
    if colour.hdr and not colour.wide and colour.primaries not in (UNSPECIFIED, "bt709"):
        raise unsupported(
            "media_colour_unsupported", f"the video is HDR with {colour.primaries} primaries", TONE_COMMAND
        )
    return colour


def to_rgb(frame: Any, colour: Colour) -> Pixels:
    """sRGB pixels, uint8 [H, W, 3], as stored (neither turned nor stretched)."""
    if colour.hdr or colour.wide:
        return _mapped(frame.to_ndarray(format="rgb48le"), colour)
    if colour.alpha:
        return on_white(frame.to_ndarray(format="rgba"))
    plain: Pixels = frame.to_ndarray(format="rgb24")
    return plain


def on_white(rgba: Pixels) -> Pixels:
    """uint8 [H, W, 4] to [H, W, 3]."""
    alpha: Any = rgba[..., 3:].astype(np.uint16)
    mixed = rgba[..., :3] * alpha + 255 * (255 - alpha)
    shown: Pixels = ((mixed + 127) // 255).astype(np.uint8)
    return shown


def _mapped(rgb: np.ndarray[Any, np.dtype[np.uint16]], colour: Colour) -> Pixels:
    """uint16 [H, W, 3] of full range to sRGB, a band of rows at a time, so that memory stays that of one band."""
    height, width = rgb.shape[:2]
    shown: Pixels = np.empty((height, width, 3), np.uint8)
    table, matrix, codes = _linear(colour.transfer), _WIDE.get(colour.primaries), _codes()
    rows = max(1, (1 << 20) // max(1, width))
    for top in range(0, height, rows):
        light = table[rgb[top : top + rows]]
        if colour.transfer == HLG:
            luminance = light @ np.array([0.2627, 0.6780, 0.0593], np.float32)
            light = light * (np.maximum(luminance, 1e-6) ** np.float32(0.2) * np.float32(_PEAK))[..., None]
        if matrix is not None:
            light = light @ matrix.T
        if colour.hdr:
            light = _compressed(light)
        index = np.clip(light * (len(codes) - 1) + 0.5, 0, len(codes) - 1).astype(np.int32)
        shown[top : top + rows] = codes[index]
    return shown


def _compressed(light: Floats) -> Floats:
    """Light above the knee, at most `_PEAK`, into what is left below 1; all three components by one factor."""
    most = light.max(axis=-1, keepdims=True)
    bright = most > _KNEE
    if not bright.any():
        return light
    slope = (_PEAK - _KNEE) / (1 - _KNEE)
    part = np.clip((most - _KNEE) / (_PEAK - _KNEE), 0, 1)
    wanted = _KNEE + (1 - _KNEE) * slope * part / (1 + (slope - 1) * part)
    result: Floats = np.where(bright, light * (wanted / np.maximum(most, 1e-6)), light).astype(np.float32)
    return result


@lru_cache(maxsize=4)
def _linear(transfer: str) -> Floats:
    """Signal of 16 bits to linear light: 1 is SDR white; of HLG to scene light, 1 at most."""
    signal = np.arange(65536, dtype=np.float64) / 65535
    if transfer == PQ:
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 4096 * 128, 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        root = signal ** (1 / m2)
        light = (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1) * (10_000 / WHITE_NITS)
    elif transfer == HLG:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    else:
        light = signal**GAMMA
    table: Floats = light.astype(np.float32)
    return table


@lru_cache(maxsize=1)
def _codes() -> Pixels:
    """Linear light, 1 at most, to the code of 8 bits. Fine enough that no code is skipped in the dark."""
    light = np.arange(1 << 20, dtype=np.float64) / ((1 << 20) - 1)
    codes: Pixels = np.round(light ** (1 / GAMMA) * 255).astype(np.uint8)
    return codes
