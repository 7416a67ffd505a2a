//! Asking the policy.

use std::path::{Path, PathBuf};

use super::paths::{is_within, open_beneath, resolve};
use super::{Gpus, Policy, PolicyError, Refused};
use crate::container_hook::options::{
    CreateOptions, Device, DeviceRule, Namespace, NetworkMode, capability,
};
use crate::container_hook::volumes::{Propagation, Source, Volume};
use crate::sys::caller::Caller;
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;

impl CreateOptions {
    /// Asks the policy about each option, and replaces what it resolves: the paths of mounts and
    /// devices. What `--gpus` stands for is added.
    ///
    /// So all that is not allowed can be told before anything is done. Paths are asked about once
    /// more, when they are opened.
    ///
    /// # Errors
    ///
    /// Returns everything that is not allowed, not only the first.
    pub fn check(&mut self, policy: &Policy) -> Result<(), PolicyError> {
        let mut refusals = Vec::new();
        policy.privileges(self, &mut refusals);
        policy.security_options(self, &mut refusals);
        policy.resources(self, &mut refusals);
        policy.sysctls(self, &mut refusals);
        policy.annotations(self, &mut refusals);
        for device in &mut self.devices {
            refusals.extend(policy.device(device).err());
        }
        for volume in &mut self.volumes {
            refusals.extend(policy.check_volume(volume).err());
        }
        if self.gpus {
            match policy.gpus.as_ref().map(Gpus::resolve) {
                // The admin's own list: not asked about again.
                Some(Ok((devices, volumes))) => {
                    self.gpu_devices = devices;
                    self.gpu_volumes = volumes;
                }
                Some(Err(refused)) => refusals.push(refused),
                None => refusals
                    .push(refused("--gpus", "its admin says what it stands for in [policy.gpus]")),
            }
        }
        if refusals.is_empty() { Ok(()) } else { Err(PolicyError(refusals)) }
    }
}

impl Policy {
    /// Asks the policy about a volume and replaces the path of a bind mount by what it resolves to.
    ///
    /// # Errors
    ///
    /// Fails if the policy does not allow the mount.
    pub fn check_volume(&self, volume: &mut Volume) -> Result<(), Refused> {
        let option = format!("the volume {}", shown(&volume.source, &volume.target));
        if volume.propagation == Some(Propagation::Shared) && !self.shared_mounts {
            return Err(refused(&format!("{option}:shared"), &allow("shared-mounts = true")));
        }
        let Source::Bind { path, .. } = &mut volume.source else { return Ok(()) };
        self.path(path, &option, "bind-mounts", &self.bind_mounts)
    }

    /// Returns whether the policy allows workflows to mount a file of the host, which has no symbolic
    /// link in its path.
    pub(in crate::container_hook) fn allows_path(&self, resolved: &Path) -> bool {
        is_within(resolved, &self.bind_mounts)
    }

