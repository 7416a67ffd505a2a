//! buildah in a container, with the network, the limits and the users of the job, and nothing of this host but its
//! programs.

use std::path::Path;
use std::process::ExitStatus;

use super::{Build, BuildError, STORE, Scratch};
use crate::bundle::{self, Init, Mount, MountSource, Propagation, Seccomp, Security, Tmpfs};
use crate::container::{HostSystem, Ran, Role, Spec, new_id};
use crate::container_hook::dockerfile::{CONFIGURATION, HereDocument, NO_MORE};
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::engine::plan::{LaunchContext, PendingContainer, Plan};
use crate::container_hook::engine::settings::{BuildOptions, NewPrivileges};
use crate::container_hook::engine::{audit, ceilings};
use crate::container_hook::error::HookError;
use crate::container_hook::options::NetworkMode;
use crate::image::Image;
use crate::network::Endpoint;
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;
use crate::sys::privilege::Privilege;
use crate::sys::version::ProgramVersion;

/// Where buildah is in the container, and what it is given and makes.
const PROGRAM: &str = "/buildah";
const GIVEN: &str = "/build";
const STORAGE: &str = "/store";
const LAYOUT: &str = "/layout";
const TEMPORARY: &str = "/var/tmp";
/// Where it and programs that it calls write besides.
const MEMORY: [&str; 3] = ["/run", "/tmp", "/var/cache"];

/// Larger exit codes of shells and of our first process stand for signals.
const SIGNALLED: i32 = 128;

/// The step that needs an image, and what the build has in common with it.
#[derive(Clone, Copy)]
pub struct BuildSite<'a> {
    /// The step's container.
    pub plan: &'a Plan<'a>,
    /// What it is started in.
    pub context: LaunchContext<'a>,
    /// Passes signals on to a process that ends with the container.
    pub pass_on: &'a dyn Fn(u32),
}

impl Build {
    /// Builds the image, and imports it into the store.
    pub fn run(self, backend: &EngineBackend<'_>, site: BuildSite<'_>) -> Result<Image, HookError> {
        let log = backend.context.log;
        if backend.engine.privilege == Privilege::Single {
            log.warning(
                "this user has no subordinate ids: a Dockerfile cannot give files to other users than root",
            );
        }
        for base in &self.bases.new {
            base.forget().map_err(BuildError::from)?;
        }
        log.group(&format!("Build {}", self.dockerfile.display()));
        let ran = self.run_container(backend, site);
        log.end_group();
        let Ran { status, limits_hit } = ran?;
        for hit in limits_hit {
            log.warning(&format!("the build of {} {hit}", self.dockerfile.display()));
        }
        if !status.success() {
            return Err(self.failed(status).into());
        }
        for base in &self.bases.new {
            base.remember()?;
        }
        let layout = self.scratch.path.join(Scratch::LAYOUT);
        let image = backend.engine.store.import(&layout, &self.reference);
        Ok(image.map_err(BuildError::from)?)
    }

    fn failed(mut self, status: ExitStatus) -> BuildError {
        self.scratch.was_killed = status.code().is_none_or(|code| code > SIGNALLED);
        let Some(document) = self.here_document else { return BuildError::Failed { status } };
        match ProgramVersion::of(&self.program) {
            Some(found) if found.number < HereDocument::SINCE => {
                BuildError::HereDocument { status, line: document.line, found: found.text }
            }
            _ => BuildError::Failed { status },
        }
    }

    /// Runs buildah to its end, connected as a container of the job.
    fn run_container(
        &self,
        backend: &EngineBackend<'_>,
        site: BuildSite<'_>,
    ) -> Result<Ran, HookError> {
        let network = site.context.network;
        let id = new_id();
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
        BuildSite { plan, context, pass_on }: BuildSite<'_>,
        id: &str,
        endpoint: Endpoint,
    ) -> Result<Ran, HookError> {
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
        let prepared = engine.prepare(Spec {
            id: id.to_owned(),
            name,
            network: Some(context.network.id().to_owned()),
            group: ceilings::group(backend, context.network.id()),
            options,
            ..Spec::new(Role::Step, backend.context.runner.owner(), &pending.image)
        })?;
        Ok(prepared.run(pass_on)?)
    }

