"""Make the bundle that `start.sh` unpacks on a GPU machine that has torch and CUDA, but no network and no vLLM.

    python3.12 pack.py OUT --packages LIST --clips FOLDER [--work DIR]

`LIST` names the Python packages that the machine already has, separated by commas or lines. Needs Linux on x86-64,
Python 3.12, gcc, binutils and xz; downloads about 400 MB, takes about 15 minutes on two cores, and keeps every finished
step in DIR. OUT gets about 57 MB:

    site.tar.xz    vLLM 0.25.0 (the newest for torch 2.11) and what it needs, without what a dense model on sm_90 never
                   calls: kernels of other cards are zeroed inside the libraries, which then compress to a tenth
    av.tar.xz      PyAV for the gateway; encoders that nothing here calls are stubs of the same name
    model.tar.xz   the full-size reasoner's config and a tokenizer trained here; weights are random, made by the engine
    clips.tar      clips of 30 seconds, 2 frames a second, 640x360 (`cosmos3 bench videos` makes the same)

vLLM 0.25 refuses a video by name alone for this model family; the patch is in `UUID_ONLY` (0.32 needs none).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from random_reasoner import make_model

PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (28, 31, 34, 35)] + ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
VLLM, AV = "vllm==0.25.0", "av==18.1.0"
PINNED = ("torch==2.11.0", "torchvision==0.26.0", "transformers==5.17.0", "tokenizers==0.23.2")
OURS = ("structlog", "uvloop", "httptools", "pybase64", "python-multipart", "prometheus-client", "aiohttp")
# Named by vLLM's own metadata, never imported when a dense vision model is served.
NEVER = re.compile(
    r"^(flashinfer|nvidia-cutlass|cutlass|tilelang|quack|humming|tokenspeed|fastsafetensors|nvidia-|torchcodec|torchaudio"
    r"|numba|llvmlite|cryptography|cffi|pycparser|sentry-sdk|supervisor|rignore|fastar|fastapi-cli|fastapi-cloud-cli"
    r"|detect-installer|agent-detector|rich-toolkit|pynvvideocodec|ray|uv$|nvtx)"
)
HOLDS_BACK = {"apache-tvm-ffi"}  # a pin for FlashInfer, with which xgrammar is a version of 116 MB
UUID_ONLY = """            if data_item is None:  # named only: must be in the processor cache
                new_videos.append(None)
                metadata_lst.append(None)
                continue
"""
BEFORE = "            video, metadata = self._get_video_with_metadata(data_item)\n"
CODEC_LIBRARIES = (
    "libavcodec",
    "libavformat",
    "libavutil",
    "libavfilter",
    "libavdevice",
    "libswscale",
    "libswresample",
)
KEPT_LIBRARIES = (*CODEC_LIBRARIES, "libx264", "libasound")  # the canary encodes; versioned symbols
FATBIN = struct.pack("<I", 0xBA55ED50)


def run(*command: str | Path, **options: object) -> str:
    return subprocess.run([str(c) for c in command], check=True, text=True, stdout=subprocess.PIPE, **options).stdout  # type: ignore[call-overload,no-any-return]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def pip(*arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments)


def needs(metadata: str) -> list[str]:
    """What a package asks for without extras, less what is never imported here: it would also hold others back."""
    asked = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    plainly = [need for need in asked if "extra ==" not in need]
    names = [plain(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in plainly]
    return [need for need, name in zip(plainly, names, strict=True) if not NEVER.match(name) and name not in HOLDS_BACK]


def wanted(work: Path, present: set[str]) -> list[str]:
    """Packages that vLLM or the gateway needs and the machine lacks, with their versions."""
    report = work / "report.json"
    if not report.exists():
        (metadata,) = (work / "vllm").glob("vllm-*.dist-info/METADATA")
        asked = [need.partition(";")[0].strip() for need in needs(metadata.read_text())]
        everything = [*(need for need in asked if not need.startswith("torch")), *PINNED, *OURS]
        pip("install", "--dry-run", "--ignore-installed", "--report", report, "--only-binary=:all:", *everything)
    chosen = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    found = [(meta["name"], meta["version"]) for meta in chosen]
    skipped = {plain(p.partition("==")[0]) for p in PINNED}
    return [f"{n}=={v}" for n, v in found if plain(n) not in present | skipped and not NEVER.match(plain(n))]


def entries(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(start of the payload, its size, kind, architecture) of each piece of device code in a library; kind 2 is machine
    code."""
    at = 0
    while (at := data.find(FATBIN, at)) >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        if version != 1 or header != 16 or at + header + size > len(data):
            at += 4
            continue
        place, end = at + header, at + header + size
        while place + 64 <= end:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, place)
            (arch,) = struct.unpack_from("<I", data, place + 28)
            yield place + head, length, kind, arch
            place += head + length
        at = end


def only_sm90(data: bytes) -> bytes:
    """The library with the device code of every other card zeroed."""
    kept = bytearray(data)
    for place, size, kind, arch in entries(data):
        if not (kind == 2 and arch == 90):
            kept[place : place + size] = bytes(size)
    return bytes(kept)


def unneeded(name: str) -> bool:
    """Files of vLLM that are not carried."""
    return (
        name in ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs", "vllm/_qutlass_C.abi3.so")
        or name.startswith(("vllm/third_party/fmha_sm100/", "vllm/third_party/deep_gemm/include/", "vllm/benchmarks/"))
        or (name.startswith("vllm/third_party/deep_gemm/_C.") and "312" not in name)
        or (name.startswith("vllm/model_executor/layers/") and name.endswith(".json") and "/configs/" in name)
    )


