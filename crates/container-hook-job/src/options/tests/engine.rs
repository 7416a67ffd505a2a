//! Turns our options into the request to Docker's engine, to compare it with the recorded one.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::*;
use crate::volumes::{RequestVolume, VolumePropagation, VolumeSource};

/// Returns the body of the request that creates a container, without defaults.
pub fn body(options: &CreateOptions) -> Value {
    let mut body = Map::new();
    let mut set = |key: &str, value: Value| {
        if !is_default(&value) {
            body.insert(key.to_owned(), value);
        }
    };
    set("Hostname", json!(options.hostname));
    set("Domainname", json!(options.domainname));
    set("User", json!(options.user));
    set("WorkingDir", json!(options.workdir));
    set("Labels", json!(options.labels));
    set("StopTimeout", json!(options.stop_timeout.map(|time| time.as_secs())));
    set("StopSignal", json!(options.stop_signal));
    set("Entrypoint", json!(options.entrypoint.as_ref().map(|entrypoint| [entrypoint])));
    let env = options.env.iter().map(|variable| match &variable.value {
        Some(value) => format!("{}={value}", variable.name),
        None => variable.name.clone(),
    });
    set("Env", env.collect());
    let anonymous =
        options.volumes.iter().filter(|volume| volume.source == VolumeSource::Anonymous);
    set("Volumes", anonymous.map(|volume| (volume.target.clone(), json!({}))).collect());
    set("Healthcheck", healthcheck(&options.health));
    let ports = options.network.expose.iter();
    set("ExposedPorts", ports.map(|p| (format!("{}/{}", p.port, p.protocol), json!({}))).collect());
    set("Aliases", json!(options.network.aliases));
    set("HostConfig", host_config(options));
    Value::Object(body)
}

fn healthcheck(health: &HealthOptions) -> Value {
    let nanoseconds =
        |time: Option<Duration>| time.map(|time| u64::try_from(time.as_nanos()).unwrap());
    let test = match (&health.command, health.disabled) {
        (Some(command), _) => json!(["CMD-SHELL", command]),
        (None, true) => json!(["NONE"]),
        (None, false) => Value::Null,
    };
    object([
        ("Test", test),
        ("Interval", json!(nanoseconds(health.interval))),
        ("Timeout", json!(nanoseconds(health.timeout))),
        ("StartPeriod", json!(nanoseconds(health.start_period))),
        ("StartInterval", json!(nanoseconds(health.start_interval))),
        ("Retries", json!(health.retries)),
    ])
}

