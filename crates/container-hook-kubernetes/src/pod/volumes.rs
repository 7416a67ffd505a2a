//! Volumes and mounts of a pod.
//!
//! The work directory is one volume, on the runner's claim or initially empty; the runner's mounts of its
//! parts are sub paths of that volume.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use container_hook_job::HookError;
use container_hook_job::kubernetes::{KubernetesSettings, WorkTransport};
use container_hook_job::options::{CreateOptions, IpcMode};
use container_hook_job::plan::PlanRole;
use container_hook_job::policy::Policy;
use container_hook_job::request::{ContainerArgs, RequestMount};
use container_hook_job::runner::CallingRunner;
use container_hook_job::volumes::{RequestVolume, Tmpfs, VolumePropagation, VolumeSource};
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource,
    PersistentVolumeClaimVolumeSource, Volume as PodVolume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use oci_hooks_files::quantity::ByteSize;

use super::agent::{self, IMAGE_VOLUME, STATE_VOLUME};
use super::error::PodError;
use super::manifest::WorkVolume;
use super::requested::{RequestedContainer, find_bind_entry};
use crate::own_pod::{OwnPod, WorkClaim};

/// Volumes mounted in every container, with their paths.
const MOUNTS: [(&str, &str); 3] = [("externals", EXTERNALS), ("work", WORK), ("github", "/github")];
pub const EXTERNALS: &str = "/__e";
pub const WORK: &str = "/__w";

/// Additional path of the workspace in job containers that no init container prepares.
const WORKSPACE: &str = "/.oci-hooks/workspace";

/// Default path of the runner's externals.
const RUNNER_EXTERNALS: &str = "/home/runner/externals";

/// Parts of the work directory that job containers and container steps get even if the request does
/// not mount them, with their paths in containers.
const OF_JOB: [(&str, &str); 2] =
    [("_temp/_github_home", "/github/home"), ("_temp/_github_workflow", "/github/workflow")];
/// Parts of the work directory that only container steps get, besides those of `OF_JOB`, with their
/// paths in containers.
const OF_STEP: [(&str, &str); 2] =
    [("_temp/_runner_file_commands", "/github/file_commands"), ("_temp", "/github/runner_temp")];

/// Volumes of a pod.
pub struct PodVolumes<'a> {
    runner: &'a CallingRunner,
    policy: &'a Policy,
    claim: Option<&'a WorkClaim>,
    /// Runner image to mount; `None` if an init container copies from it.
    image: Option<&'a str>,
    /// Volumes besides `externals`, `work`, `github` and those of the agent.
    more: Vec<PodVolume>,
    /// Directories of the node, with the index of their volume in `more`.
    node: Vec<(&'a Path, usize)>,
    /// Named volumes, with the index of their volume in `more`.
    named: Vec<(String, usize)>,
    /// Directories in the work directory to create before containers start.
    directories: BTreeSet<String>,
    /// Path of the runner's externals, if a container needs them.
    externals: Option<String>,
}

/// Returns the claim for the work directory of a job's containers; `None` if files are copied.
///
/// # Errors
///
/// Fails if the settings require a claim, and there is none that two pods can share.
pub fn claim<'a>(
    settings: &KubernetesSettings,
    own: &'a OwnPod,
) -> Result<Option<&'a WorkClaim>, PodError> {
    let is_of_one_pod = |claim: &WorkClaim| {
        let modes = &claim.access_modes;
        !modes.is_empty() && modes.iter().all(|mode| mode == "ReadWriteOncePod")
    };
    match (settings.work, &own.claim) {
        (WorkTransport::Copy, _) => Ok(None),
        (WorkTransport::Auto, claim) => Ok(claim.as_ref().filter(|claim| !is_of_one_pod(claim))),
        (WorkTransport::Claim, None) => Err(PodError::NoClaim),
        (WorkTransport::Claim, Some(claim)) if is_of_one_pod(claim) => {
            Err(PodError::ClaimOfOnePod { claim: claim.name.clone() })
        }
        (WorkTransport::Claim, claim) => Ok(claim.as_ref()),
    }
}

