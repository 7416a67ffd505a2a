//! Devices of the Container Device Interface (CDI).
//!
//! The engine adds device nodes and mounts of specifications itself, which works in user namespaces and for
//! ordinary users too. [`oci_hooks::cdi`] applies all other edits to the text of the configuration.

use std::mem;
use std::path::{Path, PathBuf};

use oci_hooks::cdi::{self, DeviceMount, DeviceRegistry};
use oci_hooks::hooks::trust::{TrustError, TrustOptions};
use oci_hooks_files::error::chain;
use oci_hooks_host::host_file::HostFile;
use oci_spec::runtime::LinuxDeviceType;

use super::devices::{DeviceAccess, DeviceNode, DeviceRule, DeviceSet};
use super::options::{BundleOptions, MountPropagation, MountRequest, MountSource, TmpfsMount};
use super::user::ContainerUser;

/// Errors of CDI devices.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    #[error("cannot use the CDI devices in {dirs}{}", problems.iter().map(|it| format!("; {it}")).collect::<String>())]
    Select {
        /// Directories that were searched for specifications.
        dirs: String,
        /// Errors of specification files in these directories.
        problems: Vec<String>,
        source: Box<cdi::DeviceError>,
    },
    /// Other users can change a specification, or a program of a hook.
    #[error("CDI device: {reason}{}", reason.hint_in_message())]
    Trust { reason: TrustError },
    #[error(transparent)]
    Apply(#[from] cdi::DeviceError),
    #[error("CDI device: the network interface {0} cannot be moved into a container")]
    Interface(String),
    #[error("CDI device: cannot mount {path} with {what}")]
    Mount { path: String, what: String },
    /// A host path in a specification is relative: it would start at the runner's working
    /// directory, to which jobs can write.
    #[error("CDI device: invalid host path {path:?}: expected an absolute path")]
    Relative { path: String },
    #[error("CDI device: invalid device number of {path}")]
    Number { path: String },
}

impl BundleOptions {
    /// Adds devices of the specifications in these directories, by their qualified names.
    ///
    /// Only trusted users may be able to change the specifications and the programs of their hooks.
    pub fn add_cdi_devices(&mut self, dirs: &[PathBuf], names: &[String]) -> Result<(), CdiError> {
        if names.is_empty() {
            return Ok(());
        }
        let registry = DeviceRegistry::load(dirs);
        let mut selection = registry.select(names).map_err(|source| CdiError::Select {
            dirs: dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", "),
            problems: registry.problems().iter().map(|problem| chain(problem)).collect(),
            source: Box::new(source),
        })?;
        selection
            .check_trust(&TrustOptions::of_process())
            .map_err(|reason| CdiError::Trust { reason })?;
        selection.empty_env = true;
        let edits = &mut selection.edits;
        if let Some(device) = edits.net_devices.first() {
            return Err(CdiError::Interface(device.host_interface_name.clone()));
        }
        for mount in mem::take(&mut edits.mounts) {
            let mount = request(&mount)?;
            self.mounts.retain(|other| other.target != mount.target);
            self.mounts.push(mount);
        }
        for gid in mem::take(&mut edits.additional_gids).into_iter().filter(|&gid| gid != 0) {
            let group = gid.to_string();
            if !self.supplementary_groups.contains(&group) {
                self.supplementary_groups.push(group);
            }
        }
        self.cdi = selection;
        Ok(())
    }
}

/// Converts a mount of a specification into a mount request.
fn request(mount: &DeviceMount) -> Result<MountRequest, CdiError> {
    let unsupported = |what: String| CdiError::Mount { path: mount.container_path.clone(), what };
    let mut propagation = MountPropagation::Private;
    let (mut read_only, mut recursive) = (false, false);
    let mut rest = Vec::new();
    for option in &mount.options {
        match option.as_str() {
            "ro" => read_only = true,
            "rw" => read_only = false,
            "rbind" => recursive = true,
            "private" | "rprivate" => propagation = MountPropagation::Private,
            "slave" | "rslave" => propagation = MountPropagation::Slave,
            // The engine sets `nosuid` and `nodev` and maps owners; despite `noexec`, a container can execute a copy.
            "bind" | "nosuid" | "nodev" | "noexec" | "idmap" | "ridmap" => {}
            _ => rest.push(option.clone()),
        }
    }
    let source = match mount.kind.as_str() {
        "tmpfs" => MountSource::Tmpfs(TmpfsMount { options: rest, ..TmpfsMount::default() }),
        "" | "bind" | "none" if rest.is_empty() => {
            let path = absolute(&mount.host_path)?.to_owned();
            MountSource::Trusted { path, propagation, recursive }
        }
        "" | "bind" | "none" => return Err(unsupported(format!("options {}", rest.join(",")))),
        kind => return Err(unsupported(format!("type {kind}"))),
    };
    let target = PathBuf::from(&mount.container_path);
    Ok(MountRequest { target, source, subpath: None, read_only, id_mapping: None })
}

fn absolute(path: &str) -> Result<&Path, CdiError> {
    let found = Some(Path::new(path)).filter(|path| path.is_absolute());
    found.ok_or_else(|| CdiError::Relative { path: path.to_owned() })
}

