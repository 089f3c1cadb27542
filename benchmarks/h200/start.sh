#!/bin/bash
# On the GPU machine: unpack what pack.py made, tune the kernel under test, measure. Everything it finds goes to OUT.
#     start.sh BUNDLE OUT GPUS BUDGET [VARIANTS [BOTH [WHOLE]]]
set -u
BUNDLE=$(cd "$1" && pwd); OUT=$2; GPUS=$3; BUDGET=$4; HERE=$(cd "$(dirname "$0")" && pwd); REPO=$(pwd)
WORK=${H200_WORK:-/tmp/h200}; SITE=$WORK/site; mkdir -p $SITE $WORK/run "$OUT"; BEGAN=$(date +%s)
unpack() { xz -T0 -dc "$BUNDLE/$1" | tar x -C "$2"; }
unpack model.tar.xz $WORK & unpack av.tar.xz $SITE & tar xf "$BUNDLE/clips.tar" -C $WORK & unpack site.tar.xz $SITE; wait
PLUGIN=$SITE/cosmos3_few_rows-1.dist-info; mkdir -p $PLUGIN
printf 'Metadata-Version: 2.1\nName: cosmos3-few-rows\nVersion: 1\n' > $PLUGIN/METADATA
printf '[vllm.general_plugins]\ncosmos3_few_rows = few_rows:install\n' > $PLUGIN/entry_points.txt
cp "$HERE/few_rows.py" $SITE/
echo "[$(($(date +%s) - BEGAN)) s] unpacked"
[ -n "${DRY:-}" ] || python3 -m compileall -q -j 0 $SITE > /dev/null 2>&1 &
# An engine's interpreter gets a PYTHONPATH of its own from its supervisor; this adds what was carried.
printf '#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:%s"\nexec python3 "$@"\n' $SITE > $WORK/py; chmod +x $WORK/py
export PYTHONPATH=$SITE:$REPO/src:$REPO/benchmarks:$HERE HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1
export VLLM_USE_DEEP_GEMM=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_HOST_IP=127.0.0.1 VLLM_USE_AOT_COMPILE=0
export VLLM_ENGINE_READY_TIMEOUT_S=600 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; nproc; wait
echo "[$(($(date +%s) - BEGAN)) s] compiled"
[ -n "${DRY:-}" ] || (cd $HERE && CUDA_VISIBLE_DEVICES=0 timeout 200 python3 tune.py $WORK/run/plans.json > "$OUT/tune.log" 2>&1; cp $WORK/run/plans*.json "$OUT/") &
python3 "$HERE/run.py" --out "$OUT" --work $WORK/run --model $WORK/model --clips $WORK/clips --python $WORK/py \
  --known "$BUNDLE/modelinfos" --gpus "$GPUS" --budget $((BUDGET - $(date +%s) + BEGAN)) ${DRY:+--dry} ${5:+--variants "$5"} ${6:+--both "$6"} ${7:+--whole "$7"} ${MEASURE:+--measure "$MEASURE"}
[ -n "${DRY:-}" ] || cat "$OUT/tune.log"
for log in $WORK/run/*/engine.log $WORK/run/*/service.log; do echo "== $log"; tail -c 60000 "$log"; done > "$OUT/logs.txt" 2>/dev/null
xz -T0 -f "$OUT/logs.txt"; xz -T0 -f "$OUT/raw.json"
