#!/bin/sh
# Runs a SLURM of one node, without cgroups, accounting or a service of the system:
#
#   apt-get install slurm-wlm munge
#   scripts/one_node_slurm.sh start FOLDER && . FOLDER/environment
#   sinfo; srun -n 2 hostname
#   scripts/one_node_slurm.sh stop FOLDER
#
# It is for tests, as root in a container. FOLDER, which must be new, gets the
# configuration, the key, the state and the logs. CPUS (4) is how many CPUs the node
# claims to have, PORT (6817) the controller's port; the node's is the next one.
set -eu

fail() {
    echo "one_node_slurm.sh: $*" >&2
    exit 2
}

[ $# = 2 ] || fail "expected start FOLDER or stop FOLDER"
action=$1 folder=$2

end() { # the daemon of a pid file, and waits for it
    [ -s "$folder/$1.pid" ] || return 0
    pid=$(cat "$folder/$1.pid")
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
}

stop() {
    end slurmctld
    end slurmd
    end munged
}

until_true() { # for at most 30 seconds
    for _ in $(seq 150); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.2
    done
    return 1
}

give_up() {
    tail -n 5 "$folder"/*.log >&2 || true
    stop
    fail "$* (the end of the logs is above)"
}

write_configuration() {
    host=$(hostname -s) port=${PORT:-6817}
    cat >"$folder/slurm.conf" <<EOF
ClusterName=one_node
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=10
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=${CPUS:-4}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
    echo "export SLURM_CONF=$folder/slurm.conf" >"$folder/environment"
}

start() {
    [ "$(id -u)" = 0 ] || fail "expected to run as root"
    for program in munged slurmctld slurmd; do
        command -v $program >/dev/null || fail "no $program: apt-get install slurm-wlm munge"
    done
    mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
    [ -z "$(ls -A "$folder")" ] || fail "$folder is not empty"
    mkdir "$folder/state" "$folder/spool"
    write_configuration
    . "$folder/environment"
    # Only this node has the key. --force, as munged would not run as root otherwise.
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
        --seed-file="$folder/munged.seed" 2>"$folder/munged_start.log" ||
        give_up "munged does not start"
    slurmctld || give_up "slurmctld does not start"
    slurmd || give_up "slurmd does not start"
    until_true sh -c "sinfo -h -o %T | grep -qx idle" || give_up "the node does not come up"
}

case $action in
start) start ;;
stop) folder=$(cd "$folder" && pwd) && stop ;;
*) fail "$action: expected start or stop" ;;
esac
