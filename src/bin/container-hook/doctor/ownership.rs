//! Whom what the policy allows makes root of the host, or the runner's user.

use oci_hooks::container_hook::policy::{Policy, Preset};
use oci_hooks::program::checks::Check;

/// Warns of what the policy gives away, and of what privileged containers can do in the runner's
/// directories; capabilities and seccomp keep all others from it.
pub fn privileged(policy: &Policy) -> Vec<Check> {
    let mut checks = Vec::new();
    if policy.gives_root() {
        let why = match policy.preset {
            Preset::Docker => "preset \"docker\"",
            Preset::Default => "`privileged` or a bind mount of /",
        };
        checks.push(Check::warn(
            "policy",
            format!("whoever can change a workflow is root of this machine: {why} under [policy]"),
            "allow only what the workflows need: what is refused says by which key",
        ));
    }
    if policy.privileged {
        checks.push(Check::warn(
            "privileged containers",
            "can make devices in the runner's directories, which are removed when the job ends",
            "have these directories on a file system that the host mounts with nodev",
        ));
    }
    checks
}

/// Warns of a policy that gives a workflow all that the user has whose containers run without root.
pub fn whole_user(policy: &Policy) -> Option<Check> {
    policy.gives_root().then(|| {
        Check::warn(
            "policy",
            "whoever can change a workflow can do all that this user can, by [policy]: read the files and \
             logins of the runner, and change what later jobs run",
            "allow only what the workflows need: what is refused says by which key",
        )
    })
}

#[test]
fn privileged_containers_are_named_where_the_policy_has_them() {
    assert!(privileged(&Policy::default()).is_empty());
    assert_eq!(privileged(&Policy { privileged: true, ..Policy::default() }).len(), 2);
    let docker = serde_json::to_string(&privileged(&Policy::of(Preset::Docker))).unwrap();
    assert!(docker.contains("is root of this machine: preset"), "{docker}");
}