    /// Opens a file or directory that a workflow mounts, beneath the directory that the policy allows,
    /// with the access of whoever called by sudo. Nothing of it is looked up by name any more.
    ///
    /// If nothing is there, a directory is made for `owner`, if given.
    pub(in crate::container_hook) fn open_bind_mount(
        &self,
        resolved: &Path,
        owner: Option<(u32, u32)>,
        caller: Option<&Caller>,
    ) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.bind_mounts, owner, caller)
    }

    /// Opens a device that a workflow wants, or a directory of devices, in the same way.
    pub(in crate::container_hook) fn open_device(
        &self,
        resolved: &Path,
    ) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.devices, None, None)
    }

    fn device(&self, device: &mut Device) -> Result<(), Refused> {
        let option = format!("--device {}", device.host.display());
        self.path(&mut device.host, &option, "devices", &self.devices)
    }

    fn path(
        &self,
        path: &mut PathBuf,
        option: &str,
        key: &str,
        allowed: &[PathBuf],
    ) -> Result<(), Refused> {
        let resolved = resolve(path)
            .map_err(|error| refused(option, &format!("its path leads nowhere ({error})")))?;
        if !is_within(&resolved, allowed) {
            let entry = format!("{key} = [{:?}]", resolved.display().to_string());
            return Err(refused(option, &allow(&entry)));
        }
        *path = resolved;
        Ok(())
    }

    fn privileges(&self, options: &CreateOptions, refusals: &mut Vec<Refused>) {
        if options.security.privileged && !self.privileged {
            refusals.push(refused("--privileged", &allow("privileged = true")));
        }
        let network = (options.network.mode == NetworkMode::Host).then_some(Namespace::Network);
        for namespace in options.host_namespaces.iter().copied().chain(network) {
            if !self.host_namespaces.contains(&namespace) {
                let entry = format!("host-namespaces = [{:?}]", namespace.name());
                refusals.push(refused(&format!("{}=host", namespace.option()), &allow(&entry)));
            }
        }
        let allowed: Vec<_> =
            self.capabilities.iter().filter_map(|name| capability(name).ok()).collect();
        for name in &options.security.cap_add {
            if !allowed.contains(name) && !allowed.iter().any(|allowed| allowed == "ALL") {
                let bare = name.strip_prefix("CAP_").unwrap_or(name);
                let advice = format!("its admin can add {bare:?} to capabilities under [policy]");
                refusals.push(refused(&format!("--cap-add {bare}"), &advice));
            }
        }
        for rule in options.device_rules.iter().map(DeviceRule::to_string) {
            if !self.device_rules.contains(&rule) {
                let entry = format!("device-rules = [{rule:?}]");
                refusals.push(refused(&format!("--device-cgroup-rule {rule:?}"), &allow(&entry)));
            }
        }
    }

    fn security_options(&self, options: &CreateOptions, refusals: &mut Vec<Refused>) {
        let security = &options.security;
        let mut asked: Vec<String> = Vec::new();
        if security.seccomp_unconfined {
            asked.push("seccomp=unconfined".to_owned());
        }
        if security.system_paths_unconfined {
            asked.push("systempaths=unconfined".to_owned());
        }
        if security.no_new_privileges == Some(false) {
            asked.push("no-new-privileges=false".to_owned());
        }
        asked.extend(security.apparmor.iter().map(|profile| format!("apparmor={profile}")));
        for option in asked {
            if !self.security_opts.contains(&option) {
                let entry = format!("security-opts = [{option:?}]");
                refusals.push(refused(&format!("--security-opt {option}"), &allow(&entry)));
            }
        }
    }

    fn resources(&self, options: &CreateOptions, refusals: &mut Vec<Refused>) {
        let resources = &options.resources;
        if resources.oom_kill_disable && !self.oom_protection {
            refusals.push(refused("--oom-kill-disable", &allow("oom-protection = true")));
        }
        if let Some(adj @ ..0) = resources.oom_score_adj
            && !self.oom_protection
        {
            let option = format!("--oom-score-adj {adj}");
            refusals.push(refused(&option, &allow("oom-protection = true")));
        }
        if let Some(pids) = resources.pids
            && self.max_pids != 0
            && (pids == 0 || pids > self.max_pids)
        {
            let (option, entry) = match pids {
                0 => ("--pids-limit without a limit".to_owned(), "max-pids = 0".to_owned()),
                _ => (format!("--pids-limit {pids}"), format!("max-pids = {pids}")),
            };
            refusals.push(refused(&option, &allow(&entry)));
        }
    }

    /// A setting of the kernel has to be one that a container has of its own.
    fn sysctls(&self, options: &CreateOptions, refusals: &mut Vec<Refused>) {
        const IPC: [&str; 8] = [
            "kernel.msgmax",
            "kernel.msgmnb",
            "kernel.msgmni",
            "kernel.sem",
            "kernel.shmall",
            "kernel.shmmax",
            "kernel.shmmni",
            "kernel.shm_rmid_forced",
        ];
        for name in options.sysctls.keys() {
            let own = if name.starts_with("net.") {
                options.network.mode != NetworkMode::Host
            } else if IPC.contains(&name.as_str()) || name.starts_with("fs.mqueue.") {
                !options.host_namespaces.contains(&Namespace::Ipc)
            } else {
                false
            };
            if !own {
                let advice = "it would hold for the whole machine; its admin can set it there";
                refusals.push(refused(&format!("--sysctl {name}"), advice));
            }
        }
    }

    fn annotations(&self, options: &CreateOptions, refusals: &mut Vec<Refused>) {
        let covers = |pattern: &String, key: &str| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => pattern == key,
        };
        for key in options.annotations.keys() {
            if !self.annotations.iter().any(|pattern| covers(pattern, key)) {
                let entry = format!("annotations = [{key:?}]");
                refusals.push(refused(&format!("--annotation {key}"), &allow(&entry)));
            }
        }
    }
}

impl Gpus {
    fn resolve(&self) -> Result<(Vec<Device>, Vec<Volume>), Refused> {
        let wrong = |entry: &str, problem: String| {
            refused("--gpus", &format!("{entry:?} in its [policy.gpus]: {problem}"))
        };
        let devices =
            self.devices.iter().map(|entry| Device::parse(entry).map_err(|e| wrong(entry, e)));
        let volumes = self
            .volumes
            .iter()
            .map(|entry| Volume::parse(entry).map_err(|e| wrong(entry, e.to_string())));
        Ok((devices.collect::<Result<_, _>>()?, volumes.collect::<Result<_, _>>()?))
    }
}

fn refused(option: &str, advice: &str) -> Refused {
    Refused { option: option.to_owned(), advice: advice.to_owned() }
}

fn allow(entry: &str) -> String {
    format!("its admin can allow it with `{entry}` under [policy]")
}

fn shown(source: &Source, target: &str) -> String {
    match source {
        Source::Bind { path, .. } => format!("{}:{target}", path.display()),
        Source::Named(name) => format!("{name}:{target}"),
        Source::Anonymous => target.to_owned(),
    }
}
