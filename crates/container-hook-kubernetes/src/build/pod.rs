//! The manifest of a build pod; no I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, EmptyDirVolumeSource, LocalObjectReference, Pod,
    PodSecurityContext, PodSpec, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::program::{BuildContainer, DIRECTORIES, PRIVATE, SHARED};
use crate::agent::{PROGRAM, STATE};
use crate::own_pod::OwnPod;
use crate::pod::{IMAGE, INIT, installed_program, labels, owner};

/// User of all containers, not root; the user of the published buildah images.
const USER: i64 = 1000;

/// Size limit of the in-memory volume with logins, certificates, and the manifest list of one image.
const PRIVATE_LIMIT: &str = "64Mi";

const AGENT: &str = "oci-hooks";

/// Annotation that turns off AppArmor for a container on clusters before 1.30.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io";

/// Inputs of a build pod's manifest.
pub struct BuildPod<'a> {
    pub name: String,
    pub own: &'a OwnPod,
    /// Image that contains `container-hook`, for the init container.
    pub runner_image: &'a str,
    /// Image with buildah or `buildctl`.
    pub image: &'a str,
    /// If set, the Dockerfile's programs run in this pod.
    pub builds: bool,
    /// Architecture of the image, and so of the node.
    pub architecture: &'a str,
    pub runtime_class: Option<String>,
    pub deadline: Option<i64>,
}

/// Returns the name of a container.
pub fn container_name(place: BuildContainer) -> &'static str {
    match place {
        BuildContainer::Build => "build",
        BuildContainer::Registry => "registry",
    }
}

impl BuildPod<'_> {
    /// Returns the containers of the pod.
    pub fn places(&self) -> &'static [BuildContainer] {
        if self.builds {
            &[BuildContainer::Registry, BuildContainer::Build]
        } else {
            &[BuildContainer::Registry]
        }
    }

    pub(super) fn pod(&self) -> Pod {
        let places = self.places();
        // Each agent has its own volume for its socket, which the other container must not reach.
        let runs = places.iter().map(|place| volume(run_volume(*place), None));
        let volumes = [volume(AGENT, None), volume("build", None), volume("private", Some(()))];
        let secrets =
            self.own.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
        let spec = PodSpec {
            runtime_class_name: self.runtime_class.clone(),
            restart_policy: Some("Never".to_owned()),
            active_deadline_seconds: self.deadline,
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            image_pull_secrets: Some(secrets.collect()),
            node_selector: Some(map([
                ("kubernetes.io/arch", self.architecture),
                ("kubernetes.io/os", "linux"),
            ])),
            security_context: Some(PodSecurityContext {
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                run_as_non_root: Some(true),
                ..PodSecurityContext::default()
            }),
            init_containers: Some(vec![self.init()]),
            containers: places.iter().map(|place| self.container(*place)).collect(),
            volumes: Some(volumes.into_iter().chain(runs).collect()),
            ..PodSpec::default()
        };
        let annotations = self.builds.then(|| {
            let key = format!("{APPARMOR}/{}", container_name(BuildContainer::Build));
            BTreeMap::from([(key, "unconfined".to_owned())])
        });
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            labels: Some(labels(self.own)),
            annotations,
            owner_references: owner(self.own, None),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(spec), status: None }
    }

    /// Returns the init container, which installs the agent and creates the directories.
    fn init(&self) -> Container {
        let program = installed_program(self.runner_image, self.own);
        let agent = PROGRAM.to_owned();
        let mut command = vec![program, "fill".to_owned(), "--agent".to_owned(), agent];
        for directory in DIRECTORIES {
            command.extend(["--directory".to_owned(), directory.to_owned()]);
        }
        Container {
            name: INIT.to_owned(),
            image: Some(self.runner_image.to_owned()),
            command: Some(command),
            security_context: Some(confined_context()),
            volume_mounts: Some(vec![
                mount(AGENT, IMAGE),
                mount("build", SHARED),
                mount("private", PRIVATE),
            ]),
            ..Container::default()
        }
    }

    fn container(&self, place: BuildContainer) -> Container {
        let mut mounts = vec![
            VolumeMount { read_only: Some(true), ..mount(AGENT, IMAGE) },
            mount(run_volume(place), STATE),
            mount("build", SHARED),
        ];
        let security_context = match place {
            BuildContainer::Registry => {
                mounts.push(mount("private", PRIVATE));
                // buildah always creates a user namespace.
                if self.builds { open() } else { confined_context() }
            }
            BuildContainer::Build => open(),
        };
        let words = [PROGRAM, "serve", STATE];
        Container {
            name: container_name(place).to_owned(),
            image: Some(self.image.to_owned()),
            command: Some(words.map(str::to_owned).into()),
            security_context: Some(security_context),
            volume_mounts: Some(mounts),
            ..Container::default()
        }
    }
}

