//! Installs the agent in the containers that run steps, as their first process.

use container_hook_job::kubernetes::{KubernetesSettings, LOST_TIMEOUT};
use k8s_openapi::api::core::v1::{Container, SecurityContext, VolumeMount};

use super::volumes::{EXTERNALS, PodVolumes, WORK};
use crate::agent::{PROGRAM, STATE};
use crate::own_pod::OwnPod;

/// Default image of runners, if neither the settings nor the runner's pod name one.
const RUNNER_IMAGE: &str = "ghcr.io/actions/actions-runner:latest";

/// User ID of the default image.
pub const RUNNER_ID: i64 = 1001;

/// Name of the init container.
pub const INIT: &str = "fs-init";

/// Volume of the runner image, or with a copy of its agent.
pub const IMAGE_VOLUME: &str = "oci-hooks";
/// Volume for the agent's state.
pub const STATE_VOLUME: &str = "oci-hooks-run";

/// Name of the program in images other than the runner's own: the container runtime finds it in
/// `PATH`.
const HOOK: &str = "container-hook";

/// Directory of the runner image, or of a copy of its agent, in containers.
pub const IMAGE: &str = "/.oci-hooks/image";

/// Returns the mounts of a container that runs steps. The program is read-only.
pub fn mounts() -> [VolumeMount; 2] {
    [(IMAGE_VOLUME, IMAGE, Some(true)), (STATE_VOLUME, STATE, None)].map(
        |(name, path, read_only)| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only,
            ..VolumeMount::default()
        },
    )
}

/// Returns the command and the arguments of a container that runs steps: the agent, which also runs `program`
/// unless it is empty. `externals` is the path of the runner's externals in the mounted image, if the agent links them.
pub fn command(
    settings: &KubernetesSettings,
    externals: Option<&str>,
    program: &[String],
) -> (Vec<String>, Vec<String>) {
    let mut args = vec!["serve".to_owned()];
    if settings.lost_timeout != LOST_TIMEOUT {
        args.push(format!("--away={}", settings.lost_timeout.0.as_secs()));
    }
    if let Some(externals) = externals {
        let externals = literal(&format!("{IMAGE}{externals}"));
        args.extend(["--externals".to_owned(), externals, EXTERNALS.to_owned()]);
    }
    args.push(STATE.to_owned());
    args.extend(program.iter().map(|word| literal(word)));
    (vec![PROGRAM.to_owned()], args)
}

/// Returns the image that contains `container-hook`.
pub fn runner_image<'a>(settings: &'a KubernetesSettings, own: &'a OwnPod) -> &'a str {
    settings.runner_image.as_deref().or(own.image.as_deref()).unwrap_or(RUNNER_IMAGE)
}

/// Returns the path or the name of `container-hook` in an image. Only the runner's own image has it at the path of
/// this process.
pub fn installed_program(image: &str, own: &OwnPod) -> String {
    match own.image.as_deref() == Some(image) {
        true => own.program.display().to_string(),
        false => HOOK.to_owned(),
    }
}

/// Returns the init container, which needs no shell: it installs the agent, copies the runner's externals for
/// JavaScript actions, and creates directories.
pub fn init(settings: &KubernetesSettings, own: &OwnPod, volumes: &PodVolumes<'_>) -> Container {
    let mut args = ["fill", "--agent", PROGRAM].map(str::to_owned).to_vec();
    // Only job containers run the runner's externals.
    if let Some(externals) = volumes.externals() {
        args.extend(["--copy".to_owned(), literal(externals), EXTERNALS.to_owned()]);
    }
    for part in volumes.directories() {
        args.extend(["--directory".to_owned(), literal(&format!("{WORK}/{part}"))]);
    }
    let mut mounts = volumes.usual_mounts();
    mounts.retain(|mount| [EXTERNALS, WORK].contains(&mount.mount_path.as_str()));
    let image = runner_image(settings, own);
    mounts.push(VolumeMount {
        name: IMAGE_VOLUME.to_owned(),
        mount_path: IMAGE.to_owned(),
        ..VolumeMount::default()
    });
    Container {
        name: INIT.to_owned(),
        image: Some(image.to_owned()),
        command: Some(vec![literal(&installed_program(image, own))]),
        args: Some(args),
        security_context: Some(SecurityContext {
            run_as_user: Some(RUNNER_ID),
            run_as_group: Some(RUNNER_ID),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// Escapes a word so that Kubernetes does not expand variables in it.
pub fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollar_signs_are_escaped_against_expansion() {
        assert_eq!(literal("$(A) $$(B) $C"), "$$(A) $$$$(B) $$C");
    }
}
