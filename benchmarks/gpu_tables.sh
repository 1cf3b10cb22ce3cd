#!/bin/sh
# Runs the CIFAR rows of the papers' tables, which need a GPU, the headline first:
#
#   benchmarks/gpu_tables.sh           # or goes on where it stopped
#   benchmarks/gpu_tables.sh --list    # what is done and what is next
#
# SPDST on CIFAR-10 with ResNet-18 runs 600 rounds with three seeds; then one seed of every
# row, then the others. TFDS_DATA_DIR has CIFAR-10 and CIFAR-100, PYTHON (python) this
# package and JAX for the GPU. Results go to benchmarks/tables and docs/reproduction.
set -u

cd "$(dirname "$0")/.." || exit 2
failed=

table() { # as `python -m benchmarks.table`; a signal ends everything
    "${PYTHON:-python}" -m benchmarks.table "$@" && return
    [ $? -lt 128 ] || exit 130
    failed="$failed $1"
}

table flash_cifar10 --only spdst --seeds 3 "$@"
for seeds in "--seeds 1" ""; do
    for paper in flash spafl fedsparsify; do
        for file in benchmarks/tables/${paper}_*cifar*.py; do
            table "$(basename "$file" .py)" $seeds "$@"
        done
    done
done
[ -z "$failed" ] || { echo "gpu_tables.sh: failed:$failed" >&2 && exit 1; }