/// Returns the security context of programs that need no privileges.
fn confined_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    }
}

/// Returns the security context of buildah. For its user namespace it runs `newuidmap`, which has a
/// file capability, and it mounts in that namespace, which the default seccomp and AppArmor
/// profiles deny.
fn open() -> SecurityContext {
    let type_ = "Unconfined".to_owned();
    SecurityContext {
        seccomp_profile: Some(SeccompProfile { type_: type_.clone(), localhost_profile: None }),
        app_armor_profile: Some(AppArmorProfile { type_, localhost_profile: None }),
        ..SecurityContext::default()
    }
}

fn run_volume(place: BuildContainer) -> &'static str {
    match place {
        BuildContainer::Build => "run-build",
        BuildContainer::Registry => "run-registry",
    }
}

fn volume(name: &str, in_memory: Option<()>) -> Volume {
    let source = match in_memory {
        Some(()) => EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(PRIVATE_LIMIT.to_owned())),
        },
        None => EmptyDirVolumeSource::default(),
    };
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(builds: bool) -> PodSpec {
        let own = OwnPod {
            name: "runner-1".into(),
            uid: Some("u".into()),
            image: Some("runner:1".into()),
            node: None,
            runtime: None,
            claim: None,
            fs_group: None,
            pull_secrets: vec!["login".into()],
            program: "/usr/local/bin/container-hook".into(),
        };
        let pod = BuildPod {
            name: "runner-1-build".into(),
            own: &own,
            runner_image: "runner:1",
            image: "buildah:1",
            builds,
            architecture: "amd64",
            runtime_class: Some("gvisor".to_owned()),
            deadline: Some(60),
        };
        let made = pod.pod();
        assert_eq!(made.metadata.labels.as_ref().unwrap()["runner-pod"], "runner-1");
        assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].uid, "u");
        assert_eq!(made.metadata.annotations.is_some(), builds);
        let spec = made.spec.unwrap();
        // A build runs code of the job.
        assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
        spec
    }

    fn mounts(container: &Container) -> Vec<&str> {
        container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str()).collect()
    }

    #[test]
    fn build_containers_share_only_the_result() {
        let spec = pod(true);
        let [registry, build] = &spec.containers[..] else { panic!("{:?}", spec.containers) };
        assert_eq!(mounts(registry), ["oci-hooks", "run-registry", "build", "private"]);
        assert_eq!(mounts(build), ["oci-hooks", "run-build", "build"]);
        let agent = &build.volume_mounts.as_ref().unwrap()[0];
        assert_eq!(agent.read_only, Some(true));
        let volumes = spec.volumes.unwrap();
        let private = volumes.iter().find(|volume| volume.name == "private").unwrap();
        let private = private.empty_dir.as_ref().unwrap();
        assert_eq!(private.medium.as_deref(), Some("Memory"));
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.share_process_namespace, None);
        assert_eq!(spec.security_context.unwrap().run_as_user, Some(USER));
    }

    #[test]
    fn build_with_buildkit_needs_no_privileges() {
        let spec = pod(false);
        let [registry] = &spec.containers[..] else { panic!("{:?}", spec.containers) };
        for container in [registry, &spec.init_containers.as_ref().unwrap()[0]] {
            assert_eq!(container.security_context, Some(confined_context()));
        }
        assert!(!spec.volumes.unwrap().iter().any(|volume| volume.name == "run-build"));
    }

    #[test]
    fn init_container_creates_the_directories_of_programs() {
        let spec = pod(true);
        let init = &spec.init_containers.as_ref().unwrap()[0];
        let command = init.command.as_ref().unwrap().join(" ");
        let expected = "/usr/local/bin/container-hook fill --agent /.oci-hooks/image/usr/libexec/oci-hooks/agent \
                        --directory /build/context --directory /build/home --directory /build/tmp \
                        --directory /private/home --directory /private/logins --directory /private/tmp";
        assert_eq!(command, expected);
    }
}