    /// Returns what the container is given but for its users and its network.
    fn options(
        &self,
        backend: &EngineBackend<'_>,
        plan: &Plan<'_>,
        system: &HostSystem,
    ) -> Result<bundle::Options, HookError> {
        let BuildOptions { options, env, .. } = &backend.settings.build;
        let home = format!("{GIVEN}/{}", Scratch::HOME);
        let own = [
            ("HOME", home.as_str()),
            ("TMPDIR", TEMPORARY),
            ("XDG_RUNTIME_DIR", "/run"),
            // It is in the namespaces that it needs, and makes no others.
            ("_CONTAINERS_USERNS_CONFIGURED", "1"),
            ("STORAGE_DRIVER", "overlay"),
        ];
        let given = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let env = own.into_iter().chain(given).map(|(name, value)| format!("{name}={value}"));
        let privilege = backend.engine.privilege;
        let denies_privileges = backend.settings.new_privileges == NewPrivileges::Denied;
        let init =
            Init { program: backend.engine.init_program()?, args: Vec::new(), idle_only: false };
        Ok(bundle::Options {
            args: vec!["/bin/sh".to_owned(), "-c".to_owned(), self.script(privilege, options)],
            init: Some(init),
            env: env.collect(),
            mounts: self.mounts(system)?,
            read_only: true,
            security: Security {
                no_new_privileges: denies_privileges,
                // Of its own user namespace, to mount what it builds in.
                cap_add: vec!["SYS_ADMIN".to_owned()],
                nesting: true,
                seccomp: Seccomp::Profile(bundle::builder_profile(privilege)),
                ..Security::default()
            },
            ..plan.limits(backend)
        })
    }

    fn mounts(&self, system: &HostSystem) -> Result<Vec<Mount>, PathError> {
        let mount = |target: &str, source, read_only| Mount {
            target: target.into(),
            source,
            subpath: None,
            read_only,
            id_mapping: None,
        };
        let directory = |name: &str| MountSource::Trusted {
            path: self.scratch.path.join(name),
            propagation: Propagation::Private,
            recursive: false,
        };
        let program = MountSource::System { file: HostFile::open_trusted(&self.program)? };
        let store =
            MountSource::Volume { path: self.storage.join(STORE), copy: false, is_shared: true };
        let own = [
            mount(PROGRAM, program, true),
            mount(GIVEN, directory(Scratch::GIVEN), true),
            mount(LAYOUT, directory(Scratch::LAYOUT), false),
            mount(TEMPORARY, directory(Scratch::TEMPORARY), false),
            mount(STORAGE, store, false),
        ];
        let memory =
            MEMORY.map(|target| mount(target, MountSource::Tmpfs(Tmpfs::default()), false));
        Ok(system.mounts().chain(own).chain(memory).collect())
    }

    /// Returns the commands of the shell that put images into buildah's store, build, and write the result.
    fn script(&self, privilege: Privilege, options: &[String]) -> String {
        let home = Path::new(GIVEN).join(Scratch::HOME);
        let in_home = |name: &str| home.join(name).display().to_string();
        let mut buildah = [PROGRAM, "--root", "/store/root", "--runroot", "/store/run"]
            .map(str::to_owned)
            .to_vec();
        buildah.extend(["--registries-conf".to_owned(), in_home(CONFIGURATION)]);
        buildah.extend(["--registries-conf-dir".to_owned(), in_home(NO_MORE)]);
        if privilege == Privilege::Single {
            // There is one owner: files of an image that belong to others are its own.
            buildah
                .extend(["--storage-opt", "overlay.ignore_chown_errors=true"].map(str::to_owned));
        }
        buildah.extend_from_slice(options);
        let command = |arguments: &[&str]| {
            let words = buildah.iter().map(String::as_str).chain(arguments.iter().copied());
            words.map(quoted).collect::<Vec<_>>().join(" ")
        };
        let mut commands = Vec::new();
        for base in &self.bases.new {
            let layout = format!("oci:{GIVEN}/{}/{}", Scratch::IMAGES, base.directory);
            commands.push(format!("{} >/dev/null", command(&["pull", "--quiet", &layout])));
            commands.push(command(&["tag", base.id(), &base.name()]));
        }
        let context = format!("{GIVEN}/{}", Scratch::CONTEXT);
        let (file, tag) = (format!("{context}/{}", self.file_name), self.reference.to_string());
        // Where an image cannot be had, buildah has no better way to it.
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

/// Returns a word as the shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_a_word_as_it_is() {
        for word in ["", "a b", "it's", "'", "$(exit)\n`x`\\"] {
            let script = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), word);
        }
    }
}
