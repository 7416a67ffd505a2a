//! Runs buildah in a container with its own network and user namespace, the limits of the step, and only the
//! programs of this host.

use std::path::Path;
use std::process::ExitStatus;

use container_hook_job::HookError;
use container_hook_job::dockerfile::{CONFIGURATION, DROP_INS, HereDocument};
use oci_hooks_engine::bundle::{
    self, ContainerInit, ContainerSecurity, HostEntry, MountPropagation, MountRequest, MountSource,
    NamespaceSource, ResolverOptions, Seccomp, TmpfsMount,
};
use oci_hooks_engine::container::{ContainerRole, ContainerSpec, HostSystem, RunResult, new_id};
use oci_hooks_engine::network::NetworkEndpoint;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::version::ProgramVersion;
use oci_hooks_image::{Image, ImportError};

use super::bases::LayerMount;
use super::{BuildError, BuildScratch, PreparedBuild};
use crate::backend::EngineBackend;
use crate::network::JobNetwork;
use crate::plan::{LaunchContext, LaunchPlan, PendingContainer};
use crate::settings::NewPrivileges;
use crate::{audit, maximums};

/// Path of buildah in the container.
const PROGRAM: &str = "/buildah";
/// Path of the build's read-only input in the container.
const BUILD_DIRECTORY: &str = "/build";
/// Path of buildah's store in the container.
const STORAGE: &str = "/store";
/// Path of the built image, an OCI layout, in the container.
const LAYOUT: &str = "/layout";
/// Path of the directory for temporary files in the container.
const TEMPORARY: &str = "/var/tmp";
/// `tmpfs` mounts, for other files of buildah and the programs that it calls.
const MEMORY: [&str; 3] = ["/run", "/tmp", "/var/cache"];

/// The container step for which an image is built; its limits apply to the build.
#[derive(Clone, Copy)]
pub struct DependentStep<'a> {
    pub plan: &'a LaunchPlan<'a>,
    pub context: LaunchContext<'a>,
    /// Called with the PID of a process that ends with the container, to forward signals to it.
    pub pass_on: &'a dyn Fn(u32),
}

/// The end of buildah's container and, if it succeeded, the import of its image.
type BuildResult = (RunResult, Option<Result<Image, ImportError>>);

impl PreparedBuild {
    /// Builds the image, and imports it into the store.
    pub fn run(
        self,
        backend: &EngineBackend<'_>,
        step: DependentStep<'_>,
    ) -> Result<Image, HookError> {
        let log = backend.context.log;
        let runtime = step.plan.runtime(backend);
        if !runtime.capabilities().joins_user_namespaces {
            return Err(BuildError::Runtime(runtime.program.clone()).into());
        }
        if backend.engine.privilege == Privilege::Single {
            log.warning(
                "this user has no subordinate ids: a Dockerfile cannot chown files to users other than root",
            );
        }
        log.group(&format!("Build {}", self.dockerfile.display()));
        let ran = self.run_container(backend, step);
        log.end_group();
        let (RunResult { status, limits_hit }, image) = ran?;
        for hit in limits_hit {
            log.warning(&format!("the build of {} {hit}", self.dockerfile.display()));
        }
        let Some(image) = image else { return Err(self.into_error(status).into()) };
        Ok(image.map_err(BuildError::from)?)
    }

    fn into_error(self, status: ExitStatus) -> BuildError {
        let Some(document) = self.here_document else { return BuildError::Failed { status } };
        match ProgramVersion::of(&self.program) {
            Some(found) if found.number < HereDocument::SINCE => {
                BuildError::HereDocument { status, line: document.line, found: found.text }
            }
            _ => BuildError::Failed { status },
        }
    }

    /// Runs buildah to its end, in its own network, where containers of the job cannot impersonate the
    /// servers from which a Dockerfile downloads. Imports the image if buildah succeeds.
    fn run_container(
        &self,
        backend: &EngineBackend<'_>,
        step: DependentStep<'_>,
    ) -> Result<BuildResult, HookError> {
        let network = JobNetwork::create_for_build(backend, step.context.network, step.plan)?;
        let id = new_id();
        let ran = network
            .attach(&id, Vec::new())
            .and_then(|endpoint| self.run_connected(backend, step, &network, (&id, endpoint)));
        let removed = network.remove();
        let ran = ran?;
        removed?;
        Ok(ran)
    }

