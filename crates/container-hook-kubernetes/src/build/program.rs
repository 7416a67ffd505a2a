//! Command lines of buildah and of `buildctl`, and the paths in their containers.

use std::ffi::OsStr;

use container_hook_job::dockerfile::{CONFIGURATION, DROP_INS};
use oci_hooks_image::ImageReference;
use oci_hooks_init::frames::ContainerStep;

use super::logins::{LoginFiles, PUSH};

/// Mount path of the volume that both containers share. It has the build context, buildah's
/// storage, and the result.
pub const SHARED: &str = "/build";
/// Directory of the build context.
pub const CONTEXT: &str = "/build/context";
pub const BUILD_HOME: &str = "/build/home";
const BUILD_TEMPORARY: &str = "/build/tmp";
const STORAGE: &str = "/build/storage";
const LAYOUT: &str = "/build/layout";
/// Mount path of the in-memory volume that only the container `registry` has.
pub const PRIVATE: &str = "/private";
pub const HOME: &str = "/private/home";
pub const LOGINS: &str = "/private/logins";
const TEMPORARY: &str = "/private/tmp";
const LISTS: &str = "/private/storage";

/// Directories that the init container creates.
pub const DIRECTORIES: [&str; 6] = [CONTEXT, BUILD_HOME, BUILD_TEMPORARY, HOME, LOGINS, TEMPORARY];

/// Local name of the built image.
const LOCAL: &str = "localhost/action";
/// Local name of the manifest list that is pushed.
const LIST: &str = "localhost/list";

/// Container in which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildContainer {
    /// Runs the Dockerfile's own programs.
    Build,
    Registry,
}

/// A command of a build, and the container in which it runs.
#[derive(Clone, Debug)]
pub struct BuildCommand {
    pub place: BuildContainer,
    pub program: &'static str,
    pub action: &'static str,
    pub step: ContainerStep,
    /// If set, the build continues when the program fails.
    pub may_fail: bool,
}

/// Returns the buildah commands that build and push an image, in order.
///
/// Base images that need a login are pulled first, before any program of the Dockerfile runs. The result is
/// exported as an OCI layout, which is pushed unchanged: no content made by the Dockerfile is unpacked in the
/// container with the logins, and every part is identified by its digest.
pub fn buildah(
    dockerfile: &OsStr,
    image: &ImageReference,
    logins: &LoginFiles,
    driver: &str,
) -> Vec<BuildCommand> {
    let mut commands = Vec::new();
    for (base, file) in &logins.pulls {
        let file = format!("{LOGINS}/{file}");
        let pull = Buildah { place: BuildContainer::Registry, storage: STORAGE, driver };
        let mut command = pull.command("pull", &["pull", "--authfile", &file, base]);
        // Not every image that a Dockerfile names is needed; if one is, the build reports the failure.
        command.may_fail = true;
        commands.push(command);
    }
    let build = Buildah { place: BuildContainer::Build, storage: STORAGE, driver };
    let options = ["bud", "--isolation", "chroot", "--format", "docker", "--layers=false"];
    let rest = ["--pull=false", "--tag", LOCAL, "--file"];
    let mut command = build.command("build", &[&options[..], &rest[..]].concat());
    let mut file = format!("{CONTEXT}/").into_bytes();
    file.extend_from_slice(dockerfile.as_encoded_bytes());
    command.step.args.extend([file, CONTEXT.into()]);
    commands.push(command);
    let layout = format!("oci:{LAYOUT}:action");
    commands.push(build.command("push", &["push", "--quiet", LOCAL, &layout]));

    let push = Buildah { place: BuildContainer::Registry, storage: LISTS, driver: "vfs" };
    commands.push(push.command("manifest create", &["manifest", "create", LIST]));
    commands.push(push.command("manifest add", &["manifest", "add", LIST, &layout]));
    let target = format!("docker://{image}");
    let login = format!("{LOGINS}/{PUSH}");
    let mut arguments = vec!["manifest", "push", "--all"];
    if logins.push {
        arguments.extend(["--authfile", &login]);
    }
    arguments.extend([LIST, &target]);
    commands.push(push.command("manifest push", &arguments));
    commands
}

/// Returns the command that sends the context to a BuildKit, which builds and pushes.
pub fn buildctl(
    address: &str,
    dockerfile: &OsStr,
    image: &ImageReference,
    is_insecure: bool,
) -> Vec<BuildCommand> {
    let mut output = format!("type=image,name={image},push=true");
    if is_insecure {
        output += ",registry.insecure=true";
    }
    let (context, file) = (format!("context={CONTEXT}"), format!("dockerfile={CONTEXT}"));
    let arguments = ["buildctl", "--addr", address, "build", "--progress", "plain"];
    let sources = ["--frontend", "dockerfile.v0", "--local", &context, "--local", &file];
    let output = ["--output", &output, "--opt"];
    let mut args = bytes(&[&arguments[..], &sources[..], &output[..]].concat());
    args.push([b"filename=", dockerfile.as_encoded_bytes()].concat());
    let env = [("HOME", HOME), ("DOCKER_CONFIG", LOGINS), ("TMPDIR", TEMPORARY)];
    let step = ContainerStep { args, env: env.map(variable).into(), ..ContainerStep::default() };
    let (place, program) = (BuildContainer::Registry, "buildctl");
    vec![BuildCommand { place, program, action: "build", step, may_fail: false }]
}

