//! Asking the policy.

use std::path::{Path, PathBuf};

use super::paths::{expand, is_within, open_beneath, resolve};
use super::{Denied, Gpus, Policy, PolicyError};
use crate::container_hook::options::{
    CreateOptions, Device, DeviceRule, Namespace, NetworkMode, Variable, WithoutEffect, capability,
};
use crate::container_hook::volumes::{Propagation, Source, Volume};
use crate::sys::apparmor;
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;

impl CreateOptions {
    /// Asks the policy about each option, and replaces what it resolves: the paths of mounts and
    /// devices. What `--gpus` stands for is added, and what has a harmless meaning gets that.
    ///
    /// So all that is not allowed can be told before anything is done. Paths are asked about once
    /// more, when they are opened.
    ///
    /// # Errors
    ///
    /// Returns everything that is not allowed, not only the first.
    pub fn check(&mut self, policy: &Policy) -> Result<(), PolicyError> {
        self.soften(policy);
        let denials = self.denials(policy);
        if denials.is_empty() { Ok(()) } else { Err(PolicyError(denials)) }
    }

    /// Returns everything that the policy does not allow, and resolves the rest.
    pub(in crate::container_hook) fn denials(&mut self, policy: &Policy) -> Vec<Denied> {
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
        if self.gpus {
            denials.extend(self.add_gpus(policy).err());
        }
        denials
    }

    /// Gives options that the policy does not allow the meaning that they mostly have, where that needs
    /// nothing of the host.
    fn soften(&mut self, policy: &Policy) {
        // Browsers and PyTorch want room in `/dev/shm`, not other people's shared memory.
        if !policy.host_namespaces.contains(&Namespace::Ipc)
            && self.host_namespaces.remove(&Namespace::Ipc)
        {
            self.without_effect.push(WithoutEffect {
                option: "ipc=host",
                reason: "the container has an IPC namespace of its own, and a /dev/shm as large as the \
                         host's",
            });
        }
        // Where there is no AppArmor each container is unconfined, and Docker asks for no profile.
        let is_harmless = |profile: &String| {
            profile == "unconfined" || policy.allows_security(&format!("apparmor={profile}"))
        };
        if self.security.apparmor.as_ref().is_some_and(is_harmless) && !apparmor::is_enabled() {
            self.security.apparmor = None;
        }
    }

    /// Adds what `--gpus` stands for, and the variable by which hooks for NVIDIA's driver know that it was
    /// asked for, as Docker does.
    fn add_gpus(&mut self, policy: &Policy) -> Result<(), Denied> {
        let section = policy.section("policy.gpus");
        let Some(gpus) = &policy.gpus else {
            let advice = format!("its admin says what it stands for under {section}");
            return Err(denied("--gpus", &advice));
        };
        if let Some(count) = self.gpu_count {
            let advice = "nobody shares out the devices of one machine; write `--gpus all`";
            return Err(denied(&format!("--gpus {count}"), advice));
        }
        // The admin's own list: not asked about again.
        (self.gpu_devices, self.gpu_volumes) = gpus.resolve(&section)?;
        let name = "NVIDIA_VISIBLE_DEVICES";
        if !self.env.iter().any(|variable| variable.name == name) {
            self.env.push(Variable { name: name.to_owned(), value: Some("all".to_owned()) });
        }
        Ok(())
    }
}

impl Policy {
    /// Asks the policy about a volume and replaces the path of a bind mount by what it resolves to.
    ///
    /// # Errors
    ///
    /// Fails if the policy does not allow the mount.
    pub fn check_volume(&self, volume: &mut Volume) -> Result<(), Denied> {
        let option = format!("the volume {}", shown(&volume.source, &volume.target));
        if volume.propagation == Some(Propagation::Shared) && !self.shared_mounts {
            return Err(denied(&format!("{option}:shared"), &self.allow("shared-mounts = true")));
        }
        let Source::Bind { path, .. } = &mut volume.source else { return Ok(()) };
        self.path(path, &option, "bind-mounts", &self.bind_mounts)
    }

    /// Returns whether the policy allows workflows to mount a file of the host, which has no symbolic
    /// link in its path.
    pub(in crate::container_hook) fn allows_path(&self, resolved: &Path) -> bool {
        is_within(resolved, &self.bind_mounts)
    }

