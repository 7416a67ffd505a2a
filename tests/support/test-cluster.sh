#!/usr/bin/env bash
# A real single-node Kubernetes for tests: API server, controllers, scheduler, and a kubelet that runs pods
# with containerd and runc. Needs root and the packages of tests/run, on Debian 12.
#
#   test-cluster.sh build         compiles the cluster's program into the cache, unless it exists
#   test-cluster.sh run DIR       starts a cluster in a new directory and prints `ready` when pods can run;
#                                 stops it, and removes the directory, at the end of standard input
#   test-cluster.sh up DIR        the same in the background, until `down`
#   test-cluster.sh down DIR
#   test-cluster.sh image DIR NAME TREE [CONFIG-JSON]
#                                 adds an image made of a directory to the node, with any host in its name
#
# While it runs, `restart apiserver` or `restart kubelet` on standard input of `run` kills and restarts that
# part; `done` is printed once it is ready.
#
# A cluster has its own PID, mount and network namespaces. When its parent dies for any reason, the kernel ends
# its init, and with it all processes and mounts. Only its cgroups, its end of a veth pair and its directory are
# left to remove. Several clusters can run at once. Each has a number N, which is part of its addresses:
# 10.217.N.1 is the node's (API: port 443, registry without TLS: port 5000), 10.217.N.254 the machine's,
# 10.218.N.1 the API's for pods. There is no kube-proxy and no DNS: pods reach each other by address.
#
# Files in DIR: kubeconfig (the administrator's), token, pki/ca.crt, address, log/.
# TESTCLUSTER_PROGRAMS  directory with other Kubernetes programs: kube-apiserver, kube-controller-manager, kube-scheduler,
#                       kubelet, and perhaps containerd with its shim and ctr, runc, etcd
# TESTCLUSTER_ADMISSION  additional admission plugins; PodSecurityPolicy is left out where labels of namespaces replace it
# TESTCLUSTER_AUDIT     if set, each request with its body is logged as a line of DIR/audit.log
#
# Kubernetes 1.20.2 is the newest version whose complete source is in Debian 12 (`apt-get source kubernetes`).
# Build tags and the edits in `build` remove cloud providers, dockershim, vendors' volume plugins, and the
# OpenAPI document. Compiling takes 5 minutes of CPU time, once.
set -euo pipefail

version=1.20.5+really1.20.2-1.1+deb12u1
cache=${TESTCLUSTER_CACHE:-${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}}
cache=${cache:-${CARGO_TARGET_DIR:-$PWD/target}}/oci-hooks-testcluster
program=$cache/testcluster-1.20.2-1
pause=$cache/pause-1
programs=${TESTCLUSTER_PROGRAMS:+$(realpath "$TESTCLUSTER_PROGRAMS")}
[ -z "$programs" ] || PATH=$programs:$PATH

