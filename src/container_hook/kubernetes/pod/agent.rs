//! What brings our own program to the containers that steps run in, and makes it their first process.

use k8s_openapi::api::core::v1::{Container, SecurityContext, VolumeMount};

use super::volumes::{EXTERNALS, Volumes, WORK};
use crate::container_hook::kubernetes::agent::{PROGRAM, STATE};
use crate::container_hook::kubernetes::own_pod::OwnPod;
use crate::container_hook::kubernetes::settings::KubernetesSettings;

/// The image of runners, if neither the settings nor the pod of the runner name one.
const RUNNER_IMAGE: &str = "ghcr.io/actions/actions-runner:latest";

/// The user of that image.
pub const RUNNER_ID: i64 = 1001;

/// The name of the container that fills the volumes.
pub const INIT: &str = "fs-init";

/// The volumes with the program and with what it keeps of steps.
pub const VOLUMES: [&str; 2] = ["oci-hooks", "oci-hooks-run"];

/// The directory of the program.
pub const BIN: &str = "/.oci-hooks/bin";

/// Returns the mounts of a container that steps run in. It cannot write to the program.
pub fn mounts() -> [VolumeMount; 2] {
    let [program, run] = VOLUMES;
    [(program, BIN, Some(true)), (run, STATE, None)].map(|(name, path, read_only)| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only,
        ..VolumeMount::default()
    })
}

/// Returns the first process of a container that steps run in, which runs a program if there is one: the
/// command, and its arguments.
pub fn command(program: &[String]) -> (Vec<String>, Vec<String>) {
    let mut args = vec!["serve".to_owned(), STATE.to_owned()];
    args.extend(program.iter().map(|word| literal(word)));
    (vec![PROGRAM.to_owned()], args)
}

/// Returns the image that our program comes with.
pub fn runner_image<'a>(settings: &'a KubernetesSettings, own: &'a OwnPod) -> &'a str {
    settings.runner_image.as_deref().or(own.image.as_deref()).unwrap_or(RUNNER_IMAGE)
}

/// Returns the container that fills the volumes before all others start, without a shell: it installs the
/// agent, copies what the runner has for the actions of JavaScript, and makes directories.
pub fn init(settings: &KubernetesSettings, own: &OwnPod, volumes: &Volumes<'_>) -> Container {
    let mut args = ["fill", "--agent", PROGRAM].map(str::to_owned).to_vec();
    // Only steps of jobs are programs of the runner.
    if let Some(externals) = volumes.externals() {
        args.extend(["--copy".to_owned(), literal(externals), EXTERNALS.to_owned()]);
    }
    for part in volumes.directories() {
        args.extend(["--directory".to_owned(), literal(&format!("{WORK}/{part}"))]);
    }
    let mut mounts = volumes.usual("");
    mounts.retain(|mount| [EXTERNALS, WORK].contains(&mount.mount_path.as_str()));
    mounts.push(VolumeMount {
        name: VOLUMES[0].to_owned(),
        mount_path: BIN.to_owned(),
        ..VolumeMount::default()
    });
    Container {
        name: INIT.to_owned(),
        image: Some(runner_image(settings, own).to_owned()),
        command: Some(vec![literal(&own.program.display().to_string())]),
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

/// Returns a word of a program as Kubernetes leaves it alone.
pub fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_expanded() {
        assert_eq!(literal("$(A) $$(B) $C"), "$$(A) $$$$(B) $$C");
    }
}