    fn run_connected(
        &self,
        backend: &EngineBackend<'_>,
        DependentStep { plan, context, pass_on, .. }: DependentStep<'_>,
        network: &JobNetwork,
        (id, endpoint): (&str, NetworkEndpoint),
    ) -> Result<BuildResult, HookError> {
        let engine = backend.engine;
        let system = HostSystem::find()?;
        let image = system.image(&engine.store)?;
        let pending =
            PendingContainer { plan, image, id: id.to_owned(), endpoint: Some(endpoint.clone()) };
        let mut options = self.options(backend, plan, &system)?;
        options.hostname = Some(id[..12].to_owned());
        options.private_ids = network.private_ids();
        options.user_namespace = network.user_namespace();
        if options.user_namespace.is_none() && !engine.privilege.has_own_users() {
            return Err(BuildError::NoUserNamespace.into());
        }
        // Other jobs use the built image too, so the `--add-host` and `--dns` of this step do not apply.
        options.namespaces.network = NamespaceSource::Path(endpoint.netns.clone());
        options.dns = Some(ResolverOptions {
            servers: backend.settings.dns.clone(),
            fallback: endpoint.resolver,
            ..ResolverOptions::default()
        });
        let names: Vec<_> = options.hostname.iter().cloned().collect();
        let own = endpoint.addresses.iter();
        options.hosts =
            Some(own.map(|&address| HostEntry { address, names: names.clone() }).collect());
        let name = format!("{}-build", plan.container.name());
        options.annotations = backend.context.runner.annotations("build", &name);
        audit::container(backend, &pending, &options, &engine.runtime.program)?;
        let prepared = engine.prepare(ContainerSpec {
            id: id.to_owned(),
            name,
            network: Some(context.network.id().to_owned()),
            group: maximums::group(backend, context.network.id()),
            options,
            ..ContainerSpec::new(
                ContainerRole::Step,
                backend.context.runner.owner(),
                &pending.image,
            )
        })?;
        let import = |status: ExitStatus| {
            let layout = self.scratch.path.join(BuildScratch::LAYOUT);
            let import = || engine.store.import_onto(&layout, &self.reference, &self.bases.images);
            status.success().then(import)
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
        let (options, env) = (&backend.settings.build.options, &backend.settings.build_env);
        let home = format!("{BUILD_DIRECTORY}/{}", BuildScratch::HOME);
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
                // Lets buildah mount the root file systems of the build, in its own user namespace.
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
        let store = self.scratch.path.join(BuildScratch::STORE);
        let store = MountSource::Volume { path: store, copy: false, is_shared: false };
        let layers = self.layers.iter().map(|LayerMount { layer, target }| {
            let target = Path::new(BUILD_DIRECTORY).join(BuildScratch::IMAGES).join(target);
            let propagation = MountPropagation::Private;
            let source =
                MountSource::Trusted { path: layer.clone(), propagation, recursive: false };
            MountRequest { target, source, subpath: None, read_only: true, id_mapping: None }
        });
        let own = [
            mount(PROGRAM, program, true),
            mount(BUILD_DIRECTORY, directory(BuildScratch::INPUT), true),
            mount(LAYOUT, directory(BuildScratch::LAYOUT), false),
            mount(TEMPORARY, directory(BuildScratch::TEMPORARY), false),
            mount(STORAGE, store, false),
        ];
        let memory =
            MEMORY.map(|target| mount(target, MountSource::Tmpfs(TmpfsMount::default()), false));
        Ok(system.mounts().chain(own).chain(layers).chain(memory).collect())
    }

    /// Returns the shell script that builds the image and writes it to the layout.
    fn script(&self, privilege: Privilege, options: &[String]) -> String {
        let home = Path::new(BUILD_DIRECTORY).join(BuildScratch::HOME);
        let in_home = |name: &str| home.join(name).display().to_string();
        let mut buildah = [PROGRAM, "--root", "/store/root", "--runroot", "/store/run"]
            .map(str::to_owned)
            .to_vec();
        let images = Path::new(BUILD_DIRECTORY).join(BuildScratch::IMAGES).display().to_string();
        buildah.extend(["--storage-opt".to_owned(), format!("overlay.imagestore={images}")]);
        buildah.extend(["--registries-conf".to_owned(), in_home(CONFIGURATION)]);
        buildah.extend(["--registries-conf-dir".to_owned(), in_home(DROP_INS)]);
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
        let context = format!("{BUILD_DIRECTORY}/{}", BuildScratch::CONTEXT);
        let (file, tag) = (format!("{context}/{}", self.file_name), self.reference.to_string());
        // buildah cannot pull the missing images either.
        let pull = if self.bases.has_missing_images { "--pull-never" } else { "--pull=false" };
        let build = command(&[
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
        ]);
        let target = format!("oci:{LAYOUT}");
        let push = command(&["push", "--quiet", "--disable-compression", &tag, &target]);
        format!("{build} &&\n{push}")
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
