//! The volumes of a pod, and what of them each container has.
//!
//! The work directory is one volume, on the runner's claim or empty at first; whatever the runner mounts of it
//! elsewhere is a part of that volume.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolumeClaimVolumeSource,
    Volume as PodVolume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::agent;
use super::asked::{Asked, bind};
use super::error::PodError;
use super::made::WorkVolume;
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::own_pod::{OwnPod, WorkClaim};
use crate::container_hook::kubernetes::settings::{KubernetesSettings, Work};
use crate::container_hook::options::{CreateOptions, Ipc};
use crate::container_hook::plan::Role;
use crate::container_hook::policy::Policy;
use crate::container_hook::request::{ContainerArgs, Mount};
use crate::container_hook::runner::Runner;
use crate::container_hook::volumes::{Propagation, Source, Tmpfs, Volume};
use crate::sys::quantity::Size;

/// The volumes that each container has, and where.
const MOUNTS: [(&str, &str); 3] = [("externals", EXTERNALS), ("work", WORK), ("github", "/github")];
pub const EXTERNALS: &str = "/__e";
pub const WORK: &str = "/__w";

/// Where runners have their programs, if a request does not say it.
const RUNNER_EXTERNALS: &str = "/home/runner/externals";

/// Parts of the work directory, and where containers have them: the runner sends these to containers of one
/// host, and not in every request.
const OF_JOB: [(&str, &str); 2] =
    [("_temp/_github_home", "/github/home"), ("_temp/_github_workflow", "/github/workflow")];
const OF_STEP: [(&str, &str); 2] =
    [("_temp/_runner_file_commands", "/github/file_commands"), ("_temp", "/github/runner_temp")];

/// The volumes of a pod.
pub struct Volumes<'a> {
    runner: &'a Runner,
    policy: &'a Policy,
    claim: Option<&'a WorkClaim>,
    /// Those beyond the usual ones.
    more: Vec<PodVolume>,
    /// The directories of the node, by the number of their volume.
    node: Vec<(&'a Path, usize)>,
    /// The volumes with names, in the same way.
    named: Vec<(String, usize)>,
    /// Directories in the work directory, to be there before containers start.
    directories: BTreeSet<String>,
    /// Where the runner has its externals, if a container is to have them.
    externals: Option<String>,
}

/// Returns the claim that the work directory of a job's containers is on; none if files are copied.
///
/// # Errors
///
/// Fails if the admin wants a claim and there is none that two pods can have.
pub fn claim<'a>(
    settings: &KubernetesSettings,
    own: &'a OwnPod,
) -> Result<Option<&'a WorkClaim>, PodError> {
    let is_of_one_pod = |claim: &WorkClaim| {
        let modes = &claim.access_modes;
        !modes.is_empty() && modes.iter().all(|mode| mode == "ReadWriteOncePod")
    };
    match (settings.work, &own.claim) {
        (Work::Copy, _) => Ok(None),
        (Work::Auto, claim) => Ok(claim.as_ref().filter(|claim| !is_of_one_pod(claim))),
        (Work::Claim, None) => Err(PodError::NoClaim),
        (Work::Claim, Some(claim)) if is_of_one_pod(claim) => {
            Err(PodError::ClaimOfOnePod { claim: claim.name.clone() })
        }
        (Work::Claim, claim) => Ok(claim.as_ref()),
    }
}

impl<'a> Volumes<'a> {
    pub(super) fn new(
        runner: &'a Runner,
        policy: &'a Policy,
        claim: Option<&'a WorkClaim>,
    ) -> Self {
        let (more, node, named) = (Vec::new(), Vec::new(), Vec::new());
        let directories = BTreeSet::from(["_temp/_runner_file_commands".to_owned()]);
        Volumes { runner, policy, claim, more, node, named, directories, externals: None }
    }

    pub(super) fn kind(&self) -> WorkVolume {
        if self.claim.is_some() { WorkVolume::Claim } else { WorkVolume::Copy }
    }

