//! A Dockerfile action from its context to the name of its image.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tracing::debug;

use super::error::BuildError;
use super::logins::Logins;
use super::name::{Content, architecture, reference};
use super::pod::{BuildPod, container_name};
use super::program::{self, BUILD_HOME, CONTEXT, Command, HOME, LOGINS, Place};
use crate::container::{StepEnd, StepSignals};
use crate::container_hook::dockerfile::{LIMITS, Target, configure, images_of, take};
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::agent::{self, Session};
use crate::container_hook::kubernetes::backend::KubernetesBackend;
use crate::container_hook::kubernetes::cleanup::GRACE_SECONDS;
use crate::container_hook::kubernetes::client::ClusterOpener;
use crate::container_hook::kubernetes::error::KubernetesError;
use crate::container_hook::kubernetes::files::{self, HostTree, Record};
use crate::container_hook::kubernetes::interrupts::unless_interrupted;
use crate::container_hook::kubernetes::pod::{object, runner_image};
use crate::container_hook::kubernetes::script_step::new_id;
use crate::container_hook::kubernetes::wait::{self, Expect};
use crate::container_hook::request::Registry;
use crate::image::{Credentials, Digest, Reference, RegistryError, Silent};
use crate::sys::caller::own_ids;
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError, random_u64};
use crate::sys::init::frames::files::Scope;
use crate::sys::removal::remove_tree;

/// What is copied, in a directory of ours.
const OWN_CONTEXT: &str = "context";
const OWN_HOME: &str = "home";
const OWN_LOGINS: &str = "logins";

/// How layers are kept where the settings do not say it.
const DRIVER: &str = "overlay";

/// An image that was built, now or before.
pub struct BuiltImage {
    /// Its name, with its digest.
    pub name: String,
    /// The login by which nodes pull it.
    pub registry: Option<Registry>,
}

/// What a build takes, all of it copied.
struct Inputs<'a> {
    scratch: Scratch,
    dockerfile: &'a Path,
    image: Reference,
    logins: Logins<'a>,
}

/// Builds a Dockerfile with its directory as context and pushes the image, unless the registry has the
/// same already. The pod that it is built in is removed, whatever comes.
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
    let built = unless_interrupted(signals, build(backend, &inputs, builder, &pod)).await;
    // It has nothing that is worth waiting for.
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

/// Copies the context, and says what its image is called.
fn copy<'a>(
    backend: &'a KubernetesBackend<'_>,
    push: &str,
    dockerfile: &'a Path,
) -> Result<Inputs<'a>, BuildError> {
    let scratch = Scratch::new()?;
    let context = scratch.directory(OWN_CONTEXT)?;
    let target = Target { dir: &context, owner: own_ids() };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let content = Content {
        context: &digest,
        dockerfile: dockerfile.file_name().unwrap_or_default(),
        namespace: backend.cluster.namespace(),
        architecture: architecture(),
    };
    let image = reference(push, content)?;
    let file = backend.settings.build.auth_file.as_deref();
    let logins = Logins::new(file, backend.credentials)?;
    Ok(Inputs { scratch, dockerfile, image, logins })
}

/// Returns the digest of what a registry has by this name.
fn find(
    backend: &KubernetesBackend<'_>,
    credentials: &Credentials,
    image: &Reference,
) -> Result<Option<Digest>, BuildError> {
    let repository = backend.registries.repository(image, credentials, &Silent)?;
    let found = match repository.digest_of(image.target()) {
        // It need not say it.
        Ok(None) => repository.document(image.target()).map(|found| Some(found.digest)),
        found => found,
    };
    match found {
        // Who pushes hears of a login that is missing.
        Err(error) if is_absent(&error) => Ok(None),
        found => Ok(found?),
    }
}

/// Registries that have no such repository yet do not always say just that.
fn is_absent(error: &RegistryError) -> bool {
    error.is_refusal()
}

/// Has the image built in a pod that is made for it, and pushed.
async fn build(
    backend: &KubernetesBackend<'_>,
    inputs: &Inputs<'_>,
    builder: &str,
    pod: &str,
) -> Result<(), HookError> {
    let settings = backend.settings;
    let own = backend.own().await?;
    let made = BuildPod {
        name: pod.to_owned(),
        own,
        runner_image: runner_image(settings, own),
        image: builder,
        builds: settings.build.buildkit.is_none(),
        architecture: architecture(),
        deadline: settings.deadline.and_then(|limit| i64::try_from(limit.as_secs()).ok()),
    };
    backend.cluster.create_pod(&made.pod()).await?;
    let commands = prepare(backend, inputs)?;
    let (limit, log) = (settings.prepare_timeout, backend.context.log);
    let running = made.places().iter().map(|place| container_name(*place).to_owned());
    let expect = Expect { running: running.collect(), shows_progress: true };
    wait::until_ready(backend.cluster, pod, &expect, log, limit).await?;

    let open = |place| ClusterOpener::new(backend.cluster, pod, container_name(place));
    let openers = [open(Place::Registry), open(Place::Build)];
    let [mut registry, mut build] = openers.each_ref().map(|opener| Session::new(opener));
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
            Place::Registry => &mut registry,
            Place::Build => &mut build,
        };
        run(backend, session, command).await?;
    }
    Ok(())
}

/// What the programs of a build are, and directories with what they need.
fn prepare(
    backend: &KubernetesBackend<'_>,
    inputs: &Inputs<'_>,
) -> Result<Vec<Command>, BuildError> {
    let Inputs { scratch, dockerfile, image, logins } = inputs;
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
            let driver = settings.storage_driver.as_deref().unwrap_or(DRIVER);
            program::buildah(name, image, &written, driver)
        }
    })
}

/// Copies a directory of ours into a container, all of it.
async fn send(
    scratch: &Scratch,
    session: &mut Session<'_>,
    name: &str,
    to: &str,
) -> Result<(), HookError> {
    let from = HostTree::open(&scratch.path(name))?;
    // What is there is known by what arrived, should the stream be lost.
    let record = Record::new(scratch.path(&format!("record-{}", new_id())));
    let all = Scope { include: vec![Vec::new()], ..Scope::default() };
    files::put(session, &from, Path::new(to), &all, &record).await?;
    Ok(())
}

/// Runs a program to its end, in a container of the pod. What it writes goes to the log of the step.
async fn run(
    backend: &KubernetesBackend<'_>,
    session: &mut Session<'_>,
    command: Command,
) -> Result<(), HookError> {
    let Command { program, action, step, may_fail, .. } = command;
    let mut nobody = NoSignals::new().map_err(KubernetesError::Signals)?;
    // Whoever interrupts us has the pod removed.
    let end = agent::run(session, &new_id(), step, &mut nobody, backend.streams).await?;
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

/// Signals that never come.
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

/// Not the runner's work directory: where that is on a claim, the pods of its jobs can write to it.
const PARENT: &str = "/tmp";

/// A directory that is removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, PathError> {
        let path = Path::new(PARENT).join(format!("container-hook-{:016x}", random_u64()));
        // Fails for one that somebody else made.
        DirBuilder::new().mode(0o700).create(&path).at("make the directory", &path)?;
        Ok(Scratch(path))
    }

    /// Returns the path of something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a directory in it, and returns its path.
    pub fn directory(&self, name: &str) -> Result<PathBuf, PathError> {
        let path = self.path(name);
        DirBuilder::new().mode(0o700).create(&path).at("make the directory", &path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            // The runner's pod ends after its job.
            debug!(error = chain(&error), "cannot remove what was built from");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn nobody_else_sees_it_and_nothing_is_left_of_it() {
        let scratch = Scratch::new().unwrap();
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
