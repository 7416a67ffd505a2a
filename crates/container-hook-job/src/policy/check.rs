//! Checks options and volumes against the policy.

use std::path::{Path, PathBuf};

use oci_hooks::cdi::is_device_name;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::apparmor;
use oci_hooks_host::host_file::HostFile;

use super::paths::{expand, is_within, open_beneath, resolve};
use super::{GpuPolicy, Policy, PolicyDenial, PolicyError};
use crate::options::{
    CreateOptions, DeviceOption, EnvOption, GpuOption, HostNamespace, IneffectiveOption, IpcMode,
    NetworkMode, capability,
};
use crate::volumes::{RequestVolume, VolumePropagation, VolumeSource};

impl CreateOptions {
    /// Checks each option against the policy, and resolves the paths of mounts and devices. Adds the devices
    /// of `--gpus`, and replaces a denied `ipc=host`.
    ///
    /// All denials are thus reported before a container is created. Paths are checked again when they are
    /// opened.
    ///
    /// # Errors
    ///
    /// Returns all denials, not only the first.
    pub fn check(&mut self, policy: &Policy) -> Result<(), PolicyError> {
        self.replace_denied(policy);
        let denials = self.denials(policy);
        if denials.is_empty() { Ok(()) } else { Err(PolicyError(denials)) }
    }

    /// Returns all options that the policy denies; resolves the paths and GPUs of the others.
    pub(crate) fn denials(&mut self, policy: &Policy) -> Vec<PolicyDenial> {
        let mut denials = Vec::new();
        policy.privileges(self, &mut denials);
        policy.security_options(self, &mut denials);
        policy.resources(self, &mut denials);
        policy.sysctls(self, &mut denials);
        policy.annotations(self, &mut denials);
        for device in &mut self.devices {
            denials.extend(policy.device(device).err());
        }
        for volume in &mut self.volumes {
            denials.extend(policy.check_volume(volume).err());
        }
        for name in &self.cdi_devices {
            if !policy.allows_cdi_device(name) {
                let entry = policy.allow(&format!("devices = [{name:?}]"));
                denials.push(option_denial(&format!("--device {name}"), &entry));
            }
        }
        if let Some(gpus) = self.gpus.clone() {
            denials.extend(self.add_gpus(&gpus, policy).err());
        }
        denials
    }

    /// Replaces a denied `ipc=host` by a `/dev/shm` as large as the host's. Without AppArmor on the
    /// host, drops a profile that is `unconfined` or allowed.
    fn replace_denied(&mut self, policy: &Policy) {
        // Browsers and PyTorch need space in `/dev/shm`, not the shared memory of other users.
        if !policy.host_namespaces.contains(&HostNamespace::Ipc)
            && self.host_namespaces.remove(&HostNamespace::Ipc)
        {
            self.ipc = IpcMode::Large;
            self.without_effect.push(IneffectiveOption {
                option: "ipc=host",
                reason: "the container has an IPC namespace of its own, and a /dev/shm as large as the \
                         host's",
            });
        }
        // Without AppArmor, all containers are unconfined, and Docker does not set a profile.
        let is_harmless = |profile: &String| {
            profile == "unconfined" || policy.allows_security(&format!("apparmor={profile}"))
        };
        if self.security.apparmor.as_ref().is_some_and(is_harmless) && !apparmor::is_enabled() {
            self.security.apparmor = None;
        }
    }

    /// Adds the devices of `--gpus`: the admin's list, which needs no check against the policy, or CDI
    /// devices.
    fn add_gpus(&mut self, asked: &GpuOption, policy: &Policy) -> Result<(), PolicyDenial> {
        let section = policy.section("policy.gpus");
        if let (GpuOption::All, Some(gpus)) = (asked, &policy.gpus) {
            return self.add_listed_gpus(gpus, &section);
        }
        let names = asked.cdi_devices();
        let denied: Vec<_> = names.iter().filter(|name| !policy.allows_cdi_device(name)).collect();
        if denied.is_empty() {
            self.cdi_devices.extend(names);
            return Ok(());
        }
        let mut advice = policy.allow(&format!("devices = {denied:?}"));
        if *asked == GpuOption::All {
            advice += &format!(", or define the GPU devices under {section}");
        }
        Err(option_denial(&asked.to_string(), &advice))
    }

