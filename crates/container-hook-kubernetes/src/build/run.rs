//! Builds a Dockerfile action, from the context to the image's name.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::dockerfile::{LIMITS, SnapshotTarget, configure, images_of, take};
use container_hook_job::request::RegistryLogin;
use oci_hooks_engine::container::{StepEnd, StepSignals};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError, random_u64};
use oci_hooks_host::file_user::own_ids;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_image::{Credentials, Digest, ImageReference, SilentProgress};
use oci_hooks_init::frames::files::FileScope;
use tracing::debug;

use super::error::BuildError;
use super::logins::BuildLogins;
use super::name::{ImageContent, architecture, reference};
use super::pod::{BuildPod, container_name};
use super::program::{self, BUILD_HOME, BuildCommand, BuildContainer, CONTEXT, HOME, LOGINS};
use crate::agent::{self, AgentSession};
use crate::backend::KubernetesBackend;
use crate::cleanup::GRACE_SECONDS;
use crate::error::SignalError;
use crate::files::{self, ExchangeRecord, HostTree};
use crate::interrupts::run_unless_interrupted;
use crate::pod::{object, runner_image, runtime_class};
use crate::script_step::new_id;
use crate::wait::{self, PodExpectation};

/// Subdirectory of the scratch directory with the build context, copied to the pod.
const OWN_CONTEXT: &str = "context";
/// Subdirectory of the scratch directory with the home directory of the build programs, copied to the pod.
const OWN_HOME: &str = "home";
/// Subdirectory of the scratch directory with registry logins, copied to the pod.
const OWN_LOGINS: &str = "logins";

/// An image that this build or an earlier one has pushed.
pub struct BuiltImage {
    /// Name of the image, with its digest.
    pub name: String,
    /// Login with which nodes pull the image; `None` if there is no user name and password.
    pub registry: Option<RegistryLogin>,
}

/// Inputs of a build, copied to a scratch directory.
struct ImageBuildInputs<'a> {
    scratch: ScratchDir,
    dockerfile: &'a Path,
    image: ImageReference,
    logins: BuildLogins<'a>,
}

/// Builds a Dockerfile with its directory as context and pushes the image, unless the registry already has
/// it. The build pod is always removed.
pub async fn image(
    backend: &KubernetesBackend<'_>,
    dockerfile: &str,
    signals: &mut dyn StepSignals,
) -> Result<BuiltImage, HookError> {
    let settings = &backend.settings.build;
    let (Some(push), Some(builder)) = (&settings.push, &settings.image) else {
        return Err(BuildError::Unset.into());
    };
    let inputs = copy(backend, push, Path::new(dockerfile))?;
    let name = |digest| inputs.image.with_digest(digest).to_string();
    let credentials = inputs.logins.of(&inputs.image).map_err(BuildError::from)?;
    let registry = inputs.logins.to_pull(&inputs.image).map_err(BuildError::from)?;
    if let Some(digest) = find(backend, credentials, &inputs.image)? {
        backend.context.log.line(&format!("{dockerfile} has not changed since it was built"));
        return Ok(BuiltImage { name: name(digest), registry });
    }
    if settings.buildkit.is_none() && backend.settings.restricted {
        return Err(BuildError::Restricted.into());
    }
    backend.context.log.group(&format!("Build {dockerfile}"));
    let pod = object(&backend.identity.name, &format!("build-{}", &new_id()[..8]));
    let built = run_unless_interrupted(signals, build(backend, &inputs, builder, &pod)).await;
    // The pod has no data worth waiting for.
    let removed = backend.cluster.delete_pod(&pod, Some(GRACE_SECONDS)).await;
    backend.context.log.end_group();
    if let Err(error) = removed {
        backend.context.log.warning(&chain(&error));
    }
    built?;
    match find(backend, credentials, &inputs.image)? {
        Some(digest) => Ok(BuiltImage { name: name(digest), registry }),
        None => Err(BuildError::NotPushed { image: inputs.image.to_string() }.into()),
    }
}