    /// Returns the mounts of a container of the request; `notes` gets what of its options has no meaning.
    pub fn mounts(
        &mut self,
        container: &Asked<'a>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<VolumeMount>, HookError> {
        let mut mounts = Vec::new();
        if container.role != Role::Service {
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
        // What is mounted over these is what is meant.
        let mut all = self.usual("");
        all.retain(|mount| mounts.iter().all(|other| other.mount_path != mount.mount_path));
        all.extend(mounts);
        Ok(all)
    }

    /// Returns the mounts of the usual volumes.
    pub fn usual(&self, beneath: &str) -> Vec<VolumeMount> {
        let mounts = MOUNTS.iter().map(|(name, path)| VolumeMount {
            name: (*name).to_owned(),
            mount_path: format!("{beneath}{path}"),
            sub_path: (*name == "work").then(|| self.on_volume("")).flatten(),
            ..VolumeMount::default()
        });
        mounts.collect()
    }

    /// Mounts what the runner has elsewhere of its work directory.
    fn system(&mut self, args: &ContainerArgs, role: Role, mounts: &mut Vec<VolumeMount>) {
        if role == Role::Job {
            self.externals = Some(RUNNER_EXTERNALS.to_owned());
        }
        for Mount { source, target, read_only, .. } in &args.system_mounts {
            let Some(source) = source.as_deref() else { continue };
            if role == Role::Job && target.trim_end_matches('/') == EXTERNALS {
                self.externals = Some(plain(Path::new(source)));
            }
            // The rest of them are parts of these, or the socket of an engine.
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
        }
        let workspace = workspace.iter().map(|part| (part.as_str(), "/github/workspace"));
        let of_step = OF_STEP.into_iter().chain(workspace).filter(|_| role == Role::Step);
        for (part, target) in OF_JOB.into_iter().chain(of_step) {
            self.directories.insert(part.to_owned());
            if mounts.iter().all(|mount| mount.mount_path != target) {
                mounts.push(self.work_mount(part, target, false));
            }
        }
    }

    /// Returns where something is in the work directory; none if it is not in it.
    fn part(&self, path: &Path) -> Option<String> {
        let rest = path.strip_prefix(self.runner.work()).ok()?;
        let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
        rest.to_str().filter(|_| is_plain).map(str::to_owned)
    }

    fn work_mount(&self, part: &str, target: &str, read_only: bool) -> VolumeMount {
        VolumeMount {
            name: "work".to_owned(),
            mount_path: target.to_owned(),
            sub_path: self.on_volume(part),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        }
    }

    /// Returns where a part of the work directory is on its volume; none for the root of that.
    fn on_volume(&self, part: &str) -> Option<String> {
        let above = self.claim.and_then(|claim| claim.sub_path.as_deref());
        let parts = above.into_iter().chain([part]).filter(|part| !part.is_empty());
        let path = parts.collect::<Vec<_>>().join("/");
        (!path.is_empty()).then_some(path)
    }

    fn user(
        &mut self,
        volume: &Volume,
        container: &Asked<'a>,
        notes: &mut Vec<String>,
    ) -> Result<VolumeMount, HookError> {
        let policy = self.policy;
        let mut mount = match &volume.source {
            Source::Work { path, .. } => {
                let part = self.part(path).unwrap_or_default();
                if self.claim.is_none() && path.is_file() {
                    return Err(PodError::File { path: path.display().to_string() }.into());
                }
                self.directories.insert(part.clone());
                self.work_mount(&part, &volume.target, false)
            }
            Source::Bind { .. } => match bind(policy, volume)? {
                Some((entry, rest)) => VolumeMount {
                    name: self.of_node(entry),
                    mount_path: volume.target.clone(),
                    sub_path: (!rest.is_empty()).then_some(rest),
                    ..VolumeMount::default()
                },
                None => return Ok(self.empty(None, &volume.target)),
            },
            Source::Named(name) => {
                let line = format!(
                    "{}: the volume {name} is empty at first and gone with the pod: in a cluster the pod \
                     template has what is to last longer",
                    container.title
                );
                notes.push(line);
                self.empty(Some(name), &volume.target)
            }
            Source::Anonymous => self.empty(None, &volume.target),
        };
        mount.read_only = volume.read_only.then_some(true);
        mount.mount_propagation = volume.propagation.map(|propagation| match propagation {
            Propagation::Shared => "Bidirectional".to_owned(),
            Propagation::Slave => "HostToContainer".to_owned(),
        });
        Ok(mount)
    }

    fn of_node(&mut self, entry: &'a Path) -> String {
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

    /// Returns the mount of an empty volume, which all containers that name it share.
    fn empty(&mut self, name: Option<&str>, target: &str) -> VolumeMount {
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
        // Who asked for the host's namespace wants room.
        let is_large = options.ipc == Ipc::Large && options.host_namespaces.is_empty();
        let wanted = options.shm_size_bytes.is_some() || is_large;
        let most = self.policy.max.shm_size.map(|size| size.0);
        wanted.then(|| self.memory(options.shm_size_bytes.or(most), "/dev/shm"))
    }

    /// Returns all volumes of the pod. The agent's are only where it is.
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
        let agent = if has_agent { &agent::VOLUMES[..] } else { &[] };
        let mut volumes = vec![empty("externals"), empty("github"), work];
        volumes.extend(agent.iter().map(|name| empty(name)));
        volumes.extend(self.more.iter().cloned());
        volumes
    }

    /// Returns where the runner has its externals, if a container is to have them.
    pub fn externals(&self) -> Option<&str> {
        self.externals.as_deref()
    }

    /// Returns the directories of the work directory that are to be there before containers start.
    pub fn directories(&self) -> impl Iterator<Item = &String> {
        self.directories.iter().filter(|part| !part.is_empty())
    }
}

/// Adds a mount, instead of one at the same place.
fn replace(mounts: &mut Vec<VolumeMount>, mount: VolumeMount) {
    mounts.retain(|other| other.mount_path != mount.mount_path);
    mounts.push(mount);
}

/// Returns a path without `..`, by its text alone.
fn plain(path: &Path) -> String {
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

/// Reads the size of a tmpfs; none for a share of the memory, as `50%`.
fn size_bytes(text: &str) -> Option<u64> {
    let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = text.split_at(unit);
    let size = match unit.to_ascii_lowercase().as_str() {
        "" => number.to_owned(),
        "k" => format!("{number}KiB"),
        "m" => format!("{number}MiB"),
        "g" => format!("{number}GiB"),
        _ => return None,
    };
    size.parse::<Size>().ok().map(|size| size.0)
}