say() { echo "test-cluster: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Fails if one of these programs is missing.
need() {
    local name missing=()
    for name in "$@"; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    [ ${#missing[@]} = 0 ] || fail "programs are missing: ${missing[*]}: tests/run installs them"
}

# The pause process of a pod, which keeps its namespaces, and reaps orphans in a shared PID namespace.
build_pause() {
    gcc -static -Os -o "$pause.$$" -x c - <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
C
    mv "$pause.$$" "$pause"
}

# Downloads the source package from this machine's mirror, without changing apt's state.
fetch_source() { # directory
    local sources=$1/sources
    mkdir -p "$sources" "$1/lists/partial" "$1/gopath/src/k8s.io"
    "$(dirname "$self")/mirror.sh" debian bookworm deb-src >"$sources/all.list"
    local apt=(apt-get --quiet -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$sources"
        -o "Dir::State::lists=$1/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update >&2
    (cd "$1" && "${apt[@]}" source --download-only "kubernetes=$version" >&2)
    dpkg-source --no-check -x "$1"/kubernetes_*.dsc "$1/gopath/src/k8s.io/kubernetes" >&2
}

# Removes parts of the source in the current directory that the tests' pods never need.
trim_source() {
    # Volume plugins of vendors.
    sed -i -E '/(portworx|scaleio|storageos|"k8s.io\/kubernetes\/pkg\/volume\/fc"|fc\.Probe|iscsi|rbd|glusterfs|quobyte|flocker|cephfs|credentialprovider\/(aws|azure|gcp))/d' \
        cmd/kubelet/app/plugins.go cmd/kube-controller-manager/app/plugins.go
    # The OpenAPI document: its source is generated, and takes long to compile.
    sed -i -E -e '/(generatedopenapi|openapinamer|extensionsapiserver|aggregatorscheme) "k8s.io/d' \
        -e '/genericConfig.OpenAPIConfig.Info.Title/d' -e 's/(genericConfig.OpenAPIConfig) = .*/\1 = nil/' \
        cmd/kube-apiserver/app/server.go
    sed -i -e '/^\tif openAPIConfig == nil {/,/^\t}/d' \
        -e 's/, openAPIConfig\.SecurityDefinitions, err = /, _, err = /' pkg/kubeapiserver/options/authentication.go
    # The vendored reflect2 breaks maps with Go 1.18 and newer; Debian has a newer version.
    rm -r vendor/github.com/modern-go/reflect2
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/reflect2
}

# One program for all four parts, so that common code is linked once.
write_main() {
    mkdir -p cmd/testcluster
    cat >cmd/testcluster/main.go <<'GO'
package main

import (
	"fmt"
	"math/rand"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	rand.Seed(time.Now().UnixNano())
	parts := map[string]func() *cobra.Command{
		"apiserver":   apiserver.NewAPIServerCommand,
		"controllers": controllers.NewControllerManagerCommand,
		"scheduler":   func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":     kubelet.NewKubeletCommand,
	}
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: testcluster apiserver|controllers|scheduler|kubelet [flags]")
		os.Exit(2)
	}
	command := parts[os.Args[1]]()
	os.Args = append(os.Args[:1], os.Args[2:]...)
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
GO
}

build() {
    if [ -x "${programs:-$program}" ] && [ -x "$pause" ]; then return; fi
    mkdir -p "$cache"
    need gcc
    [ -x "$pause" ] || build_pause
    if [ -n "$programs" ] || [ -x "$program" ]; then return; fi
    need go dpkg-source apt-get
    local work
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # the directory is known now
    trap "chmod -R u+w '$work'; rm -rf '$work'" EXIT
    say "download Kubernetes"
    fetch_source "$work"
    cd "$work/gopath/src/k8s.io/kubernetes"
    trim_source
    write_main
    say "compile Kubernetes: some minutes, once"
    local values='' path
    for path in component-base/version client-go/pkg/version; do
        path=k8s.io/kubernetes/vendor/k8s.io/$path
        values+=" -X $path.gitVersion=v1.20.2 -X $path.gitMajor=1 -X $path.gitMinor=20 -X $path.gitTreeState=clean"
    done
    # GOGC: fewer garbage collections save the compiler a tenth of the time.
    GOPATH=$work/gopath GOCACHE=$work/gocache GO111MODULE=off GOFLAGS='' CGO_ENABLED=0 GOGC=400 \
        go build -tags providerless,dockerless -ldflags "-s -w$values" -o "$program.$$" ./cmd/testcluster
    mv "$program.$$" "$program"
    cd /
}

# Outside of the namespaces.

hierarchies() {
    awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/mounts | sort -u
}

make_cgroups() {
    local top file
    hierarchies | while read -r top; do
        mkdir -p "$top/$cable"
        # A v1 cgroup accepts no processes before its CPUs are set.
        for file in cpuset.mems cpuset.cpus; do
            if [ -e "$top/$file" ] && [ -e "$top/cgroup.clone_children" ]; then
                cat "$top/$file" >"$top/$cable/$file"
            fi
        done
    done
}

remove_cgroups() {
    local top
    hierarchies | while read -r top; do
        [ ! -d "$top/$cable" ] || find "$top/$cable" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}

# Removes the leftovers of a cluster of this number outside of its namespaces, which are gone.
remove_rest() {
    ip link delete "$cable" 2>/dev/null || true
    remove_cgroups
}

run() { # directory
    build
    need containerd containerd-shim-runc-v2 ctr etcd docker-registry runc curl openssl ip unshare nsenter flock
    [ -z "$programs" ] || need kube-apiserver kube-controller-manager kube-scheduler kubelet
    [ "$(id -u)" = 0 ] || fail "a cluster needs root"
    [ -x /usr/lib/cni/bridge ] || fail "/usr/lib/cni/bridge is missing: tests/run installs it"
    local dir
    mkdir -p "$1"
    dir=$(cd "$1" && pwd -P)
    case $dir/ in
    /run/* | /var/lib/* | /var/log/*) fail "$dir: the cluster has a directory of its own there" ;;
    esac
    # A number that no running cluster uses: its earlier users have ended.
    local locks=/run/lock/oci-hooks-testcluster number status=0
    mkdir -p "$locks"
    for number in $(seq 1 250); do
        exec 8>"$locks/$number"
        flock --nonblock 8 && break
        [ "$number" != 250 ] || fail "250 clusters run already"
    done
    cable=kubetest$number
    remove_rest
    trap remove_rest EXIT
    make_cgroups
    exec 7</proc/self/ns/net
    unshare --fork --kill-child --pid --mount --mount-proc --net \
        "$BASH" "$self" inside "$dir" "$number" || status=$?
    # All processes have ended, and their mounts are gone.
    rm -rf --one-file-system "$dir"
    return "$status"
}

up() { # directory
    build
    mkdir -p "$1"
    rm -f "$1/control" "$1/answers"
    mkfifo "$1/control"
    : >"$1/answers"
    # Opened for reading and writing, so that the pipe has a writer until `down` ends the cluster.
    setsid "$BASH" "$self" run "$1" 0<>"$1/control" >"$1/answers" 2>"$1/errors" &
    local process=$!
    until grep -qx ready "$1/answers" 2>/dev/null; do
        if ! kill -0 "$process" 2>/dev/null; then
            [ ! -e "$1/errors" ] || cat "$1/errors" >&2
            fail "the cluster did not start"
        fi
        sleep 0.1
    done
    echo "$process" >"$1/process"
    echo "$1/kubeconfig"
}

down() { # directory
    [ -e "$1/process" ] || return 0
    local process
    process=$(cat "$1/process")
    echo end >"$1/control"
    while kill -0 "$process" 2>/dev/null; do sleep 0.1; done
}

# Inside of the namespaces: init of the cluster.

# Sets the commands of the cluster's parts, and the minor version of Kubernetes.
find_parts() {
    apiserver=("$program" apiserver) controllers=("$program" controllers)
    scheduler=("$program" scheduler) kubelet=("$program" kubelet)
    minor=20
    if [ -n "$programs" ]; then
        apiserver=(kube-apiserver) controllers=(kube-controller-manager) scheduler=(kube-scheduler) kubelet=(kubelet)
        minor=$(kubelet --version | sed -n 's/^Kubernetes v1\.\([0-9]*\)\..*/\1/p')
        [ -n "$minor" ] || fail "the version of $programs/kubelet is unknown"
    fi
}

spawn() { # name, command…
    local name=$1
    shift
    # Without the descriptors for the outer network and for the commands.
    "$@" >>"$dir/log/$name.log" 2>&1 </dev/null 7<&- &
    pids[$name]=$!
}

wait_for() { # what, command…
    local deadline=$((SECONDS + 180)) what=$1
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > deadline)); then
            tail -n 5 "$dir"/log/*.log >&2
            fail "$what did not start"
        fi
        sleep 0.1
    done
}

api() { # method, path, [json]
    local method=$1 path=$2
    shift 2
    curl --silent --show-error --fail --max-time 20 --cacert "$dir/pki/ca.crt" \
        -H "Authorization: Bearer $(cat "$dir/token")" -X "$method" \
        ${1:+-H "Content-Type: application/json" --data "$1"} "https://$net.1$path"
}

node_ready() {
    api GET /api/v1/nodes/node1 | tr -d ' \n' |
        grep -q '"type":"Ready","status":"True"\|"status":"True"[^}]*"type":"Ready"'
}

certificates() {
    mkdir -p "$dir/pki"
    cd "$dir/pki"
    local new=(openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256)
    local names=IP:127.0.0.1,IP:$net.1,IP:$services.1,DNS:localhost,DNS:kubernetes.default.svc
    "${new[@]}" -x509 -days 30 -subj /CN=testcluster -keyout ca.key -out ca.crt 2>/dev/null
    "${new[@]}" -subj /CN=kube-apiserver -keyout api.key -out api.csr 2>/dev/null
    openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out api.crt \
        -extfile <(echo "subjectAltName=$names") 2>/dev/null
    openssl genrsa -out sa.key 2048 2>/dev/null
    cd /
}

# Replaces directories of the machine that parts of the cluster write to regardless of their settings.
own_directories() {
    local name
    for name in /run /var/log /var/lib; do
        mount -t tmpfs -o mode=755 tmpfs "$name"
    done
    # The kubelet would set these parameters for the whole machine, so it sees files instead.
    mkdir "$dir/sysctl"
    while read -r name value; do
        [ -e "/proc/sys/$name" ] || continue
        echo "$value" >"$dir/sysctl/${name//\//.}"
        mount --bind "$dir/sysctl/${name//\//.}" "/proc/sys/$name"
    done <<'VALUES'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
VALUES
}

# A bridge for pods, with a veth pair to the machine's network.
network() {
    ip link set lo up
    ip address add "$services.1/32" dev lo
    # A fixed MAC address. Otherwise the bridge would use that of a pod's port, and be unreachable from
    # outside for half a minute after the pod is removed.
    ip link add pods address 02:00:00:00:00:01 type bridge
    ip address add "$net.1/24" dev pods
    local outside=(nsenter --net=/proc/self/fd/7 ip)
    "${outside[@]}" link add "$cable" type veth peer name cable netns 1
    "${outside[@]}" address add "$net.254/24" dev "$cable"
    "${outside[@]}" link set "$cable" up
    ip link set cable master pods
    ip link set cable up
    ip link set pods up
    mkdir "$dir/cni"
    cat >"$dir/cni/10-test.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "testcluster", "plugins": [
 {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$dir/leases", "routes": [{"dst": "0.0.0.0/0"}],
   "ranges": [[{"subnet": "$net.0/24", "rangeStart": "$net.2", "rangeEnd": "$net.250"}]]}}]}
JSON
    # No DNS server listens there, which the kernel reports at once.
    echo "nameserver $net.1" >"$dir/resolv.conf"
}

start_containerd() {
    cat >"$dir/containerd.toml" <<TOML
version = 2
root = "$dir/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.test/pause:1"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
    endpoint = ["http://$net.1:5000"]
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."$net.1:5000"]
    endpoint = ["http://$net.1:5000"]
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."outside.test"]
    endpoint = ["http://$net.254:5000"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
TOML
    spawn containerd containerd --config "$dir/containerd.toml"
    cat >"$dir/registry.yml" <<YAML
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $dir/registry}, delete: {enabled: true}}
http: {addr: "0.0.0.0:5000"}
YAML
    spawn registry env OTEL_TRACES_EXPORTER=none docker-registry serve "$dir/registry.yml"
    wait_for containerd ctr version
    mkdir "$dir/pause"
    cp "$pause" "$dir/pause/pause"
    ctr -n k8s.io images import "$(archive registry.test/pause:1 "$dir/pause" '{"Entrypoint":["/pause"]}')" >/dev/null
}

start_apiserver() {
    local audit=()
    [ -z "${TESTCLUSTER_AUDIT:-}" ] || audit=(--audit-policy-file "$dir/audit.yaml"
        --audit-log-path "$dir/audit.log" --audit-log-mode blocking)
    local admission=NodeRestriction${TESTCLUSTER_ADMISSION:+,$TESTCLUSTER_ADMISSION} more=()
    [ "$minor" -lt 25 ] || admission=${admission/,PodSecurityPolicy/}
    [ "$minor" -ge 24 ] || more+=(--insecure-port 0)
    spawn apiserver "${apiserver[@]}" --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 \
        --advertise-address "$net.1" --secure-port 443 --allow-privileged \
        --tls-cert-file "$dir/pki/api.crt" --tls-private-key-file "$dir/pki/api.key" \
        --client-ca-file "$dir/pki/ca.crt" --token-auth-file "$dir/tokens.csv" --authorization-mode RBAC \
        --service-cluster-ip-range "$services.0/24" --service-account-issuer https://testcluster \
        --service-account-key-file "$dir/pki/sa.key" --service-account-signing-key-file "$dir/pki/sa.key" \
        --kubelet-preferred-address-types InternalIP --anonymous-auth=false \
        --enable-admission-plugins "$admission" "${more[@]}" "${audit[@]}"
    wait_for "the API server" api GET /readyz
}

start_kubelet() {
    local more=()
    [ "$minor" -ge 27 ] || more=(--container-runtime remote
        --container-runtime-endpoint unix:///run/containerd/containerd.sock)
    spawn kubelet "${kubelet[@]}" --config "$dir/kubelet.yaml" --kubeconfig "$dir/kubeconfig" \
        --root-dir "$dir/kubelet" --cert-dir "$dir/kubelet/pki" --node-ip "$net.1" \
        --hostname-override node1 --volume-plugin-dir "$dir/kubelet/plugins" --v 2 "${more[@]}"
}

kubelet_listens() { curl --silent --insecure --max-time 5 --output /dev/null "https://$net.1:10250/healthz"; }

write_settings() {
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/token"
    echo "$(cat "$dir/token"),admin,admin,\"system:masters\"" >"$dir/tokens.csv"
    cat >"$dir/kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$net.1", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: admin, user: {token: $(cat "$dir/token")}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: default}}]
current-context: test
YAML
    chmod 600 "$dir/token" "$dir/tokens.csv" "$dir/kubeconfig"
    echo "$net.1" >"$dir/address"
    # Requests of clients, not of the cluster's own parts.
    cat >"$dir/audit.yaml" <<'YAML'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:nodes"]}
- {level: None, nonResourceURLs: ["*"]}
- {level: None, resources: [{group: coordination.k8s.io}, {group: events.k8s.io}]}
- {level: None, resources: [{resources: [events, nodes, "nodes/status", "pods/status", endpoints, configmaps]}]}
- {level: RequestResponse}
YAML
    cat >"$dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $net.1
port: 10250
healthzPort: 0
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /$cable
cgroupsPerQOS: true
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# Low limits, so that a large disk that is nearly full still has enough room.
evictionHard: {memory.available: 100Mi, nodefs.available: 64Mi, imagefs.available: 64Mi}
syncFrequency: 10s
nodeStatusUpdateFrequency: 1s
volumeStatsAggPeriod: 10s
serializeImagePulls: false
maxPods: 200
resolvConf: $dir/resolv.conf
YAML
    [ "$minor" -lt 27 ] || echo 'containerRuntimeEndpoint: unix:///run/containerd/containerd.sock' >>"$dir/kubelet.yaml"
    [ "$minor" -lt 31 ] || echo 'failCgroupV1: false' >>"$dir/kubelet.yaml"
}

# Init: starts all parts, then executes commands until standard input ends.
inside() { # directory, number
    declare -g dir=$1 net=10.217.$2 services=10.218.$2 cable=kubetest$2
    declare -gA pids=()
    local begin=$SECONDS flags word name
    mkdir -p "$dir"/{log,kubelet,etcd,tmp}
    export TMPDIR=$dir/tmp
    find_parts
    own_directories
    network
    exec 7<&-
    certificates
    write_settings
    start_containerd
    spawn etcd etcd --data-dir "$dir/etcd" --unsafe-no-fsync --log-level error
    start_apiserver
    flags=(--kubeconfig "$dir/kubeconfig" --authentication-kubeconfig "$dir/kubeconfig"
        --authorization-kubeconfig "$dir/kubeconfig" --secure-port 0 --leader-elect=false)
    [ "$minor" -ge 24 ] || flags+=(--port 0)
    spawn controllers "${controllers[@]}" "${flags[@]}" --service-account-private-key-file "$dir/pki/sa.key" \
        --root-ca-file "$dir/pki/ca.crt" --node-monitor-period 5s
    spawn scheduler "${scheduler[@]}" "${flags[@]}"
    start_kubelet
    wait_for "the node" node_ready
    wait_for "the default service account" api GET /api/v1/namespaces/default/serviceaccounts/default
    say "cluster $2 is ready after $((SECONDS - begin)) s"
    echo ready
    while read -r word name && [ "$word" != end ]; do
        case $word/$name in
        restart/apiserver | restart/kubelet)
            kill -KILL "${pids[$name]}"
            wait "${pids[$name]}" 2>/dev/null || true
            "start_$name"
            [ "$name" != kubelet ] || wait_for "the kubelet" kubelet_listens
            echo "done"
            ;;
        *) fail "unknown command: $word $name" ;;
        esac
    done
}

# Images.

# Creates a Docker archive with one layer in a new directory, and prints its path.
archive() { # name, tree, config
    local name=$1 tree=$2 config=$3 new sum
    new=$(mktemp -d)
    tar -C "$tree" --numeric-owner -cf "$new/layer.tar" .
    sum=$(sha256sum "$new/layer.tar" | cut -d' ' -f1)
    cat >"$new/config.json" <<JSON
{"architecture": "$(dpkg --print-architecture)", "os": "linux", "config": $config,
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$sum"]}}
JSON
    echo "[{\"Config\":\"config.json\",\"RepoTags\":[\"$name\"],\"Layers\":[\"layer.tar\"]}]" >"$new/manifest.json"
    tar -C "$new" -cf "$new/image.tar" manifest.json config.json layer.tar
    echo "$new/image.tar"
}

image() { # directory, name, tree, config
    local path=$2 file
    case ${path%%/*} in
    *.* | *:* | localhost) [ "$path" = "${path#*/}" ] || path=${path#*/} ;;
    "$path") path=library/$path ;;
    esac
    file=$(archive "${@:2}")
    skopeo copy --quiet --dest-tls-verify=false "docker-archive:$file" "docker://$(cat "$1/address"):5000/$path"
    rm -r "$(dirname "$file")"
}

self=$(realpath "$0")
case ${1:-}/$# in
build/1) build ;;
run/2 | up/2 | down/2) "$1" "$2" ;;
image/4) image "$2" "$3" "$4" '{}' ;;
image/5) image "$2" "$3" "$4" "$5" ;;
inside/3) inside "$2" "$3" ;;
*)
    say "usage: test-cluster.sh build | run DIR | up DIR | down DIR | image DIR NAME TREE [CONFIG-JSON]"
    exit 2
    ;;
esac
