//! Runs buildah in a container, with the network, limits and user namespace of the job, and only the programs of this
//! host.

use std::path::Path;
use std::process::ExitStatus;

use oci_hooks_engine::bundle::{
    self, ContainerInit, ContainerSecurity, MountPropagation, MountRequest, MountSource, Seccomp,
    TmpfsMount,
};
use oci_hooks_engine::container::{ContainerRole, ContainerSpec, HostSystem, RunResult, new_id};
use oci_hooks_engine::network::NetworkEndpoint;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::version::ProgramVersion;
use oci_hooks_image::{Image, ImportError};

use super::{BuildError, BuildScratch, PreparedBuild, STORE};
use crate::dockerfile::{CONFIGURATION, HereDocument, NO_MORE};
use crate::engine::backend::EngineBackend;
use crate::engine::plan::{LaunchContext, LaunchPlan, PendingContainer};
use crate::engine::settings::{BuildOptions, NewPrivileges};
use crate::engine::{audit, ceilings};
use crate::error::HookError;
use crate::options::NetworkMode;

/// Paths in the container: buildah, its input, store and output.
const PROGRAM: &str = "/buildah";
const GIVEN: &str = "/build";
const STORAGE: &str = "/store";
const LAYOUT: &str = "/layout";
const TEMPORARY: &str = "/var/tmp";
/// `tmpfs` mounts, for other files of buildah and the programs that it calls.
const MEMORY: [&str; 3] = ["/run", "/tmp", "/var/cache"];

/// Larger exit codes of shells and of our init process stand for signals.
const SIGNALLED: i32 = 128;

/// The step that needs an image, whose network and limits the build shares.
#[derive(Clone, Copy)]
pub struct BuildSite<'a> {
    /// Plan of the step's container.
    pub plan: &'a LaunchPlan<'a>,
    /// Launch context of the step.
    pub context: LaunchContext<'a>,
    /// The step's endpoint, unless it is not on the job's network.
    pub endpoint: Option<&'a NetworkEndpoint>,
    /// Forwards signals to a process that ends with the container.
    pub pass_on: &'a dyn Fn(u32),
}

/// The end of buildah's container and, if it succeeded, the import of its image.
type BuildResult = (RunResult, Option<Result<Image, ImportError>>);

impl PreparedBuild {
    /// Builds the image, and imports it into the store.
    pub fn run(self, backend: &EngineBackend<'_>, site: BuildSite<'_>) -> Result<Image, HookError> {
        let log = backend.context.log;
        if backend.engine.privilege == Privilege::Single {
            log.warning(
                "this user has no subordinate ids: a Dockerfile cannot chown files to users other than root",
            );
        }
        for base in &self.bases.new {
            base.forget().map_err(BuildError::from)?;
        }
        log.group(&format!("Build {}", self.dockerfile.display()));
        let ran = self.run_container(backend, site);
        log.end_group();
        let (RunResult { status, limits_hit }, image) = ran?;
        for hit in limits_hit {
            log.warning(&format!("the build of {} {hit}", self.dockerfile.display()));
        }
        let Some(image) = image else { return Err(self.into_error(status).into()) };
        for base in &self.bases.new {
            base.remember()?;
        }
        Ok(image.map_err(BuildError::from)?)
    }

    fn into_error(mut self, status: ExitStatus) -> BuildError {
        self.scratch.was_killed = status.code().is_none_or(|code| code > SIGNALLED);
        let Some(document) = self.here_document else { return BuildError::Failed { status } };
        match ProgramVersion::of(&self.program) {
            Some(found) if found.number < HereDocument::SINCE => {
                BuildError::HereDocument { status, line: document.line, found: found.text }
            }
            _ => BuildError::Failed { status },
        }
    }

    /// Runs buildah to its end, connected to the job's network: by the endpoint of the step, which starts afterwards,
    /// or by its own if the step has none. Imports the image if buildah succeeds.
    fn run_container(
        &self,
        backend: &EngineBackend<'_>,
        site: BuildSite<'_>,
    ) -> Result<BuildResult, HookError> {
        let network = site.context.network;
        let id = new_id();
        if let Some(endpoint) = site.endpoint {
            return self.run_connected(backend, site, &id, endpoint.clone());
        }
        let endpoint = network.attach(&id, Vec::new())?;
        let ran = self.run_connected(backend, site, &id, endpoint);
        let detached = network.detach(&id);
        let ran = ran?;
        detached?;
        Ok(ran)
    }

    fn run_connected(
        &self,
        backend: &EngineBackend<'_>,
        BuildSite { plan, context, pass_on, .. }: BuildSite<'_>,
        id: &str,
        endpoint: NetworkEndpoint,
    ) -> Result<BuildResult, HookError> {
        let engine = backend.engine;
        let system = HostSystem::find()?;
        let image = system.image(&engine.store)?;
        let pending = PendingContainer { plan, image, id: id.to_owned(), endpoint: Some(endpoint) };
        let mut options = self.options(backend, plan, &system)?;
        options.hostname = Some(id[..12].to_owned());
        options.private_ids = context.network.private_ids();
        options.user_namespace = context.network.user_namespace();
        if options.user_namespace.is_none() && !engine.privilege.has_own_users() {
            return Err(BuildError::NoUserNamespace.into());
        }
        let connection =
            context.network.connection(NetworkMode::Job, pending.endpoint.as_ref(), context.peers);
        plan.connect(backend, &connection, &mut options);
        let name = format!("{}-build", plan.container.name());
        options.annotations = backend.context.runner.annotations("build", &name);
        audit::container(backend, &pending, &options, &engine.runtime.program)?;
        let prepared = engine.prepare(ContainerSpec {
            id: id.to_owned(),
            name,
            network: Some(context.network.id().to_owned()),
            group: ceilings::group(backend, context.network.id()),
            options,
            ..ContainerSpec::new(
                ContainerRole::Step,
                backend.context.runner.owner(),
                &pending.image,
            )
        })?;
        let import = |status: ExitStatus| {
            let layout = self.scratch.path.join(BuildScratch::LAYOUT);
            status.success().then(|| engine.store.import(&layout, &self.reference))
        };
        Ok(prepared.run_then(pass_on, import)?)
    }