/// Copies the context and derives the image's name from it.
fn copy<'a>(
    backend: &'a KubernetesBackend<'_>,
    push: &str,
    dockerfile: &'a Path,
) -> Result<ImageBuildInputs<'a>, BuildError> {
    let scratch = ScratchDir::new()?;
    let context = scratch.directory(OWN_CONTEXT)?;
    let target = SnapshotTarget { dir: &context, owner: own_ids() };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let content = ImageContent {
        context: &digest,
        dockerfile: dockerfile.file_name().unwrap_or_default(),
        namespace: backend.cluster.namespace(),
        architecture: architecture(),
        sharers: &backend.build_cache.sharers(backend.context.runner),
    };
    let image = reference(push, content)?;
    let file = backend.settings.build.auth_file.as_deref();
    let logins = BuildLogins::new(file, backend.credentials)?;
    Ok(ImageBuildInputs { scratch, dockerfile, image, logins })
}

/// Returns the digest of an image in the registry, if the image exists.
fn find(
    backend: &KubernetesBackend<'_>,
    credentials: &Credentials,
    image: &ImageReference,
) -> Result<Option<Digest>, BuildError> {
    let repository = backend.registries.repository(image, credentials, &SilentProgress)?;
    let found = match repository.digest_of(image.target()) {
        // Registries may omit the digest header.
        Ok(None) => repository.document(image.target()).map(|found| Some(found.digest)),
        found => found,
    };
    match found {
        // The repository may be missing; registries differ in the code they answer with. If a login is
        // missing, the push reports it.
        Err(error) if error.is_access_denied() => Ok(None),
        found => Ok(found?),
    }
}

/// Builds and pushes the image in a new pod.
async fn build(
    backend: &KubernetesBackend<'_>,
    inputs: &ImageBuildInputs<'_>,
    builder: &str,
    pod: &str,
) -> Result<(), HookError> {
    let settings = backend.settings;
    let own = backend.own_pod().await?;
    let made = BuildPod {
        name: pod.to_owned(),
        own,
        runner_image: runner_image(settings, own),
        image: builder,
        builds: settings.build.buildkit.is_none(),
        architecture: architecture(),
        runtime_class: runtime_class(&backend.context),
        deadline: settings.deadline.and_then(|limit| i64::try_from(limit.0.as_secs()).ok()),
    };
    backend.cluster.create_pod(&made.pod()).await?;
    let commands = prepare(backend, inputs)?;
    let (limit, log) = (settings.prepare_timeout(), backend.context.log);
    let running = made.places().iter().map(|place| container_name(*place).to_owned());
    let expect =
        PodExpectation { running: running.collect(), shows_progress: true, ..Default::default() };
    wait::wait_for_ready_pod(backend.cluster, pod, &expect, log, limit).await?;

    let open = |place| backend.opener(pod, container_name(place));
    let openers = [open(BuildContainer::Registry), open(BuildContainer::Build)];
    let [mut registry, mut build] = openers.each_ref().map(|opener| AgentSession::new(opener));
    let scratch = &inputs.scratch;
    send(scratch, &mut registry, OWN_HOME, HOME).await?;
    send(scratch, &mut registry, OWN_LOGINS, LOGINS).await?;
    if made.builds {
        send(scratch, &mut build, OWN_HOME, BUILD_HOME).await?;
        send(scratch, &mut build, OWN_CONTEXT, CONTEXT).await?;
    } else {
        send(scratch, &mut registry, OWN_CONTEXT, CONTEXT).await?;
    }
    for command in commands {
        let session = match command.place {
            BuildContainer::Registry => &mut registry,
            BuildContainer::Build => &mut build,
        };
        run(backend, session, command).await?;
    }
    Ok(())
}

