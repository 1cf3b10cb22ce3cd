#!/bin/sh
# Runs the CIFAR rows of the papers' tables, which need a GPU.
#
#   benchmarks/gpu_tables.sh           # continues where it stopped
#   benchmarks/gpu_tables.sh --list    # what is done and what is next
#
# The first is the main result: SPDST on CIFAR-10 with ResNet-18, 600 rounds, three seeds.
# One seed of every row follows, then the other seeds. TFDS_DATA_DIR is the folder with
# CIFAR-10 and CIFAR-100; PYTHON (default: python) is an interpreter that has this package
# and JAX for the GPU. Results go to benchmarks/tables and docs/reproduction.
set -u

cd "$(dirname "$0")/.." || exit 2
failed=

table() { # `python -m benchmarks.table`; a signal ends the script
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
