#!/usr/bin/env bash
# Run a command under mpirun across several hosts that are all on this machine.
#
#   tests/cluster/run.sh HOSTS PPN RATE COMMAND...      for example   4 2 1gbit .venv/bin/python -m bench.sweep
#
# Each host is a network namespace with one link, at RATE in both directions, to a bridge that joins them, and with
# a host name and shared memory of its own: what ranks on two hosts tell each other crosses the links. The bytes that
# each link carried are printed at the end. MPIRUN names the mpirun; the default is the one beside the command.
# Without root, ip, tc or namespaces it says so and does nothing.
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "usage: $0 HOSTS PPN RATE COMMAND..." >&2
    exit 2
fi
hosts=$1 ppn=$2 rate=$3
shift 3

skip() {
    echo "cluster: skipped: $1"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip tc unshare; do
    [ -n "$(command -v $tool)" ] || skip "there is no $tool (Debian: apt-get install iproute2 util-linux)"
done

beside=$(dirname "$(command -v "$1")")/mpirun
mpirun=${MPIRUN:-$([ -x "$beside" ] && echo "$beside" || echo mpirun)}

id=cb$$
folder=$(mktemp -d)
made=()

end() {
    for name in "${made[@]}"; do ip netns delete "$name" 2>/dev/null || true; done
    ip link delete "${id}br" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT

ip netns add "${id}n0" 2>"$folder/why" || skip "no network namespace can be made here: $(cat "$folder/why")"
made+=("${id}n0")
for ((host = 1; host < hosts; host++)); do
    ip netns add "${id}n$host"
    made+=("${id}n$host")
done

# A queue that holds 50 ms at most, and single packets of whatever size the kernel makes of TCP segments.
shape() {
    "$@" tc qdisc replace dev "$device" root tbf rate "$rate" burst 256kb latency 50ms
}

ip link add "${id}br" type bridge
ip link set "${id}br" up
for ((host = 0; host < hosts; host++)); do
    name=${id}n$host address=10.77.0.$((host + 1))
    ip link add "${id}v$host" type veth peer name eth0 netns "$name"
    ip link set "${id}v$host" master "${id}br" up
    ip netns exec "$name" ip address add "$address/24" dev eth0
    ip netns exec "$name" ip link set lo up
    ip netns exec "$name" ip link set eth0 up
    device=${id}v$host shape
    device=eth0 shape ip netns exec "$name"
    echo "$address $name" >>"$folder/names"
    echo "$address:$ppn" >>"$folder/mpich"
    echo "$address slots=$ppn" >>"$folder/openmpi"
done

# Takes the place of ssh: `agent [options] HOST COMMAND`.
cat >"$folder/agent" <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do
    case \$1 in -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;; *) shift ;; esac
done
host=\$1
shift
name=\$(awk -v host="\$host" '\$1 == host { print \$2 }' "$folder/names")
exec ip netns exec "\$name" unshare --uts --ipc --mount bash -c '
    hostname "\$0"
    mount -t tmpfs none /dev/shm
    ip netns identify \$\$ >/dev/null
    cd "'"\$PWD"'"
    eval "\$@"' "\$name" "\$*"
AGENT
chmod +x "$folder/agent"

ranks=$((hosts * ppn))
if "$mpirun" --version 2>&1 | grep -qi "open.mpi"; then
    export OMPI_MCA_btl=self,sm,tcp OMPI_MCA_pml=ob1 OMPI_MCA_osc="^ucx"
    export OMPI_MCA_btl_tcp_if_include=eth0 PRTE_MCA_prte_if_include=eth0
    export PRTE_MCA_plm_ssh_agent="$folder/agent" PRTE_MCA_plm_ssh_no_tree_spawn=1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    unset PRTE_MCA_rmaps_default_mapping_policy
    export OMPI_MCA_mpi_yield_when_idle=1 # each host takes the CPUs to be its own: one message took 16 ms
    across=(-n "$ranks" --hostfile "$folder/openmpi" --map-by "ppr:$ppn:node:oversubscribe" --bind-to none)
else
    across=(-launcher ssh -launcher-exec "$folder/agent" -iface eth0 -f "$folder/mpich" -n "$ranks")
fi

status=0
"$folder/agent" 10.77.0.1 "$(printf '%q ' "$mpirun" "${across[@]}" "$@")" || status=$?

for ((host = 0; host < hosts; host++)); do
    sent=$(ip netns exec "${id}n$host" cat /sys/class/net/eth0/statistics/tx_bytes)
    received=$(ip netns exec "${id}n$host" cat /sys/class/net/eth0/statistics/rx_bytes)
    echo "cluster: host $host sent $sent bytes and received $received over its link at $rate"
done
exit $status