    /// Returns the options of the container, without its user namespace and network.
    fn options(
        &self,
        backend: &EngineBackend<'_>,
        plan: &LaunchPlan<'_>,
        system: &HostSystem,
    ) -> Result<bundle::BundleOptions, HookError> {
        let BuildOptions { options, env, .. } = &backend.settings.build;
        let home = format!("{GIVEN}/{}", BuildScratch::HOME);
        let own = [
            ("HOME", home.as_str()),
            ("TMPDIR", TEMPORARY),
            ("XDG_RUNTIME_DIR", "/run"),
            // buildah is already in its namespaces, and must not create a user namespace.
            ("_CONTAINERS_USERNS_CONFIGURED", "1"),
            ("STORAGE_DRIVER", "overlay"),
        ];
        let given = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let env = own.into_iter().chain(given).map(|(name, value)| format!("{name}={value}"));
        let privilege = backend.engine.privilege;
        let denies_privileges = backend.settings.new_privileges == NewPrivileges::Denied;
        let init = ContainerInit {
            program: backend.engine.init_program()?,
            args: Vec::new(),
            idle_only: false,
        };
        Ok(bundle::BundleOptions {
            args: vec!["/bin/sh".to_owned(), "-c".to_owned(), self.script(privilege, options)],
            init: Some(init),
            env: env.collect(),
            mounts: self.mounts(system)?,
            read_only: true,
            security: ContainerSecurity {
                no_new_privileges: denies_privileges,
                // In its own user namespace, to mount the root file systems of the build.
                cap_add: vec!["SYS_ADMIN".to_owned()],
                nesting: true,
                seccomp: Seccomp::Profile(bundle::builder_profile(privilege)),
                ..ContainerSecurity::default()
            },
            ..plan.limits(backend)
        })
    }

    fn mounts(&self, system: &HostSystem) -> Result<Vec<MountRequest>, PathError> {
        let mount = |target: &str, source, read_only| MountRequest {
            target: target.into(),
            source,
            subpath: None,
            read_only,
            id_mapping: None,
        };
        let directory = |name: &str| MountSource::Trusted {
            path: self.scratch.path.join(name),
            propagation: MountPropagation::Private,
            recursive: false,
        };
        let program = MountSource::System { file: HostFile::open_trusted(&self.program)? };
        let store =
            MountSource::Volume { path: self.storage.join(STORE), copy: false, is_shared: true };
        let own = [
            mount(PROGRAM, program, true),
            mount(GIVEN, directory(BuildScratch::GIVEN), true),
            mount(LAYOUT, directory(BuildScratch::LAYOUT), false),
            mount(TEMPORARY, directory(BuildScratch::TEMPORARY), false),
            mount(STORAGE, store, false),
        ];
        let memory =
            MEMORY.map(|target| mount(target, MountSource::Tmpfs(TmpfsMount::default()), false));
        Ok(system.mounts().chain(own).chain(memory).collect())
    }

    /// Returns the shell script that loads base images into buildah's store, builds, and writes the image.
    fn script(&self, privilege: Privilege, options: &[String]) -> String {
        let home = Path::new(GIVEN).join(BuildScratch::HOME);
        let in_home = |name: &str| home.join(name).display().to_string();
        let mut buildah = [PROGRAM, "--root", "/store/root", "--runroot", "/store/run"]
            .map(str::to_owned)
            .to_vec();
        buildah.extend(["--registries-conf".to_owned(), in_home(CONFIGURATION)]);
        buildah.extend(["--registries-conf-dir".to_owned(), in_home(NO_MORE)]);
        if privilege == Privilege::Single {
            // Only one id is mapped, so all files of an image belong to it.
            buildah
                .extend(["--storage-opt", "overlay.ignore_chown_errors=true"].map(str::to_owned));
        }
        buildah.extend_from_slice(options);
        let command = |arguments: &[&str]| {
            let words = buildah.iter().map(String::as_str).chain(arguments.iter().copied());
            words.map(quote_word).collect::<Vec<_>>().join(" ")
        };
        let mut commands = Vec::new();
        for base in &self.bases.new {
            let layout = format!("oci:{GIVEN}/{}/{}", BuildScratch::IMAGES, base.directory);
            commands.push(format!("{} >/dev/null", command(&["pull", "--quiet", &layout])));
            commands.push(command(&["tag", base.id(), &base.name()]));
        }
        let context = format!("{GIVEN}/{}", BuildScratch::CONTEXT);
        let (file, tag) = (format!("{context}/{}", self.file_name), self.reference.to_string());
        // buildah cannot pull the missing images either.
        let pull = if self.bases.are_incomplete { "--pull-never" } else { "--pull=false" };
        commands.push(command(&[
            "bud",
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--layers",
            pull,
            "--tag",
            &tag,
            "--file",
            &file,
            &context,
        ]));
        let target = format!("oci:{LAYOUT}");
        commands.push(command(&["push", "--quiet", "--disable-compression", &tag, &target]));
        commands.join(" &&\n")
    }
}

/// Quotes a word for the shell.
fn quote_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_read_unchanged_by_the_shell() {
        for word in ["", "a b", "it's", "'", "$(exit)\n`x`\\"] {
            let script = format!("printf %s {}", quote_word(word));
            let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), word);
        }
    }
}