impl<'a> PodVolumes<'a> {
    pub(super) fn new(
        runner: &'a CallingRunner,
        policy: &'a Policy,
        claim: Option<&'a WorkClaim>,
        image: Option<&'a str>,
    ) -> Self {
        let (more, node, named) = (Vec::new(), Vec::new(), Vec::new());
        let mut directories = BTreeSet::new();
        if image.is_none() {
            // The runner creates it before the first step, which may have another user.
            directories.insert("_temp/_runner_file_commands".to_owned());
        }
        PodVolumes { runner, policy, claim, image, more, node, named, directories, externals: None }
    }

    pub(super) fn kind(&self) -> WorkVolume {
        if self.claim.is_some() { WorkVolume::Claim } else { WorkVolume::Copy }
    }

    /// Returns the mounts of a requested container, and adds its options without effect to `notes`.
    pub fn mounts(
        &mut self,
        container: &RequestedContainer<'a>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<VolumeMount>, HookError> {
        let mut mounts = Vec::new();
        if container.role != PlanRole::Service {
            mounts.extend(agent::mounts());
            self.system(container.args, container.role, &mut mounts);
        }
        for volume in &container.volumes {
            let mount = self.user(volume, container, notes)?;
            replace(&mut mounts, mount);
        }
        for tmpfs in &container.options.tmpfs {
            let mount = self.tmpfs(tmpfs, &container.title, notes);
            replace(&mut mounts, mount);
        }
        if let Some(mount) = self.shared_memory(&container.options) {
            replace(&mut mounts, mount);
        }
        // Mounts of the request replace the usual ones at the same path.
        let mut all = self.usual_mounts();
        all.retain(|mount| mounts.iter().all(|other| other.mount_path != mount.mount_path));
        all.extend(mounts);
        Ok(all)
    }

    /// Returns the mounts of the volumes `externals`, `work` and `github`.
    pub fn usual_mounts(&self) -> Vec<VolumeMount> {
        let mounts = MOUNTS.iter().map(|(name, path)| VolumeMount {
            name: (*name).to_owned(),
            mount_path: (*path).to_owned(),
            sub_path: (*name == "work").then(|| self.volume_sub_path("")).flatten(),
            ..VolumeMount::default()
        });
        mounts.collect()
    }

    /// Adds the mounts that the runner requests of parts of the work directory.
    fn system(&mut self, args: &ContainerArgs, role: PlanRole, mounts: &mut Vec<VolumeMount>) {
        if role == PlanRole::Job {
            self.externals = Some(RUNNER_EXTERNALS.to_owned());
        }
        for RequestMount { source, target, read_only, .. } in &args.system_mounts {
            let Some(source) = source.as_deref() else { continue };
            if role == PlanRole::Job && target.trim_end_matches('/') == EXTERNALS {
                self.externals = Some(resolve_parents(Path::new(source)));
            }
            // Skips parts of the usual volumes; `part` excludes an engine's socket.
            let is_usual = |usual: &str| Path::new(target).starts_with(usual);
            if is_usual(WORK) || is_usual(EXTERNALS) {
                continue;
            }
            if let Some(part) = self.part(Path::new(source)) {
                self.directories.insert(part.clone());
                replace(mounts, self.work_mount(&part, target, *read_only));
            }
        }
        let workspace = self.part(&self.runner.workspace);
        if let Some(workspace) = &workspace {
            self.directories.insert(workspace.clone());
            if self.image.is_some() && role == PlanRole::Job {
                // Without an init container, the kubelet creates the directory, because of the sub path, so that all
                // users may write to it. Otherwise the runtime would create it as the container's working directory,
                // to which only root may write.
                mounts.push(self.work_mount(workspace, WORKSPACE, false));
            }
        }
        let workspace = workspace.iter().map(|part| (part.as_str(), "/github/workspace"));
        let of_step = OF_STEP.into_iter().chain(workspace).filter(|_| role == PlanRole::Step);
        for (part, target) in OF_JOB.into_iter().chain(of_step) {
            self.directories.insert(part.to_owned());
            if mounts.iter().all(|mount| mount.mount_path != target) {
                mounts.push(self.work_mount(part, target, false));
            }
        }
    }