fn host_config(options: &CreateOptions) -> Value {
    let (resources, security, network) = (&options.resources, &options.security, &options.network);
    let host = |namespace| options.host_namespaces.contains(&namespace).then_some("host");
    let swap = resources.memory_swap.map(|swap| match swap {
        SwapLimit::Unlimited => -1,
        SwapLimit::Bytes(bytes) => bytes.cast_signed(),
    });
    let devices = options.devices.iter().map(|device| {
        json!({
            "PathOnHost": device.host,
            "PathInContainer": device.container,
            "CgroupPermissions": device.access.to_string(),
        })
    });
    let limit = |limit: u64| limit.cast_signed();
    let ulimits = options.ulimits.iter().map(|ulimit| {
        json!({"Name": ulimit.name, "Hard": limit(ulimit.hard), "Soft": limit(ulimit.soft)})
    });
    let hosts = network.hosts.iter().map(|host| match host.address {
        HostAddress::Address(address) => format!("{}:{address}", host.name),
        HostAddress::Gateway => format!("{}:host-gateway", host.name),
    });
    let tmpfs = options.tmpfs.iter().map(|t| (t.target.clone(), json!(t.options.join(","))));
    let binds = options.volumes.iter().filter_map(format_bind);
    let mounts = options.volumes.iter().filter_map(mount);
    let security_opts = [
        security.seccomp_unconfined.then(|| "seccomp=unconfined".to_owned()),
        security.apparmor.as_ref().map(|profile| format!("apparmor={profile}")),
        security.no_new_privileges.map(|on| format!("no-new-privileges={on}")),
        security.system_paths_unconfined.then(|| "systempaths=unconfined".to_owned()),
    ];
    let gpus = options.gpus.iter().map(|gpus| {
        let (count, ids) = match gpus {
            GpuOption::All => (-1, None),
            GpuOption::Count(count) => (i64::from(*count), None),
            GpuOption::Devices(ids) => (0, Some(ids)),
        };
        json!({"Driver": "", "Count": count, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}})
    });
    let cdi = Some(&options.cdi_devices).filter(|names| !names.is_empty()).map(|names| {
        json!({"Driver": "cdi", "Count": 0, "DeviceIDs": names, "Capabilities": null, "Options": null})
    });
    object([
        ("NanoCpus", json!(resources.nano_cpus)),
        ("CpuShares", json!(resources.cpu_shares)),
        ("CpuPeriod", json!(resources.cpu_period)),
        ("CpuQuota", json!(resources.cpu_quota)),
        ("CpusetCpus", json!(resources.cpuset_cpus)),
        ("CpusetMems", json!(resources.cpuset_mems)),
        ("Memory", json!(resources.memory_bytes)),
        ("MemoryReservation", json!(resources.memory_reservation_bytes)),
        ("MemorySwap", json!(swap)),
        ("MemorySwappiness", json!(resources.memory_swappiness)),
        ("PidsLimit", json!(resources.pids)),
        ("OomKillDisable", json!(resources.oom_kill_disable)),
        ("OomScoreAdj", json!(resources.oom_score_adj)),
        ("BlkioWeight", json!(resources.blkio_weight)),
        ("ShmSize", json!(options.shm_size_bytes)),
        ("Ulimits", ulimits.collect()),
        ("Sysctls", json!(options.sysctls)),
        ("GroupAdd", json!(options.groups)),
        ("Init", options.init.map_or(Value::Null, |init| json!([init]))),
        ("IpcMode", json!(host(HostNamespace::Ipc))),
        ("PidMode", json!(host(HostNamespace::Pid))),
        ("UTSMode", json!(host(HostNamespace::Uts))),
        ("CgroupnsMode", json!(host(HostNamespace::Cgroup))),
        ("Privileged", json!(security.privileged)),
        ("CapAdd", json!(security.cap_add)),
        ("CapDrop", json!(security.cap_drop)),
        ("SecurityOpt", security_opts.into_iter().flatten().collect()),
        ("Devices", devices.collect()),
        ("DeviceCgroupRules", options.device_rules.iter().map(ToString::to_string).collect()),
        ("DeviceRequests", gpus.chain(cdi).collect()),
        ("ExtraHosts", hosts.collect()),
        ("Dns", json!(network.dns)),
        ("DnsOptions", json!(network.dns_options)),
        ("DnsSearch", json!(network.dns_search)),
        ("Binds", binds.collect()),
        ("Mounts", mounts.collect()),
        ("Tmpfs", tmpfs.collect()),
        ("ReadonlyRootfs", json!(options.read_only)),
        ("Annotations", json!(options.annotations)),
    ])
}

/// Returns a volume in the notation of `--volume`, modes in a fixed order; none for other kinds of volumes.
fn format_bind(volume: &RequestVolume) -> Option<String> {
    let source = match &volume.source {
        VolumeSource::Bind { path, create: true } => path.to_str().unwrap(),
        VolumeSource::Named(name) => name,
        VolumeSource::Bind { create: false, .. }
        | VolumeSource::Work { .. }
        | VolumeSource::Anonymous => {
            return None;
        }
    };
    let mut modes = Vec::new();
    modes.extend((!volume.copy).then_some("nocopy"));
    modes.extend(volume.read_only.then_some("ro"));
    modes.extend(volume.propagation.map(propagation));
    Some([source, &volume.target, &modes.join(",")].join(":").trim_end_matches(':').to_owned())
}

/// Returns a bind mount of `--mount`.
fn mount(volume: &RequestVolume) -> Option<Value> {
    let VolumeSource::Bind { path, create: false } = &volume.source else { return None };
    let propagation = json!(volume.propagation.map(propagation));
    Some(object([
        ("Type", json!("bind")),
        ("Source", json!(path)),
        ("Target", json!(volume.target)),
        ("ReadOnly", json!(volume.read_only)),
        ("BindOptions", object([("Propagation", propagation)])),
    ]))
}

fn propagation(propagation: VolumePropagation) -> &'static str {
    match propagation {
        VolumePropagation::Shared => "rshared",
        VolumePropagation::Slave => "rslave",
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !is_default(value));
    fields.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

