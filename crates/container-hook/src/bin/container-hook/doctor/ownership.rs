//! Warnings about policies that give workflows the rights of root or of the runner's user.

use container_hook_job::policy::{Policy, Preset};
use oci_hooks_engine_cli::checks::HostCheck;

/// Warns of a policy that amounts to root, and of privileged containers, which can create devices in the
/// runner's directories; capabilities and seccomp prevent other containers from that.
pub fn privileged(policy: &Policy) -> Vec<HostCheck> {
    let mut checks = Vec::new();
    if policy.gives_root() {
        let why = match policy.preset {
            Preset::Docker => "preset \"docker\"",
            Preset::Default => "`privileged` or a bind mount of /",
        };
        checks.push(HostCheck::warn(
            "policy",
            format!(
                "anyone who can change a workflow is root on this machine: {why} under [policy]"
            ),
            "allow only what the workflows need: each denial names the key that allows it",
        ));
    }
    if policy.privileged {
        checks.push(HostCheck::warn(
            "privileged containers",
            "can create devices in the runner's directories; the devices are removed only when the job ends",
            "put these directories on a file system that the host mounts with nodev",
        ));
    }
    checks
}

/// Warns of a policy that gives workflows all rights of the rootless user.
pub fn check_user_rights(policy: &Policy) -> Option<HostCheck> {
    policy.gives_root().then(|| {
        HostCheck::warn(
            "policy",
            "anyone who can change a workflow can do everything that this user can, by [policy]: read the \
             files and logins of the runner, and change what later jobs run",
            "allow only what the workflows need: each denial names the key that allows it",
        )
    })
}

#[test]
fn privileged_containers_are_reported_if_the_policy_allows_them() {
    assert!(privileged(&Policy::default()).is_empty());
    assert_eq!(privileged(&Policy { privileged: true, ..Policy::default() }).len(), 2);
    let docker = serde_json::to_string(&privileged(&Policy::of(Preset::Docker))).unwrap();
    assert!(docker.contains("is root on this machine: preset"), "{docker}");
}