    /// Adds the devices and files of the admin's list, and the environment variable by which hooks for
    /// NVIDIA's driver detect them, as Docker does.
    fn add_listed_gpus(&mut self, gpus: &GpuPolicy, section: &str) -> Result<(), PolicyDenial> {
        let wrong = |entry: &str, problem: String| {
            option_denial("--gpus", &format!("{entry:?} under {section}: {problem}"))
        };
        for entry in &gpus.devices {
            if is_device_name(entry) {
                self.cdi_devices.push(entry.clone());
                continue;
            }
            let found = expand(entry);
            if found.is_empty() {
                return Err(wrong(entry, "this machine has no such device".to_owned()));
            }
            for device in found {
                self.gpu_devices.push(DeviceOption::parse(&device).map_err(|e| wrong(&device, e))?);
            }
        }
        for entry in &gpus.volumes {
            let volume = RequestVolume::parse(entry).map_err(|e| wrong(entry, e.to_string()))?;
            self.gpu_volumes.push(volume);
        }
        let name = "NVIDIA_VISIBLE_DEVICES";
        if !self.env.iter().any(|variable| variable.name == name) {
            self.env.push(EnvOption { name: name.to_owned(), value: Some("all".to_owned()) });
        }
        Ok(())
    }
}

impl Policy {
    /// Checks a volume against the policy and resolves the path of a bind mount.
    ///
    /// # Errors
    ///
    /// Fails if the policy denies the mount.
    pub fn check_volume(&self, volume: &mut RequestVolume) -> Result<(), PolicyDenial> {
        let option = format!("the volume {}", format_volume(&volume.source, &volume.target));
        if volume.propagation == Some(VolumePropagation::Shared) && !self.shared_mounts {
            return Err(option_denial(
                &format!("{option}:shared"),
                &self.allow("shared-mounts = true"),
            ));
        }
        let VolumeSource::Bind { path, .. } = &mut volume.source else { return Ok(()) };
        self.path(path, &option, "bind-mounts", &self.bind_mounts)
    }

    /// Returns whether the policy allows workflows to mount a path of the host, in which symbolic links have
    /// been resolved.
    pub fn allows_path(&self, resolved: &Path) -> bool {
        is_within(resolved, &self.bind_mounts)
    }