/// Brings a request of Docker's command line into the form of [`body`], and removes options that we accept
/// without effect.
pub fn normalize_body(mut body: Value, options: &CreateOptions) -> Value {
    for idle in &options.without_effect {
        let (top, below): (&[&str], &[&str]) = match idle.option {
            "attach" => (&["AttachStdin", "AttachStdout", "AttachStderr"], &[]),
            "interactive" => (&["AttachStdin", "OpenStdin", "StdinOnce"], &[]),
            "tty" => (&["Tty"], &[]),
            "log-driver" | "log-opt" => (&[], &["LogConfig"]),
            "disable-content-trust" | "kernel-memory" | "quiet" => (&[], &[]),
            "publish-all" => (&[], &["PublishAllPorts"]),
            "restart" => (&[], &["RestartPolicy"]),
            other => panic!("--{other} has no effect here; what does Docker send for it?"),
        };
        top.iter().for_each(|key| remove(&mut body, key));
        below.iter().for_each(|key| remove(&mut body["HostConfig"], key));
    }
    if let Some(networks) = body.as_object_mut().unwrap().remove("NetworkingConfig") {
        body["Aliases"] = networks["EndpointsConfig"]["jobnet"]["Aliases"].clone();
    }
    if !options.network.publish.is_empty() {
        remove(&mut body, "ExposedPorts");
        remove(&mut body["HostConfig"], "PortBindings");
    }
    if let Some(GpuOption::Devices(ids)) = &options.gpus {
        // Docker's command line reads the second element of an unquoted list as a number; its engine then
        // fails.
        let request = &mut body["HostConfig"]["DeviceRequests"][0];
        (request["Count"], request["DeviceIDs"]) = (json!(0), json!(ids));
    }
    if body.get("HostConfig").is_some() {
        normalize_host_config(&mut body);
    }
    body.as_object().unwrap().iter().filter(|(_, value)| !is_default(value)).map(clone).collect()
}

fn normalize_host_config(body: &mut Value) {
    let mut host = body["HostConfig"].take();
    // `body` omits these defaults, which are also ours.
    for (key, default) in
        [("IpcMode", "private"), ("CgroupnsMode", "private"), ("UsernsMode", "host")]
    {
        if host[key] == default {
            remove(&mut host, key);
        }
    }
    if host["MaskedPaths"] == json!([]) {
        host["SecurityOpt"] = json!(["systempaths=unconfined"]);
        remove(&mut host, "MaskedPaths");
        remove(&mut host, "ReadonlyPaths");
    }
    let init = host["Init"].take();
    if !init.is_null() {
        host["Init"] = json!([init]);
    }
    if let Value::Array(list) = &mut host["SecurityOpt"] {
        list.retain(|option| !option.as_str().unwrap().starts_with("label"));
        for option in list {
            *option = json!(option.as_str().unwrap().replace(':', "="));
        }
    }
    if let Value::Array(binds) = &mut host["Binds"] {
        for bind in binds {
            let mut parts: Vec<_> = bind.as_str().unwrap().split(':').map(str::to_owned).collect();
            if let Some(modes) = parts.get_mut(2) {
                let kept = modes.split(',').filter(|mode| !matches!(*mode, "z" | "Z" | "rw"));
                *modes = kept.collect::<Vec<_>>().join(",");
            }
            *bind = json!(parts.join(":").trim_end_matches(':'));
        }
    }
    let Value::Array(mounts) = host["Mounts"].take() else {
        body["HostConfig"] =
            host.as_object().unwrap().iter().filter(|(_, v)| !is_default(v)).map(clone).collect();
        return;
    };
    for mount in mounts {
        let (kind, source, target) = (&mount["Type"], &mount["Source"], &mount["Target"]);
        let target = target.as_str().unwrap();
        match (kind.as_str().unwrap(), source.as_str()) {
            ("volume", None) => body["Volumes"] = json!({target: {}}),
            ("volume", Some(source)) => {
                let mode = if mount["VolumeOptions"]["NoCopy"] == true { ":nocopy" } else { "" };
                host["Binds"] = json!([format!("{source}:{target}{mode}")]);
            }
            ("tmpfs", _) => {
                let options = &mount["TmpfsOptions"];
                let size = options["SizeBytes"].as_u64().map(|size| format!("size={size}"));
                let mode = options["Mode"].as_u64().map(|mode| format!("mode={mode:o}"));
                host["Tmpfs"] = json!({target: size.or(mode)});
            }
            _ => host["Mounts"] = json!([mount]),
        }
    }
    body["HostConfig"] =
        host.as_object().unwrap().iter().filter(|(_, v)| !is_default(v)).map(clone).collect();
}

fn clone((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

fn remove(value: &mut Value, key: &str) {
    if let Some(object) = value.as_object_mut() {
        object.remove(key);
    }
}