/// Returns the commands of a build, and writes their configuration and logins.
fn prepare(
    backend: &KubernetesBackend<'_>,
    inputs: &ImageBuildInputs<'_>,
) -> Result<Vec<BuildCommand>, BuildError> {
    let ImageBuildInputs { scratch, dockerfile, image, logins } = inputs;
    let name = dockerfile.file_name().unwrap_or_default();
    let bases = images_of(&scratch.path(OWN_CONTEXT), name);
    let (home, files) = (scratch.directory(OWN_HOME)?, scratch.directory(OWN_LOGINS)?);
    let mut named = bases.clone();
    named.push(image.clone());
    configure(&home, own_ids(), backend.registries, &named)?;
    let written = logins.write(&files, backend.registries, image, &bases)?;
    let settings = &backend.settings.build;
    Ok(match &settings.buildkit {
        Some(address) => {
            let is_insecure = backend.registries.is_insecure(image.registry());
            program::buildctl(address, name, image, is_insecure)
        }
        None => {
            let driver = settings.storage_driver.unwrap_or_default();
            program::buildah(name, image, &written, driver.name())
        }
    })
}

/// Copies a scratch directory to a container.
async fn send(
    scratch: &ScratchDir,
    session: &mut AgentSession<'_>,
    name: &str,
    to: &str,
) -> Result<(), HookError> {
    let from = HostTree::open(&scratch.path(name))?;
    // After a lost stream, the record lists the files that have arrived.
    let record = ExchangeRecord::new(scratch.path(&format!("record-{}", new_id())));
    let all = FileScope { include: vec![Vec::new()], ..FileScope::default() };
    files::upload_tree(session, &from, Path::new(to), &all, &record).await?;
    Ok(())
}

/// Runs a program to its end in a container of the pod, with its output in the log of the step.
async fn run(
    backend: &KubernetesBackend<'_>,
    session: &mut AgentSession<'_>,
    command: BuildCommand,
) -> Result<(), HookError> {
    let BuildCommand { program, action, step, may_fail, .. } = command;
    let mut nobody = NoSignals::new().map_err(SignalError::Signals)?;
    // An interrupt removes the whole pod, so the program gets no signals.
    let id = new_id();
    let end =
        agent::run(session, backend.step(&id, "the build's container"), step, &mut nobody).await?;
    let code = match end {
        StepEnd::Exited(code) => code,
        StepEnd::Signalled(signal) => 128 | signal,
    };
    if code == 0 || may_fail {
        Ok(())
    } else {
        Err(BuildError::Failed { program, action, code }.into())
    }
}

struct NoSignals([UnixStream; 2]);

impl NoSignals {
    fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        Ok(NoSignals([read, write]))
    }
}

impl StepSignals for NoSignals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0[0].as_fd()
    }

    fn take(&mut self) -> Vec<i32> {
        Vec::new()
    }
}

/// Parent of scratch directories. Not the runner's work directory: if that is on a claim, the pods of its
/// jobs can write to it.
const PARENT: &str = "/tmp";

/// A directory that is removed with its contents on drop.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(super) fn new() -> Result<Self, PathError> {
        let path = Path::new(PARENT).join(format!("container-hook-{:016x}", random_u64()));
        // Fails if another user has created the path.
        DirBuilder::new().mode(0o700).create(&path).with_path("create the directory", &path)?;
        Ok(ScratchDir(path))
    }

    /// Returns the path of an entry.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a subdirectory and returns its path.
    pub fn directory(&self, name: &str) -> Result<PathBuf, PathError> {
        let path = self.path(name);
        DirBuilder::new().mode(0o700).create(&path).with_path("create the directory", &path)?;
        Ok(path)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            // The leftover is removed with the runner's pod after its job.
            debug!(error = chain(&error), "cannot remove the scratch directory of a build");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn scratch_directory_is_private_and_removed_on_drop() {
        let scratch = ScratchDir::new().unwrap();
        let path = scratch.0.clone();
        let directory = scratch.directory("a").unwrap();
        fs::write(directory.join("file"), "a").unwrap();
        for path in [&path, &directory] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        drop(scratch);
        assert!(!path.exists());
    }
}