/// Container, storage directory and storage driver of buildah commands.
struct Buildah<'a> {
    place: BuildContainer,
    storage: &'a str,
    /// Storage driver. The option overrides the image's own settings, which need devices that pods lack.
    driver: &'a str,
}

impl Buildah<'_> {
    fn command(&self, action: &'static str, arguments: &[&str]) -> BuildCommand {
        let (home, temporary) = match self.place {
            BuildContainer::Build => (BUILD_HOME, BUILD_TEMPORARY),
            // Pulled layers are large, and must not go to the in-memory volume.
            BuildContainer::Registry if self.storage == STORAGE => (HOME, BUILD_TEMPORARY),
            BuildContainer::Registry => (HOME, TEMPORARY),
        };
        let path = |name: &str| format!("{}/{name}", self.storage);
        let (root, run) = (path("root"), path("run"));
        let (conf, more) = (format!("{home}/{CONFIGURATION}"), format!("{home}/{DROP_INS}"));
        let options = ["buildah", "--root", &root, "--runroot", &run, "--storage-driver"];
        let registries = [self.driver, "--registries-conf", &conf, "--registries-conf-dir", &more];
        let args = bytes(&[&options[..], &registries[..], arguments].concat());
        let env = [
            ("HOME", home),
            ("TMPDIR", temporary),
            ("XDG_RUNTIME_DIR", temporary),
            // Some buildah images set these variables for another environment.
            ("_BUILDAH_STARTED_IN_USERNS", ""),
            ("BUILDAH_ISOLATION", "chroot"),
        ];
        let step =
            ContainerStep { args, env: env.map(variable).into(), ..ContainerStep::default() };
        BuildCommand { place: self.place, program: "buildah", action, step, may_fail: false }
    }
}

fn bytes(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn variable((name, value): (&str, &str)) -> (Vec<u8>, Vec<u8>) {
    (name.into(), value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(commands: &[BuildCommand]) -> Vec<String> {
        let line = |command: &BuildCommand| {
            let args = command.step.args.iter().map(|arg| String::from_utf8_lossy(arg));
            format!("{:?} {}", command.place, args.collect::<Vec<_>>().join(" "))
        };
        commands.iter().map(line).collect()
    }

    #[test]
    fn logins_are_outside_of_the_context() {
        let image = "registry.example/ci/dockerfile-action:0".parse().unwrap();
        let pulls = vec![("ghcr.io/octo/base:1".to_owned(), "pull-0.json".to_owned())];
        let logins = LoginFiles { push: true, pulls };
        let commands = buildah("Dockerfile".as_ref(), &image, &logins, "overlay");
        let storage = "buildah --root /build/storage/root --runroot /build/storage/run \
                       --storage-driver overlay";
        let registries = |home| {
            format!(
                "--registries-conf {home}/registries.conf --registries-conf-dir {home}/registries.conf.d"
            )
        };
        let (of_build, of_registry) = (registries("/build/home"), registries("/private/home"));
        let lists = format!(
            "Registry buildah --root /private/storage/root --runroot /private/storage/run \
             --storage-driver vfs {of_registry} manifest"
        );
        let expected = [
            format!(
                "Registry {storage} {of_registry} pull --authfile /private/logins/pull-0.json ghcr.io/octo/base:1"
            ),
            format!(
                "Build {storage} {of_build} bud --isolation chroot --format docker --layers=false --pull=false --tag localhost/action --file /build/context/Dockerfile /build/context"
            ),
            format!(
                "Build {storage} {of_build} push --quiet localhost/action oci:/build/layout:action"
            ),
            format!("{lists} create localhost/list"),
            format!("{lists} add localhost/list oci:/build/layout:action"),
            format!(
                "{lists} push --all --authfile /private/logins/config.json localhost/list docker://registry.example/ci/dockerfile-action:0"
            ),
        ];
        assert_eq!(lines(&commands), expected);
        let may_fail: Vec<_> = commands.iter().map(|command| command.may_fail).collect();
        assert_eq!(may_fail, [true, false, false, false, false, false]);
        let none = buildah("Dockerfile".as_ref(), &image, &LoginFiles::default(), "vfs");
        assert!(!lines(&none).iter().any(|line| line.contains("authfile")));
    }

    #[test]
    fn buildkit_gets_the_context_and_pushes_the_image() {
        let image = "127.0.0.1:5000/ci/dockerfile-action:0".parse().unwrap();
        let commands = buildctl("tcp://buildkit:1234", "Dockerfile.ci".as_ref(), &image, true);
        let expected = "Registry buildctl --addr tcp://buildkit:1234 build --progress plain \
                        --frontend dockerfile.v0 --local context=/build/context \
                        --local dockerfile=/build/context --output \
                        type=image,name=127.0.0.1:5000/ci/dockerfile-action:0,push=true,registry.insecure=true \
                        --opt filename=Dockerfile.ci";
        assert_eq!(lines(&commands), [expected]);
    }
}