    /// Returns a path relative to the work directory; `None` if it is outside.
    fn part(&self, path: &Path) -> Option<String> {
        let rest = path.strip_prefix(self.runner.work()).ok()?;
        let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
        rest.to_str().filter(|_| is_plain).map(str::to_owned)
    }

    fn work_mount(&self, part: &str, target: &str, read_only: bool) -> VolumeMount {
        VolumeMount {
            name: "work".to_owned(),
            mount_path: target.to_owned(),
            sub_path: self.volume_sub_path(part),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        }
    }

    /// Returns the sub path of a part of the work directory on its volume; `None` for the volume's root.
    fn volume_sub_path(&self, part: &str) -> Option<String> {
        let above = self.claim.and_then(|claim| claim.sub_path.as_deref());
        let parts = above.into_iter().chain([part]).filter(|part| !part.is_empty());
        let path = parts.collect::<Vec<_>>().join("/");
        (!path.is_empty()).then_some(path)
    }

    fn user(
        &mut self,
        volume: &RequestVolume,
        container: &RequestedContainer<'a>,
        notes: &mut Vec<String>,
    ) -> Result<VolumeMount, HookError> {
        let policy = self.policy;
        let mut mount = match &volume.source {
            VolumeSource::Work { path, .. } => {
                let part = self.part(path).unwrap_or_default();
                if self.claim.is_none() && path.is_file() {
                    return Err(PodError::File { path: path.display().to_string() }.into());
                }
                self.directories.insert(part.clone());
                self.work_mount(&part, &volume.target, false)
            }
            VolumeSource::Bind { .. } => match find_bind_entry(policy, volume)? {
                Some((entry, rest)) => VolumeMount {
                    name: self.add_node_volume(entry),
                    mount_path: volume.target.clone(),
                    sub_path: (!rest.is_empty()).then_some(rest),
                    ..VolumeMount::default()
                },
                None => return Ok(self.mount_empty(None, &volume.target)),
            },
            VolumeSource::Named(name) => {
                let line = format!(
                    "{}: the volume {name} is empty at first and deleted with the pod: in a cluster, persistent \
                     volumes belong in the pod template",
                    container.title
                );
                notes.push(line);
                self.mount_empty(Some(name), &volume.target)
            }
            VolumeSource::Anonymous => self.mount_empty(None, &volume.target),
        };
        mount.read_only = volume.read_only.then_some(true);
        mount.mount_propagation = volume.propagation.map(|propagation| match propagation {
            VolumePropagation::Shared => "Bidirectional".to_owned(),
            VolumePropagation::Slave => "HostToContainer".to_owned(),
        });
        Ok(mount)
    }

    fn add_node_volume(&mut self, entry: &'a Path) -> String {
        let known = self.node.iter().find(|(path, _)| *path == entry).map(|(_, at)| *at);
        let at = known.unwrap_or_else(|| {
            let path = entry.display().to_string();
            let host_path = HostPathVolumeSource { path, type_: None };
            let at = self.add(PodVolume { host_path: Some(host_path), ..PodVolume::default() });
            self.node.push((entry, at));
            at
        });
        self.more[at].name.clone()
    }

    /// Returns the mount of an empty volume. Containers that use the same `name` share the volume.
    fn mount_empty(&mut self, name: Option<&str>, target: &str) -> VolumeMount {
        let known = name.and_then(|name| self.named.iter().find(|(known, _)| known == name));
        let at = known.map(|(_, at)| *at).unwrap_or_else(|| {
            let at = self.add(PodVolume {
                empty_dir: Some(EmptyDirVolumeSource::default()),
                ..PodVolume::default()
            });
            self.named.extend(name.map(|name| (name.to_owned(), at)));
            at
        });
        let name = self.more[at].name.clone();
        VolumeMount { name, mount_path: target.to_owned(), ..VolumeMount::default() }
    }