    /// Opens a file or directory that a workflow mounts, beneath the directory that the policy allows. The
    /// mount uses the open descriptor, not the path.
    ///
    /// A missing directory is created for `owner`, if given.
    pub fn open_bind_mount(
        &self,
        resolved: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.bind_mounts, owner)
    }

    /// Opens a device or a directory of devices that a workflow asks for, like [`Policy::open_bind_mount`].
    pub fn open_device(&self, resolved: &Path) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.devices, None)
    }

    fn allows_cdi_device(&self, name: &str) -> bool {
        let mut patterns = self.devices.iter().filter_map(|entry| entry.to_str());
        patterns.any(|pattern| matches_pattern(pattern, name))
    }

    fn device(&self, device: &mut DeviceOption) -> Result<(), PolicyDenial> {
        let option = format!("--device {}", device.host.display());
        self.path(&mut device.host, &option, "devices", &self.devices)
    }

    fn path(
        &self,
        path: &mut PathBuf,
        option: &str,
        key: &str,
        allowed: &[PathBuf],
    ) -> Result<(), PolicyDenial> {
        let resolved = resolve(path).map_err(|error| {
            option_denial(option, &format!("its path cannot be resolved ({error})"))
        })?;
        if !is_within(&resolved, allowed) {
            let entry = format!("{key} = [{:?}]", resolved.display().to_string());
            return Err(option_denial(option, &self.allow(&entry)));
        }
        *path = resolved;
        Ok(())
    }

    fn privileges(&self, options: &CreateOptions, denials: &mut Vec<PolicyDenial>) {
        if options.security.privileged && !self.privileged {
            denials.push(option_denial("--privileged", &self.allow("privileged = true")));
        }
        let network = (options.network.mode == NetworkMode::Host).then_some(HostNamespace::Network);
        for namespace in options.host_namespaces.iter().copied().chain(network) {
            if !self.host_namespaces.contains(&namespace) {
                let entry = format!("host-namespaces = [{:?}]", namespace.name());
                let option = match namespace {
                    HostNamespace::Cgroup => "--cgroupns=host".to_owned(),
                    other => format!("--{}=host", other.name()),
                };
                denials.push(option_denial(&option, &self.allow(&entry)));
            }
        }
        let allowed: Vec<_> =
            self.capabilities.iter().filter_map(|name| capability(name).ok()).collect();
        for name in &options.security.cap_add {
            if !allowed.contains(name) && !allowed.iter().any(|allowed| allowed == "ALL") {
                let bare = name.strip_prefix("CAP_").unwrap_or(name);
                let section = self.section("policy");
                let advice =
                    format!("the admin can add {bare:?} to `capabilities` under {section}");
                denials.push(option_denial(&format!("--cap-add {bare}"), &advice));
            }
        }
        for rule in &options.device_rules {
            if !self.device_rules.iter().any(|allowed| allowed.covers(rule)) {
                let rule = rule.to_string();
                let entry = self.allow(&format!("device-rules = [{rule:?}]"));
                denials.push(option_denial(&format!("--device-cgroup-rule {rule:?}"), &entry));
            }
        }
    }

    fn security_options(&self, options: &CreateOptions, denials: &mut Vec<PolicyDenial>) {
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
            if !self.allows_security(&option) {
                let entry = self.allow(&format!("security-opts = [{option:?}]"));
                denials.push(option_denial(&format!("--security-opt {option}"), &entry));
            }
        }
    }

    fn allows_security(&self, option: &str) -> bool {
        self.security_opts.iter().any(|pattern| matches_pattern(pattern, option))
    }

    fn resources(&self, options: &CreateOptions, denials: &mut Vec<PolicyDenial>) {
        let resources = &options.resources;
        if resources.oom_kill_disable && !self.oom_protection {
            denials.push(option_denial("--oom-kill-disable", &self.allow("oom-protection = true")));
        }
        if let Some(adj @ ..0) = resources.oom_score_adj
            && !self.oom_protection
        {
            let option = format!("--oom-score-adj {adj}");
            denials.push(option_denial(&option, &self.allow("oom-protection = true")));
        }
        // With a maximum in `[policy.max]`, the limit is lowered instead.
        if let Some(pids) = resources.pids
            && self.max.pids().is_none()
            && self.max_pids != 0
            && (pids == 0 || pids > self.max_pids)
        {
            let (option, entry) = match pids {
                0 => ("an unlimited --pids-limit".to_owned(), "max-pids = 0".to_owned()),
                _ => (format!("--pids-limit {pids}"), format!("max-pids = {pids}")),
            };
            denials.push(option_denial(&option, &self.allow(&entry)));
        }
    }

    /// Denies sysctls that are not namespaced, or whose namespace is the host's.
    fn sysctls(&self, options: &CreateOptions, denials: &mut Vec<PolicyDenial>) {
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
                !options.host_namespaces.contains(&HostNamespace::Ipc)
            } else {
                false
            };
            if !own {
                let advice =
                    "the sysctl would apply to the whole machine; its admin can set it there";
                denials.push(option_denial(&format!("--sysctl {name}"), advice));
            }
        }
    }

    fn annotations(&self, options: &CreateOptions, denials: &mut Vec<PolicyDenial>) {
        for key in options.annotations.keys() {
            if !self.annotations.iter().any(|pattern| matches_pattern(pattern, key)) {
                let entry = self.allow(&format!("annotations = [{key:?}]"));
                denials.push(option_denial(&format!("--annotation {key}"), &entry));
            }
        }
    }

    fn allow(&self, entry: &str) -> String {
        format!("the admin can allow it with `{entry}` under {}", self.section("policy"))
    }

    /// Returns the name of a settings table for messages, with its file.
    pub fn section(&self, name: &str) -> String {
        match &self.file {
            Some(file) => format!("[{name}] in {}", file.display()),
            None => format!("[{name}] of the settings"),
        }
    }
}

/// Returns whether a pattern matches a text; a trailing `*` matches any suffix.
pub(super) fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

fn option_denial(option: &str, advice: &str) -> PolicyDenial {
    PolicyDenial { option: option.to_owned(), advice: advice.to_owned() }
}

fn format_volume(source: &VolumeSource, target: &str) -> String {
    match source {
        VolumeSource::Bind { path, .. } | VolumeSource::Work { path, .. } => {
            format!("{}:{target}", path.display())
        }
        VolumeSource::Named(name) => format!("{name}:{target}"),
        VolumeSource::Anonymous => target.to_owned(),
    }
}