impl DeviceSet {
    /// Adds device nodes of specifications, which belong to the container's user if their owner is not given.
    pub(super) fn add_cdi(
        &mut self,
        nodes: &[cdi::DeviceNode],
        user: &ContainerUser,
    ) -> Result<(), CdiError> {
        for node in nodes {
            let host_path = absolute(node.host_path())?.to_owned();
            let node = node.with_host_values()?;
            let (kind, letter) = match node.kind.as_str() {
                "b" => (LinuxDeviceType::B, Some('b')),
                "p" => (LinuxDeviceType::P, None),
                "u" => (LinuxDeviceType::U, None),
                _ => (LinuxDeviceType::C, Some('c')),
            };
            let number = |number: i64| {
                u32::try_from(number).map_err(|_| CdiError::Number { path: node.path.clone() })
            };
            let (major, minor) = (number(node.major)?, number(node.minor)?);
            let path = PathBuf::from(&node.path);
            let access = DeviceAccess::of_cdi(&node);
            if let Some(kind) = letter.filter(|_| !node.access().is_empty()) {
                let (major, minor, access) = (Some(major), Some(minor), access.clone());
                self.rules.push(DeviceRule { kind, major, minor, access }.to_spec());
            }
            self.nodes.retain(|other| other.path != path);
            self.nodes.push(DeviceNode {
                path,
                kind,
                major,
                minor,
                mode: node.file_mode.unwrap_or(0o666),
                uid: node.uid.unwrap_or(user.uid),
                gid: node.gid.unwrap_or(user.gid),
                host: HostFile::open_trusted(&host_path).ok(),
                access,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SPEC: &str = r#"cdiVersion: 1.1.0
kind: vendor.com/lamp
devices:
- name: red
  containerEdits:
    env: [LAMP=red]
    additionalGids: [0, 44]
    deviceNodes: [{path: /dev/lamp, hostPath: /dev/null, permissions: r}, {path: /dev/old, type: c, major: 1, minor: 5}]
    mounts:
    - {hostPath: /etc, containerPath: /lamp, options: [ro, nosuid, nodev, noexec, rbind, rslave]}
    - {hostPath: tmpfs, containerPath: /memory, type: tmpfs, options: [mode=700, rw]}
- name: link
  containerEdits: {netDevices: [{hostInterfaceName: eth7, name: eth0}]}
- name: disk
  containerEdits: {mounts: [{hostPath: /dev/sda, containerPath: /disk, type: ext4}]}
- name: context
  containerEdits: {mounts: [{hostPath: /etc, containerPath: /etc, options: [bind, rshared]}]}
- name: work
  containerEdits: {mounts: [{hostPath: lib, containerPath: /lib, options: [bind]}]}
- name: node
  containerEdits: {deviceNodes: [{path: /dev/lamp, hostPath: lamp, type: c, major: 1, minor: 3}]}
"#;

    fn select(names: &[&str]) -> Result<BundleOptions, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), SPEC).unwrap();
        fs::write(dir.path().join("b.yaml"), "kind: 1").unwrap();
        let names: Vec<_> = names.iter().map(|name| format!("vendor.com/lamp={name}")).collect();
        let mut options = BundleOptions::default();
        let added = options.add_cdi_devices(&[dir.path().to_owned()], &names);
        added.map(|()| options).map_err(|error| chain(&error))
    }

    #[test]
    fn mounts_nodes_and_groups_become_those_of_the_engine() {
        // A device that is named twice is added once.
        let options = select(&["red", "red"]).unwrap();
        let [lamp, memory] = &options.mounts[..] else { panic!("{:?}", options.mounts) };
        let expected = MountSource::Trusted {
            path: "/etc".into(),
            propagation: MountPropagation::Slave,
            recursive: true,
        };
        assert!(lamp.read_only && lamp.source == expected, "{lamp:?}");
        let MountSource::Tmpfs(tmpfs) = &memory.source else { panic!("{memory:?}") };
        assert_eq!(tmpfs.options, ["mode=700"]);
        assert_eq!(options.supplementary_groups, ["44"]);
        let user = ContainerUser { uid: 7, gid: 8, groups: vec![8], home: "/".to_owned() };
        let mut devices = DeviceSet::default();
        devices.add_cdi(&options.cdi.edits.device_nodes, &user).unwrap();
        let [lamp, old] = &devices.nodes[..] else { panic!("{:?}", devices.nodes) };
        assert_eq!((lamp.major, lamp.minor, lamp.mode, lamp.uid, lamp.gid), (1, 3, 0o666, 7, 8));
        assert!(lamp.host.is_some() && old.host.is_none());
        assert_eq!((old.major, old.minor), (1, 5));
        assert_eq!(devices.rules[0].access().as_deref(), Some("r"));
    }

    #[test]
    fn devices_that_cannot_work_are_rejected_with_the_reason() {
        for (name, reason) in [
            ("green", ": unknown device \"vendor.com/lamp=green\""),
            ("green", "/b.yaml:1:1: "),
            ("link", "eth7 cannot be moved into a container"),
            ("disk", "cannot mount /disk with type ext4"),
            ("context", "cannot mount /etc with options rshared"),
            ("work", "invalid host path \"lib\""),
        ] {
            let error = select(&[name]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let options = select(&["node"]).unwrap();
        let user = ContainerUser { uid: 7, gid: 8, groups: vec![8], home: "/".to_owned() };
        let nodes = &options.cdi.edits.device_nodes;
        let error = DeviceSet::default().add_cdi(nodes, &user).unwrap_err();
        assert!(matches!(error, CdiError::Relative { path } if path == "lamp"));
    }
}