    fn memory(&mut self, bytes: Option<u64>, target: &str) -> VolumeMount {
        let empty_dir = EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: bytes.map(|bytes| Quantity(bytes.to_string())),
        };
        let at = self.add(PodVolume { empty_dir: Some(empty_dir), ..PodVolume::default() });
        let name = self.more[at].name.clone();
        VolumeMount { name, mount_path: target.to_owned(), ..VolumeMount::default() }
    }

    fn add(&mut self, volume: PodVolume) -> usize {
        let name = format!("oci-hooks-{}", self.more.len());
        self.more.push(PodVolume { name, ..volume });
        self.more.len() - 1
    }

    fn tmpfs(&mut self, tmpfs: &Tmpfs, title: &str, notes: &mut Vec<String>) -> VolumeMount {
        let (mut bytes, mut read_only, mut rest) = (None, None, Vec::new());
        for option in &tmpfs.options {
            match option.split_once('=') {
                Some(("size", size)) => bytes = size_bytes(size),
                None if option == "ro" => read_only = Some(true),
                None if matches!(option.as_str(), "rw" | "defaults") => {}
                _ => rest.push(option.as_str()),
            }
        }
        if !rest.is_empty() {
            let (target, rest) = (&tmpfs.target, rest.join(","));
            notes.push(format!("{title}: --tmpfs {target}: {rest} has no effect in a cluster"));
        }
        let mount = self.memory(bytes, &tmpfs.target);
        VolumeMount { read_only, ..mount }
    }

    fn shared_memory(&mut self, options: &CreateOptions) -> Option<VolumeMount> {
        let wanted = options.shm_size_bytes.is_some() || options.ipc == IpcMode::Large;
        let most = self.policy.max.shm_size.map(|size| size.0);
        wanted.then(|| self.memory(options.shm_size_bytes.or(most), "/dev/shm"))
    }

    /// Returns all volumes of the pod; those of the agent only with `has_agent`.
    pub fn pod(&self, has_agent: bool) -> Vec<PodVolume> {
        let empty = |name: &str| PodVolume {
            name: name.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..PodVolume::default()
        };
        let work = match self.claim {
            Some(claim) => PodVolume {
                name: "work".to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim.name.clone(),
                    read_only: None,
                }),
                ..PodVolume::default()
            },
            None => empty("work"),
        };
        let mut volumes = vec![empty("externals"), empty("github"), work];
        if has_agent {
            volumes.push(match self.image {
                Some(image) => PodVolume {
                    name: IMAGE_VOLUME.to_owned(),
                    image: Some(ImageVolumeSource {
                        reference: Some(image.to_owned()),
                        pull_policy: None,
                    }),
                    ..PodVolume::default()
                },
                None => empty(IMAGE_VOLUME),
            });
            volumes.push(empty(STATE_VOLUME));
        }
        volumes.extend(self.more.iter().cloned());
        volumes
    }

    /// Returns the path of the runner's externals, if a container needs them.
    pub fn externals(&self) -> Option<&str> {
        self.externals.as_deref()
    }

    /// Returns whether only an init container can create directories with the right owner: the kubelet, which creates
    /// missing sub paths, does not change the owner of files on a claim.
    pub fn needs_init_container(&self) -> bool {
        let is_missing = |part| !self.runner.work().join(part).is_dir();
        self.image.is_some() && self.claim.is_some() && self.directories().any(is_missing)
    }

    /// Returns the path of the runner's externals in the mounted runner image, if a container needs them.
    pub fn mounted_externals(&self) -> Option<&str> {
        self.externals().filter(|_| self.image.is_some())
    }

    /// Returns the directories in the work directory to create before containers start.
    pub fn directories(&self) -> impl Iterator<Item = &String> {
        self.directories.iter().filter(|part| !part.is_empty())
    }
}

/// Adds a mount, replacing one at the same path.
fn replace(mounts: &mut Vec<VolumeMount>, mount: VolumeMount) {
    mounts.retain(|other| other.mount_path != mount.mount_path);
    mounts.push(mount);
}

/// Resolves `..` in a path lexically.
fn resolve_parents(path: &Path) -> String {
    let mut parts = std::path::PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.display().to_string()
}

/// Parses the size of a tmpfs; `None` for a percentage of the memory such as `50%`.
fn size_bytes(text: &str) -> Option<u64> {
    let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = text.split_at(unit);
    let size = match unit.to_ascii_lowercase().as_str() {
        "" => format!("{number}B"),
        "k" => format!("{number}KiB"),
        "m" => format!("{number}MiB"),
        "g" => format!("{number}GiB"),
        _ => return None,
    };
    size.parse::<ByteSize>().ok().map(|size| size.0)
}
