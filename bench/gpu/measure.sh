#!/bin/sh
# On the machine with the GPUs: `bench/gpu/measure.sh TOOLS OUT [layers]` serves, sweeps, measures the collectives, asks
# the machine what it is, and leaves one archive in OUT. TOOLS holds loadgen.pyz, sampler.pyz and collectives.pyz, which
# `python -m bench.gpu.example --tools TOOLS` builds: the same files that `invoke bench` pushes to a host.
set -eu
tools=$1 out=$2 layers=${3:-11} port=18500
gpus=$(nvidia-smi -L | grep -c '^GPU')
run=$(mktemp -d)
mkdir -p "$out" "$run/raw"

python3 "$tools/collectives.pyz" --limit 60 --force --out "$run/collectives.json" >"$out/collectives.log" 2>&1 || true
tail -n 3 "$out/collectives.log" | cut -c 1-400

PYTHONUNBUFFERED=1 python3 -m bench.gpu.serve --port $port --ranks "$gpus" --layers "$layers" >"$out/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
i=0
until curl -sf http://127.0.0.1:$port/health >/dev/null; do
  i=$((i + 1)); [ $i -lt 240 ] && kill -0 $server || { tail -n 40 "$out/server.log"; exit 1; }
  sleep 1
done
cat "$out/server.log"
sh -c 'python3 "$0/sampler.pyz" --out "$1/hardware.jsonl" --beside $$ >/dev/null 2>&1 &
  exec python3 "$0/loadgen.pyz" --url http://127.0.0.1:'$port' --out "$1/raw" --self-check \
    --input-len 256 --output-len 256 --warmup 3 --window 20 --drain 15 --repeats 2 --split-test --precision 0.01' "$tools" "$run"
tr '\0' ' ' </proc/$server/cmdline >"$run/argv"
for what in "nvidia-smi" "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC,TEMPERATURE" "nvidia-smi topo -m" \
  "nvidia-smi topo -p2p r" "uname -srvm" "lscpu" "cat /proc/meminfo" "cat /proc/driver/nvidia/version" \
  "cat /proc/sys/kernel/random/boot_id" "python3 -m pip list" "env"; do
  printf '\n@@ %s\n' "$what"
  $what 2>&1 | grep -viE 'key|token|secret|password' | head -c 20000 || true
done >"$run/machine.txt"
kill $server
tar -czf "$out/run.tar.gz" -C "$run" .
ls -l "$out"
