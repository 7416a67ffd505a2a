//! The command lines of buildah and of `buildctl`, and where everything is in their containers.

use std::ffi::OsStr;

use super::logins::{PUSH, Written};
use crate::container_hook::dockerfile::{CONFIGURATION, NO_MORE};
use crate::image::Reference;
use crate::sys::init::frames::Step;

/// What both containers see: the context, what is built, and the result.
pub const SHARED: &str = "/build";
/// The context, and in a build pod's other container what buildah is told of registries.
pub const CONTEXT: &str = "/build/context";
pub const BUILD_HOME: &str = "/build/home";
const BUILD_TEMPORARY: &str = "/build/tmp";
const STORAGE: &str = "/build/storage";
const LAYOUT: &str = "/build/layout";
/// What only `registry` sees.
pub const PRIVATE: &str = "/private";
pub const HOME: &str = "/private/home";
pub const LOGINS: &str = "/private/logins";
const TEMPORARY: &str = "/private/tmp";
const LISTS: &str = "/private/storage";

/// The directories that have to be there.
pub const DIRECTORIES: [&str; 6] = [CONTEXT, BUILD_HOME, BUILD_TEMPORARY, HOME, LOGINS, TEMPORARY];

/// What the image is called until it is pushed.
const LOCAL: &str = "localhost/action";
const LIST: &str = "localhost/list";

/// Which container runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the Dockerfile's own programs run.
    Build,
    /// Where the logins are.
    Registry,
}

/// A program of a build.
#[derive(Clone, Debug)]
pub struct Command {
    pub place: Place,
    pub program: &'static str,
    /// What it does, for messages.
    pub action: &'static str,
    pub step: Step,
    /// Whether the build goes on without it.
    pub may_fail: bool,
}

/// Returns what buildah does to build and push an image, in this order.
///
/// Bases that need a login are pulled first, when nothing of the Dockerfile has run yet. The result
/// gets out as a layout, which is pushed as it is: nothing that the Dockerfile made is unpacked where
/// the logins are, and every part of it is known by its digest.
pub fn buildah(
    dockerfile: &OsStr,
    image: &Reference,
    logins: &Written,
    driver: &str,
) -> Vec<Command> {
    let mut commands = Vec::new();
    for (base, file) in &logins.pulls {
        let file = format!("{LOGINS}/{file}");
        let pull = Buildah { place: Place::Registry, storage: STORAGE, driver };
        let mut command = pull.command("pull", &["pull", "--authfile", &file, base]);
        // Not every image that a Dockerfile names is needed: the build says so if it is.
        command.may_fail = true;
        commands.push(command);
    }
    let build = Buildah { place: Place::Build, storage: STORAGE, driver };
    let options = ["bud", "--isolation", "chroot", "--format", "docker", "--layers=false"];
    let rest = ["--pull=false", "--tag", LOCAL, "--file"];
    let mut command = build.command("build", &[&options[..], &rest[..]].concat());
    let mut file = format!("{CONTEXT}/").into_bytes();
    file.extend_from_slice(dockerfile.as_encoded_bytes());
    command.step.args.extend([file, CONTEXT.into()]);
    commands.push(command);
    let layout = format!("oci:{LAYOUT}:action");
    commands.push(build.command("push", &["push", "--quiet", LOCAL, &layout]));

    let push = Buildah { place: Place::Registry, storage: LISTS, driver: "vfs" };
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

/// Returns what hands the context to a BuildKit, which builds and pushes.
pub fn buildctl(
    address: &str,
    dockerfile: &OsStr,
    image: &Reference,
    is_insecure: bool,
) -> Vec<Command> {
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
    let step = Step { args, env: env.map(variable).into(), ..Step::default() };
    let (place, program) = (Place::Registry, "buildctl");
    vec![Command { place, program, action: "build", step, may_fail: false }]
}

/// buildah in one of the containers.
struct Buildah<'a> {
    place: Place,
    storage: &'a str,
    /// How it keeps layers. Named here, it is not that of the image's settings, which need devices that
    /// pods have not.
    driver: &'a str,
}

impl Buildah<'_> {
    fn command(&self, action: &'static str, arguments: &[&str]) -> Command {
        let (home, temporary) = match self.place {
            Place::Build => (BUILD_HOME, BUILD_TEMPORARY),
            // What is pulled is large, and what is in memory should not be.
            Place::Registry if self.storage == STORAGE => (HOME, BUILD_TEMPORARY),
            Place::Registry => (HOME, TEMPORARY),
        };
        let path = |name: &str| format!("{}/{name}", self.storage);
        let (root, run) = (path("root"), path("run"));
        let (conf, more) = (format!("{home}/{CONFIGURATION}"), format!("{home}/{NO_MORE}"));
        let options = ["buildah", "--root", &root, "--runroot", &run, "--storage-driver"];
        let registries = [self.driver, "--registries-conf", &conf, "--registries-conf-dir", &more];
        let args = bytes(&[&options[..], &registries[..], arguments].concat());
        let env = [
            ("HOME", home),
            ("TMPDIR", temporary),
            ("XDG_RUNTIME_DIR", temporary),
            // Of images that were made for another way to run them.
            ("_BUILDAH_STARTED_IN_USERNS", ""),
            ("BUILDAH_ISOLATION", "chroot"),
        ];
        let step = Step { args, env: env.map(variable).into(), ..Step::default() };
        Command { place: self.place, program: "buildah", action, step, may_fail: false }
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

    fn lines(commands: &[Command]) -> Vec<String> {
        let line = |command: &Command| {
            let args = command.step.args.iter().map(|arg| String::from_utf8_lossy(arg));
            format!("{:?} {}", command.place, args.collect::<Vec<_>>().join(" "))
        };
        commands.iter().map(line).collect()
    }

    #[test]
    fn logins_are_where_the_dockerfile_is_not() {
        let image = "registry.example/ci/dockerfile-action:0".parse().unwrap();
        let pulls = vec![("ghcr.io/octo/base:1".to_owned(), "pull-0.json".to_owned())];
        let logins = Written { push: true, pulls };
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
        let none = buildah("Dockerfile".as_ref(), &image, &Written::default(), "vfs");
        assert!(!lines(&none).iter().any(|line| line.contains("authfile")));
    }

    #[test]
    fn a_buildkit_gets_the_context_and_pushes() {
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
