#!/bin/sh
# Runs the benchmarks to measure on a GPU, part by part; nine minutes on an H200.
#
#   benchmarks/gpu.sh          # tables in build/gpu, or in the folder OUT
#   benchmarks/gpu.sh --dry    # the same parts on a CPU as a test, small (peers: one round)
#
# A part is one benchmark with a time limit. The results of a finished part are in a
# folder of its name, and the next call skips it; a part that failed leaves NAME.part
# with its log. PYTHON (default: python) is an interpreter that has this package and JAX
# for the GPU; PEERS (default: PYTHON) is one that has pfl-research and PyTorch, see
# peers/README.md, and without these the part `peers` is left out.
set -u

python=${PYTHON:-python} peers=${PEERS:-${PYTHON:-python}} failed=
root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/build/gpu}
case "$#$*" in
0) dry='' write=--write first="pfl resnet18_100" rest="lenet5_caffe femnist conv4 mlp" ;;
1--dry) dry=yes write='' first=mlp rest='' out=$out/dry ;;
*) echo "gpu.sh: expected --dry or nothing" >&2 && exit 2 ;;
esac
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$root" || exit 2
export XLA_PYTHON_CLIENT_PREALLOCATE=false # the peers share the card

if [ "$dry" ]; then
    export JAX_PLATFORMS=cpu
    echo "A dry run at toy sizes on the CPU: its figures mean nothing."
elif ! "$python" -c "import jax; jax.devices('gpu')" 2>/dev/null; then
    echo "gpu.sh: JAX finds no GPU with $python; --dry needs none" >&2
    exit 2
fi

part() { # NAME SECONDS BENCHMARK [OPTION ...]; of an option given twice, the last counts
    name=$1 limit=$2 && shift 2
    [ -z "$dry" ] || limit=600
    [ ! -e "$out/$name" ] || return 0
    echo "== $name, at most $limit s: python -m benchmarks $*"
    rm -rf "$out/$name.part" && mkdir "$out/$name.part"
    timeout "$limit" "$python" -m benchmarks "$@" --out "$out/$name.part" \
        >"$out/$name.part/log" 2>&1 &
    trap 'kill $!; exit 130' INT TERM
    if wait $!; then
        mv "$out/$name.part" "$out/$name" && cat "$out/$name"/*.md
    else
        tail -n 3 "$out/$name.part/log"
        failed="$failed $name"
    fi
}

programs() { # of a network
    part "programs_$1" 100 programs --only "$1" $write ${dry:+--repeats 1}
}

for network in $first; do programs $network; done
part pfl_1500 80 throughput --only pfl-50 --repeats 30 \
    ${dry:+--only toy --repeats 1}
if "$peers" -c "from importlib import metadata; metadata.version('pfl')" 2>/dev/null; then
    part peers 120 peers.compare --python "$peers" --only pfl --repeats 20 \
        --peers "PyTorch loop" pfl-research ${dry:+--repeats 1}
else
    echo "peers: left out, as $peers has no pfl-research"
fi
part segments 120 throughput --only segments ${dry:+--only toys --repeats 1}
part throughput 120 throughput --only lenet5_spafl lenet5_fedavg resnet18_100 \
    --samples 500 ${dry:+--only toy --samples 32 --repeats 1}
part cohorts 140 throughput --only mlp-1 mlp-10 mlp-100 mlp-1000 mlp-10000 \
    --chunk 1000 ${dry:+--only tiny-1 tiny-10 --repeats 1}
for network in $rest; do programs $network; done

echo "The tables are in $out."
[ -z "$failed" ] || { echo "gpu.sh: failed:$failed" >&2 && exit 1; }
