//! All flags of `docker create` (Docker 28.2).

use super::value::key_value;
use super::{CreateOptions, device, mount, network, process, resources, security};

/// A flag of `docker create`.
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub action: FlagAction,
}

/// The effect of a flag and its value.
pub enum FlagAction {
    Value(fn(&mut CreateOptions, &str) -> Result<(), String>),
    Switch(fn(&mut CreateOptions, bool)),
    /// Rejects the flag, which takes a value, for this reason.
    RefusedValue(&'static str),
    /// Rejects the switch for this reason.
    RefusedSwitch(&'static str),
    /// Accepts the values that the function allows, without effect for this reason.
    IdleValue(fn(&str) -> Result<(), String>, &'static str),
    /// Accepts the switch, without effect for this reason.
    IdleSwitch(&'static str),
}

use FlagAction::{IdleSwitch, IdleValue, RefusedSwitch, RefusedValue, Switch, Value};

const ADDRESS: &str =
    "the job's network assigns the addresses; use the name of the container instead";
const DETACHED: &str = "containers of a job have no attached terminal";
const FILE: &str =
    "it would read a file of the runner's machine; set each value with --env or --label instead";
const LOG: &str = "the output of each container goes to a log of limited size";
const RATES: &str = "single disks cannot be limited; --blkio-weight applies to all disks";
const REALTIME: &str = "cgroups v2 has no limits for real-time scheduling";
const VERIFY: &str = "images are checked by digest; Docker Content Trust signatures are obsolete";
const UNPUBLISHED: &str = "the containers of a job reach each other's ports without it; publish single ports with --publish";
const WINDOWS: &str = "only Windows containers have it";

/// The action of a flag that sets a field; `$read` parses the value.
macro_rules! set {
    ($($field:ident).+, $read:expr) => {
        Value(|options, value| {
            options.$($field).+ = $read(value)?;
            Ok(())
        })
    };
}

/// The action of a flag that adds to a list or map; `$read` parses the value. In a map, the last
/// value of a key counts.
macro_rules! add {
    ($($field:ident).+, $read:expr) => {
        Value(|options, value| {
            options.$($field).+.extend([$read(value)?]);
            Ok(())
        })
    };
}

/// All flags, in the order of Docker's documentation.
pub const FLAGS: &[Flag] = &[
    flag("add-host", add!(network.hosts, network::added_host)),
    flag("annotation", add!(annotations, key_value)),
    short('a', "attach", IdleValue(stream, DETACHED)),
    flag("blkio-weight", set!(resources.blkio_weight, resources::blkio_weight)),
    flag("blkio-weight-device", RefusedValue(RATES)),
    flag("cap-add", Value(security::cap_add)),
    flag("cap-drop", Value(security::cap_drop)),
    flag("cgroup-parent", RefusedValue("the admin's settings choose the cgroup")),
    flag("cgroupns", Value(security::cgroup)),
    flag("cidfile", RefusedValue("it would write a file on the runner's machine")),
    flag("cpu-count", RefusedValue(WINDOWS)),
    flag("cpu-percent", RefusedValue(WINDOWS)),
    flag("cpu-period", set!(resources.cpu_period, resources::cpu_period)),
    flag("cpu-quota", set!(resources.cpu_quota, resources::cpu_quota)),
    flag("cpu-rt-period", RefusedValue(REALTIME)),
    flag("cpu-rt-runtime", RefusedValue(REALTIME)),
    short('c', "cpu-shares", set!(resources.cpu_shares, resources::cpu_shares)),
    flag("cpus", set!(resources.nano_cpus, resources::cpus)),
    flag("cpuset-cpus", set!(resources.cpuset_cpus, resources::cpuset)),
    flag("cpuset-mems", set!(resources.cpuset_mems, resources::cpuset)),
    flag("device", Value(device::device)),
    flag("device-cgroup-rule", add!(device_rules, device::rule)),
    flag("device-read-bps", RefusedValue(RATES)),
    flag("device-read-iops", RefusedValue(RATES)),
    flag("device-write-bps", RefusedValue(RATES)),
    flag("device-write-iops", RefusedValue(RATES)),
    flag("disable-content-trust", IdleSwitch(VERIFY)),
    flag("dns", add!(network.dns, network::address)),
    flag("dns-opt", add!(network.dns_options, network::resolver_word)),
    flag("dns-option", add!(network.dns_options, network::resolver_word)),
    flag("dns-search", add!(network.dns_search, network::search_domain)),
    flag("domainname", set!(domainname, process::kernel_name)),
    flag("entrypoint", set!(entrypoint, process::entrypoint)),
    short('e', "env", Value(process::env)),
    flag("env-file", RefusedValue(FILE)),
    flag("expose", Value(network::expose)),
    flag("gpus", set!(gpus, device::gpus)),
    flag("group-add", add!(groups, process::group)),
    flag("health-cmd", set!(health.command, process::non_empty)),
    flag("health-interval", set!(health.interval, process::time)),
    flag("health-retries", set!(health.retries, process::retries)),
    flag("health-start-interval", set!(health.start_interval, process::time)),
    flag("health-start-period", set!(health.start_period, process::time)),
    flag("health-timeout", set!(health.timeout, process::time)),
    flag("help", RefusedSwitch("it shows a help text instead of making a container")),
    short('h', "hostname", set!(hostname, process::kernel_name)),
    flag("init", Switch(|options, on| options.init = Some(on))),
    short('i', "interactive", IdleSwitch(DETACHED)),
    flag("io-maxbandwidth", RefusedValue(WINDOWS)),
    flag("io-maxiops", RefusedValue(WINDOWS)),
    flag("ip", RefusedValue(ADDRESS)),
    flag("ip6", RefusedValue(ADDRESS)),
    flag("ipc", Value(security::ipc)),
    flag("isolation", RefusedValue(WINDOWS)),
    flag("kernel-memory", IdleValue(|_| Ok(()), "the kernel has no such limit any more")),
    short('l', "label", add!(labels, key_value)),
    flag("label-file", RefusedValue(FILE)),
    flag("link", RefusedValue("the containers of a job reach each other by name without it")),
    flag("link-local-ip", RefusedValue(ADDRESS)),
    flag("log-driver", IdleValue(log_driver, LOG)),
    flag("log-opt", IdleValue(log_option, LOG)),
    flag("mac-address", RefusedValue(ADDRESS)),
    short('m', "memory", set!(resources.memory_bytes, resources::memory)),
    flag("memory-reservation", set!(resources.memory_reservation_bytes, resources::size)),
    flag("memory-swap", set!(resources.memory_swap, resources::memory_swap)),
    flag("memory-swappiness", set!(resources.memory_swappiness, resources::memory_swappiness)),
    flag("mount", Value(mount::mount)),
    flag("name", set!(name, process::name)),
    flag("net", Value(network::network)),
    flag("net-alias", add!(network.aliases, network::host_name)),
    flag("network", Value(network::network)),
    flag("network-alias", add!(network.aliases, network::host_name)),
    flag("no-healthcheck", Switch(|options, on| options.health.disabled = on)),
    flag("oom-kill-disable", Switch(|options, on| options.resources.oom_kill_disable = on)),
    flag("oom-score-adj", set!(resources.oom_score_adj, resources::oom_score_adj)),
    flag("pid", Value(security::pid)),
    flag("pids-limit", set!(resources.pids, resources::pids)),
    flag("platform", set!(platform, process::platform)),
    flag("privileged", Switch(|options, on| options.security.privileged = on)),
    short('p', "publish", add!(network.publish, network::publish)),
    short('P', "publish-all", IdleSwitch(UNPUBLISHED)),
    flag("pull", set!(pull, process::pull)),
    short('q', "quiet", IdleSwitch("the progress of a pull is always logged")),
    flag("read-only", Switch(|options, on| options.read_only = on)),
    flag("restart", IdleValue(restart, "containers of a job are never restarted")),
    flag("rm", IdleSwitch("each container is removed at the end of its job or step")),
    flag("runtime", RefusedValue("the admin's settings choose the runtime")),
    flag("security-opt", Value(security::security_opt)),
    flag("shm-size", set!(shm_size_bytes, resources::size)),
    flag("stop-signal", set!(stop_signal, process::stop_signal)),
    flag("stop-timeout", set!(stop_timeout, process::stop_timeout)),
    flag("storage-opt", RefusedValue("there are no storage drivers with options")),
    flag("sysctl", add!(sysctls, process::sysctl)),
    flag("tmpfs", Value(mount::tmpfs)),
    short('t', "tty", IdleSwitch(DETACHED)),
    flag("ulimit", Value(resources::ulimit)),
    flag("use-api-socket", RefusedSwitch("there is no daemon with a socket")),
    short('u', "user", set!(user, process::non_empty)),
    flag("userns", Value(security::user)),
    flag("uts", Value(security::uts)),
    short('v', "volume", add!(volumes, mount::volume)),
    flag("volume-driver", IdleValue(volume_driver, "all volumes are local")),
    flag("volumes-from", RefusedValue("mount each of the volumes with --volume instead")),
    short('w', "workdir", set!(workdir, process::workdir)),
];

const fn flag(name: &'static str, action: FlagAction) -> Flag {
    Flag { name, short: None, action }
}

const fn short(short: char, name: &'static str, action: FlagAction) -> Flag {
    Flag { name, short: Some(short), action }
}

fn stream(value: &str) -> Result<(), String> {
    match value.to_ascii_lowercase().as_str() {
        "stdin" | "stdout" | "stderr" => Ok(()),
        _ => Err("must be stdin, stdout or stderr".to_owned()),
    }
}

fn restart(value: &str) -> Result<(), String> {
    match value {
        "" | "no" | "always" | "unless-stopped" | "on-failure" => Ok(()),
        _ if value
            .strip_prefix("on-failure:")
            .is_some_and(|count| count.parse::<u32>().is_ok()) =>
        {
            Ok(())
        }
        _ => Err("must be no, always, unless-stopped or on-failure[:COUNT]".to_owned()),
    }
}

fn volume_driver(value: &str) -> Result<(), String> {
    match value {
        "" | "local" => Ok(()),
        _ => Err("must be local: there are no volume plugins".to_owned()),
    }
}

fn log_driver(value: &str) -> Result<(), String> {
    match value {
        "" | "json-file" | "local" | "none" => Ok(()),
        _ => Err("must be json-file, local or none: logs stay on the runner's machine".to_owned()),
    }
}

fn log_option(value: &str) -> Result<(), String> {
    match value.split_once('=') {
        Some((
            "max-size" | "max-file" | "compress" | "mode" | "max-buffer-size" | "tag" | "labels"
            | "labels-regex" | "env" | "env-regex",
            _,
        )) => Ok(()),
        _ => {
            Err("is not an option of the log drivers json-file and local: leave it out".to_owned())
        }
    }
}