def copied(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        bulk = "__pycache__" in name or name.endswith((".pyi", "/RECORD", ".a", ".jpg")) or name.startswith("bin/")
        if path.is_dir() or bulk or unneeded(name) or "mistral_common/data/" in name or "pycountry/locales/" in name:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("vllm/") and name.endswith("_C_stable_libtorch.abi3.so"):
            (target / name).write_bytes(only_sm90(path.read_bytes()))
        else:
            shutil.copy2(path, target / name)


def patched(parse: Path) -> None:
    text = parse.read_text()
    if UUID_ONLY not in text:
        assert text.count(BEFORE) == 1, "another vLLM: look whether it takes a video by name alone"
        parse.write_text(text.replace(BEFORE, UUID_ONLY + BEFORE))


def stub(library: Path, target: Path) -> None:
    """A library of the same name whose functions return 0 and whose data is zero."""
    said = run("nm", "-D", "--defined-only", "--with-symbol-versions", library)
    versions: dict[str, list[str]] = {}
    code: list[str] = []
    seen: set[str] = set()
    for line in said.splitlines():
        parts = line.split()
        if len(parts) < 3 or parts[1] == "A":
            continue
        name, _, version = parts[2].replace("@@", "@").partition("@")
        if name in seen:
            continue
        seen.add(name)
        versions.setdefault(version, []).append(name)
        if parts[1] in "BDRVGSbdr":
            code.append(f".data\n.globl {name}\n.type {name},@object\n.size {name},64\n{name}: .zero 64")
        else:
            code.append(f".text\n.globl {name}\n.type {name},@function\n{name}: xorl %eax,%eax; ret")
    source, script = target.with_suffix(".s"), target.with_suffix(".map")
    source.write_text("\n".join(code) + '\n.section .note.GNU-stack,"",@progbits\n')
    named = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", library))
    command = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-o",
        str(target),
        str(source),
        f"-Wl,-soname,{named[1] if named else library.name}",
    ]
    if any(versions):
        script.write_text("\n".join(f"{v} {{ global: {'; '.join(n)}; }};" for v, n in versions.items() if v))
        command.append(f"-Wl,--version-script={script}")
    run(*command)
    source.unlink()
    script.unlink(missing_ok=True)


def make_av(work: Path, target: Path) -> None:
    pip("download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
        *(f"--platform={p}" for p in PLATFORMS), "-d", work / "wheels", AV)  # fmt: skip
    (wheel,) = (work / "wheels").glob("av-*.whl")
    shutil.unpack_archive(wheel, target, "zip")
    for library in sorted((target / "av.libs").iterdir()):
        if library.name.startswith(KEPT_LIBRARIES):
            run("strip", "--strip-unneeded", library)
        else:
            original = library.rename(work / library.name)
            stub(original, library)
            original.unlink()
    for path in [*target.rglob("*.pyx"), *target.rglob("*.pxd"), *target.rglob("*.pyi")]:
        path.unlink()
    for path in (target / "av").rglob("*.so"):
        run("strip", "--strip-unneeded", path)


def make_site(work: Path, present: set[str], target: Path) -> None:
    if not (work / "vllm").exists():
        pip("download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
            *(f"--platform={p}" for p in PLATFORMS), "-d", work, VLLM)  # fmt: skip
        (wheel,) = work.glob("vllm-*.whl")
        shutil.unpack_archive(wheel, work / "vllm", "zip")
    patched(work / "vllm" / "vllm" / "multimodal" / "parse.py")
    if not (work / "deps").exists():
        names = wanted(work, present)
        pip("install", "--no-deps", "--no-compile", "--target", work / "deps", "--only-binary=:all:", *names)
    copied(work / "deps", target)
    copied(work / "vllm", target)


def packed(folder: Path, archive: Path, inside: str = ".") -> None:
    with archive.open("wb") as out:
        tar = subprocess.Popen(
            ["tar", "c", "--sort=name", "--owner=0", "--group=0", "-C", folder, inside], stdout=subprocess.PIPE
        )
        subprocess.run(
            ["xz", "-T0", "-6"] if archive.suffix == ".xz" else ["cat"], stdin=tar.stdout, stdout=out, check=True
        )
        assert tar.wait() == 0, f"tar failed for {folder}"
    print(archive.name, archive.stat().st_size, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, required=True, help="what the machine has")
    parser.add_argument("--clips", type=Path, required=True, help="folder with MP4 clips")
    parser.add_argument("--work", type=Path, default=Path("h200-bundle"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    (args.out / "modelinfos").mkdir(parents=True, exist_ok=True)
    present = {plain(name) for name in re.split(r"[,\n]", args.packages.read_text()) if name.strip()}
    for name, make in (("site", lambda t: make_site(args.work, present, t)), ("av", lambda t: make_av(args.work, t))):
        if not (args.out / f"{name}.tar.xz").exists():
            shutil.rmtree(args.work / name, ignore_errors=True)
            (args.work / name).mkdir()
            make(args.work / name)
            packed(args.work / name, args.out / f"{name}.tar.xz")
    make_model(args.work / "model", args.work / "deps")
    packed(args.work, args.out / "model.tar.xz", "model")
    shutil.copytree(
        args.clips,
        args.work / "clips",
        dirs_exist_ok=True,
        ignore=lambda _, n: [x for x in n if not x.endswith(".mp4")],
    )
    packed(args.work, args.out / "clips.tar", "clips")


if __name__ == "__main__":
    main()