    /// Opens a file or directory that a workflow mounts, beneath the directory that the policy allows.
    /// Nothing of it is looked up by name any more.
    ///
    /// If nothing is there, a directory is made for `owner`, if given.
    pub(in crate::container_hook) fn open_bind_mount(
        &self,
        resolved: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.bind_mounts, owner)
    }

    /// Opens a device that a workflow wants, or a directory of devices, in the same way.
    pub(in crate::container_hook) fn open_device(
        &self,
        resolved: &Path,
    ) -> Result<HostFile, PathError> {
        open_beneath(resolved, &self.devices, None)
    }

    fn device(&self, device: &mut Device) -> Result<(), Denied> {
        let option = format!("--device {}", device.host.display());
        self.path(&mut device.host, &option, "devices", &self.devices)
    }

    fn path(
        &self,
        path: &mut PathBuf,
        option: &str,
        key: &str,
        allowed: &[PathBuf],
    ) -> Result<(), Denied> {
        let resolved = resolve(path)
            .map_err(|error| denied(option, &format!("its path leads nowhere ({error})")))?;
        if !is_within(&resolved, allowed) {
            let entry = format!("{key} = [{:?}]", resolved.display().to_string());
            return Err(denied(option, &self.allow(&entry)));
        }
        *path = resolved;
        Ok(())
    }

    fn privileges(&self, options: &CreateOptions, denials: &mut Vec<Denied>) {
        if options.security.privileged && !self.privileged {
            denials.push(denied("--privileged", &self.allow("privileged = true")));
        }
        let network = (options.network.mode == NetworkMode::Host).then_some(Namespace::Network);
        for namespace in options.host_namespaces.iter().copied().chain(network) {
            if !self.host_namespaces.contains(&namespace) {
                let entry = format!("host-namespaces = [{:?}]", namespace.name());
                let option = format!("{}=host", namespace.option());
                denials.push(denied(&option, &self.allow(&entry)));
            }
        }
        let allowed: Vec<_> =
            self.capabilities.iter().filter_map(|name| capability(name).ok()).collect();
        for name in &options.security.cap_add {
            if !allowed.contains(name) && !allowed.iter().any(|allowed| allowed == "ALL") {
                let bare = name.strip_prefix("CAP_").unwrap_or(name);
                let section = self.section("policy");
                let advice =
                    format!("its admin can add {bare:?} to `capabilities` under {section}");
                denials.push(denied(&format!("--cap-add {bare}"), &advice));
            }
        }
        let allowed = self.device_rules.iter().filter_map(|rule| DeviceRule::parse(rule).ok());
        let allowed: Vec<_> = allowed.collect();
        for rule in &options.device_rules {
            if !allowed.iter().any(|allowed| allowed.covers(rule)) {
                let rule = rule.to_string();
                let entry = self.allow(&format!("device-rules = [{rule:?}]"));
                denials.push(denied(&format!("--device-cgroup-rule {rule:?}"), &entry));
            }
        }
    }

    fn security_options(&self, options: &CreateOptions, denials: &mut Vec<Denied>) {
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
                denials.push(denied(&format!("--security-opt {option}"), &entry));
            }
        }
    }

    fn allows_security(&self, option: &str) -> bool {
        self.security_opts.iter().any(|pattern| covers(pattern, option))
    }

    fn resources(&self, options: &CreateOptions, denials: &mut Vec<Denied>) {
        let resources = &options.resources;
        if resources.oom_kill_disable && !self.oom_protection {
            denials.push(denied("--oom-kill-disable", &self.allow("oom-protection = true")));
        }
        if let Some(adj @ ..0) = resources.oom_score_adj
            && !self.oom_protection
        {
            let option = format!("--oom-score-adj {adj}");
            denials.push(denied(&option, &self.allow("oom-protection = true")));
        }
        // What has a ceiling is lowered to that.
        if let Some(pids) = resources.pids
            && self.max.pids().is_none()
            && self.max_pids != 0
            && (pids == 0 || pids > self.max_pids)
        {
            let (option, entry) = match pids {
                0 => ("--pids-limit without a limit".to_owned(), "max-pids = 0".to_owned()),
                _ => (format!("--pids-limit {pids}"), format!("max-pids = {pids}")),
            };
            denials.push(denied(&option, &self.allow(&entry)));
        }
    }

    /// A setting of the kernel has to be one that a container has of its own.
    fn sysctls(&self, options: &CreateOptions, denials: &mut Vec<Denied>) {
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
                denials.push(denied(&format!("--sysctl {name}"), advice));
            }
        }
    }

    fn annotations(&self, options: &CreateOptions, denials: &mut Vec<Denied>) {
        for key in options.annotations.keys() {
            if !self.annotations.iter().any(|pattern| covers(pattern, key)) {
                let entry = self.allow(&format!("annotations = [{key:?}]"));
                denials.push(denied(&format!("--annotation {key}"), &entry));
            }
        }
    }

    fn allow(&self, entry: &str) -> String {
        format!("its admin can allow it with `{entry}` under {}", self.section("policy"))
    }

    /// Returns a table of the settings, as messages name it.
    pub(in crate::container_hook) fn section(&self, name: &str) -> String {
        match &self.file {
            Some(file) => format!("[{name}] in {}", file.display()),
            None => format!("[{name}] of the settings"),
        }
    }
}

/// Returns whether a pattern is a text, or its beginning if it has `*` at its end.
fn covers(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

impl Gpus {
    fn resolve(&self, section: &str) -> Result<(Vec<Device>, Vec<Volume>), Denied> {
        let wrong = |entry: &str, problem: String| {
            denied("--gpus", &format!("{entry:?} under {section}: {problem}"))
        };
        let mut devices = Vec::new();
        for entry in &self.devices {
            let found = expand(entry);
            if found.is_empty() {
                return Err(wrong(entry, "this machine has no such device".to_owned()));
            }
            devices.extend(found);
        }
        let devices = devices.iter().map(|entry| Device::parse(entry).map_err(|e| wrong(entry, e)));
        let volumes = self
            .volumes
            .iter()
            .map(|entry| Volume::parse(entry).map_err(|e| wrong(entry, e.to_string())));
        Ok((devices.collect::<Result<_, _>>()?, volumes.collect::<Result<_, _>>()?))
    }
}

fn denied(option: &str, advice: &str) -> Denied {
    Denied { option: option.to_owned(), advice: advice.to_owned() }
}

fn shown(source: &Source, target: &str) -> String {
    match source {
        Source::Bind { path, .. } | Source::Work { path, .. } => {
            format!("{}:{target}", path.display())
        }
        Source::Named(name) => format!("{name}:{target}"),
        Source::Anonymous => target.to_owned(),
    }
}
