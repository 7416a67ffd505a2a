//! Builds the seccomp filter of a container: the system calls that it may make.

use oci_hooks_host::privilege::Privilege;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator, LinuxSyscall,
};
use serde::Serialize;
use serde_json::Value;

use super::capabilities::{CapabilitySet, DEFAULT};
use super::options::{ContainerSecurity, Seccomp};

const LIST: &str = include_str!("seccomp/default.txt");

/// Flags of `clone` that create namespaces.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;
const AF_VSOCK: u32 = 40;
/// Permitted personalities: Linux, 32-bit, with an old version number, or both.
const PERSONALITIES: u32 = 0x8 | 0x2_0000;
/// Personality with which the call only returns the current one.
const QUERY_PERSONALITY: u32 = u32::MAX;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// Bits of a mode that hold the file type.
const FILE_KIND: u32 = 0o170_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// Bit of both types of devices, which FIFOs, files and sockets lack. Symlinks have it, but `mknod` creates none.
const DEVICE: u32 = 0o020_000;
/// `keyctl` commands of runtimes: join a new session keyring, read its permissions and set them. The kernel
/// separates the keyrings of user namespaces.
const KEYRING_COMMANDS: [u32; 3] = [1, 5, 6];
/// Calls that change the supplementary groups of a process.
const LEAVE_GROUPS: [&str; 2] = ["setgroups", "setgroups32"];
/// Calls that create nodes, and the index of their mode argument. The device number is the next argument.
const MAKE_NODE: [(&str, usize); 2] = [("mknod", 1), ("mknodat", 2)];

/// The `linux.seccomp` object of `config.json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum SeccompFilter<'a> {
    Default(LinuxSeccomp),
    /// The administrator's profile, passed unchanged: types would reject newer actions, flags and architectures.
    Own(&'a Value),
}

/// Returns the `linux.seccomp` of a container; `None` if the container is privileged or unconfined.
pub fn seccomp(
    security: &ContainerSecurity,
    capabilities: CapabilitySet,
) -> Option<SeccompFilter<'_>> {
    match &security.seccomp {
        _ if security.privileged => None,
        Seccomp::Unconfined => None,
        Seccomp::Profile(profile) => Some(SeccompFilter::Own(profile)),
        Seccomp::Default => {
            let nesting = security.nesting && !security.restricted;
            Some(SeccompFilter::Default(default(FilterConditions { capabilities, nesting })))
        }
    }
}

/// Returns the filter of a container that builds images: the default filter with the calls for
/// nested containers. It does not permit the calls that need `CAP_SYS_ADMIN`, although the builder
/// has this capability. For a user without subordinate ids, `setgroups` reports success without
/// effect.
pub fn builder_profile(privilege: Privilege) -> Value {
    let mut profile = default(FilterConditions { capabilities: DEFAULT, nesting: true });
    if privilege == Privilege::Single {
        // The kernel lets no process of such a user leave a group, and builders fail then: the filter reports success.
        let mut rules = profile.syscalls().clone().unwrap_or_default();
        for rule in &mut rules {
            let names = rule.names().iter().filter(|name| !LEAVE_GROUPS.contains(&name.as_str()));
            let names = names.cloned().collect();
            rule.set_names(names);
        }
        let mut done = allow(LEAVE_GROUPS, None);
        done.set_action(LinuxSeccompAction::ScmpActErrno).set_errno_ret(Some(0));
        rules.push(done);
        profile.set_syscalls(Some(rules));
    }
    serde_json::to_value(profile).expect("names and numbers are JSON")
}

/// Properties of a container on which permitted calls depend.
#[derive(Clone, Copy, Debug)]
struct FilterConditions {
    capabilities: CapabilitySet,
    nesting: bool,
}

fn default(allowed: FilterConditions) -> LinuxSeccomp {
    let FilterConditions { capabilities, nesting } = allowed;
    let names = groups(LIST)
        .filter(|(heading, _)| condition_applies(heading, allowed, std::env::consts::ARCH))
        .flat_map(|(_, names)| names);
    let mut rules = vec![allow(names, None)];
    let socket = condition(0, LinuxSeccompOperator::ScmpCmpNe, AF_VSOCK);
    rules.push(allow(["socket"], Some(vec![socket])));
    let is_one = condition(0, LinuxSeccompOperator::ScmpCmpMaskedEq, !PERSONALITIES);
    let asks = condition(0, LinuxSeccompOperator::ScmpCmpEq, QUERY_PERSONALITY);
    rules.extend([is_one, asks].map(|is_it| allow(["personality"], Some(vec![is_it]))));
    if nesting {
        let is_one = |command| condition(0, LinuxSeccompOperator::ScmpCmpEq, command);
        let allowed =
            KEYRING_COMMANDS.map(|command| allow(["keyctl"], Some(vec![is_one(command)])));
        rules.extend(allowed);
    }
    if !nesting && !capabilities.contains(CapabilitySet::SYS_ADMIN) {
        let index = usize::from(cfg!(target_arch = "s390x"));
        // Compares the masked flags with the second value, zero.
        let has_none = condition(index, LinuxSeccompOperator::ScmpCmpMaskedEq, NAMESPACE_FLAGS);
        rules.push(allow(["clone"], Some(vec![has_none])));
        // `clone3` has its flags in memory, where a filter cannot see them: C libraries fall back to `clone`.
        let mut clone3 = allow(["clone3"], None);
        clone3.set_action(LinuxSeccompAction::ScmpActErrno).set_errno_ret(Some(ENOSYS));
        rules.push(clone3);
    }
    if !capabilities.contains(CapabilitySet::MKNOD) {
        rules.extend(MAKE_NODE.into_iter().flat_map(plain_nodes));
    }
    let mut profile = LinuxSeccomp::default();
    profile
        .set_default_action(LinuxSeccompAction::ScmpActErrno)
        .set_default_errno_ret(Some(EPERM))
        .set_architectures(Some(architectures(std::env::consts::ARCH).to_vec()))
        .set_syscalls(Some(rules));
    profile
}

/// Returns the rule that allows calls if all conditions hold.
fn allow<'n>(
    names: impl IntoIterator<Item = &'n str>,
    conditions: Option<Vec<LinuxSeccompArg>>,
) -> LinuxSyscall {
    let mut rule = LinuxSyscall::default();
    rule.set_names(names.into_iter().map(str::to_owned).collect())
        .set_action(LinuxSeccompAction::ScmpActAllow)
        .set_args(conditions);
    rule
}

fn condition(index: usize, operator: LinuxSeccompOperator, value: u32) -> LinuxSeccompArg {
    build_condition(LinuxSeccompArgBuilder::default().index(index).op(operator).value(value))
}

fn build_condition(condition: LinuxSeccompArgBuilder) -> LinuxSeccompArg {
    condition.build().expect("every field has a default")
}

/// Returns the rules that allow a call for all files but device nodes.
///
/// The character device 0:0 is no device: overlays in containers create it as a whiteout.
fn plain_nodes((name, mode): (&'static str, usize)) -> Vec<LinuxSyscall> {
    // The kernel determines the file type by these bits of the mode, too.
    let operator = LinuxSeccompOperator::ScmpCmpMaskedEq;
    let is_plain = condition(mode, operator, DEVICE);
    let is_character = LinuxSeccompArgBuilder::default().index(mode).op(operator);
    let is_character = build_condition(is_character.value(FILE_KIND).value_two(CHARACTER_DEVICE));
    let has_no_number = condition(mode + 1, LinuxSeccompOperator::ScmpCmpEq, 0);
    vec![
        allow([name], Some(vec![is_plain])),
        allow([name], Some(vec![is_character, has_no_number])),
    ]
}

fn architectures(machine: &str) -> &'static [Arch] {
    match machine {
        // Without x32, which kernels disable: it would take a third of the runtimes' compile time.
        "x86_64" => &[Arch::ScmpArchX86_64, Arch::ScmpArchX86],
        "x86" => &[Arch::ScmpArchX86],
        "aarch64" => &[Arch::ScmpArchAarch64, Arch::ScmpArchArm],
        "arm" => &[Arch::ScmpArchArm],
        "powerpc64" => &[Arch::ScmpArchPpc64le],
        "riscv64" => &[Arch::ScmpArchRiscv64],
        "s390x" => &[Arch::ScmpArchS390x, Arch::ScmpArchS390],
        // Without a name, runtimes use the architecture for which they are built.
        _ => &[],
    }
}

/// Parses a list of system calls: returns the conditions after the colon in each `[heading]`, and
/// the names of calls below it.
fn groups(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    std::iter::from_fn(move || {
        let heading = lines.find_map(|line| line.strip_prefix('[')?.strip_suffix(']'))?;
        let mut names = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('[')) {
            names.extend(line.split_ascii_whitespace());
        }
        Some((heading.split_once(": ").map_or("", |(_, rest)| rest), names))
    })
}

fn condition_applies(condition: &str, allowed: FilterConditions, machine: &str) -> bool {
    let mut words = condition.split(' ');
    match words.next() {
        Some("capability") => words
            .filter_map(CapabilitySet::from_name)
            .any(|capability| allowed.capabilities.contains(capability)),
        Some("nesting") => allowed.nesting,
        Some("processor") => words.any(|word| word == machine),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    fn default(capabilities: CapabilitySet) -> Value {
        serde_json::to_value(super::default(FilterConditions { capabilities, nesting: false }))
            .unwrap()
    }

    fn allowed_calls(capabilities: CapabilitySet) -> HashSet<String> {
        let profile = default(capabilities);
        let rules = profile["syscalls"].as_array().unwrap();
        let names = rules[0]["names"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_syscall_group_has_names_and_a_valid_condition() {
        for (condition, names) in groups(LIST) {
            assert!(!names.is_empty());
            let mut words = condition.split(' ');
            if words.next() == Some("capability") {
                assert!(words.all(|word| CapabilitySet::from_name(word).is_some()), "{condition}");
            }
        }
    }

    #[test]
    fn system_calls_beyond_the_container_need_a_capability() {
        let plain = allowed_calls(CapabilitySet::empty());
        for name in
            ["mount", "unshare", "setns", "bpf", "init_module", "reboot", "keyctl", "clone3"]
        {
            assert!(!plain.contains(name), "{name}");
        }
        for name in ["openat", "execve", "futex", "clone_none"] {
            assert_eq!(plain.contains(name), name != "clone_none", "{name}");
        }
        let admin = allowed_calls(CapabilitySet::SYS_ADMIN);
        assert!(admin.contains("mount") && admin.contains("clone3") && !admin.contains("reboot"));
    }

    #[test]
    fn clone_flags_for_new_namespaces_are_denied() {
        let profile = default(CapabilitySet::empty());
        let rules = profile["syscalls"].as_array().unwrap();
        let rule = |name: &str| rules.iter().rfind(|rule| rule["names"][0] == name).unwrap();
        assert_eq!(rule("clone")["args"][0]["value"], 0x7E02_0000);
        assert_eq!(rule("clone3")["errnoRet"], 38);
        let admin = default(CapabilitySet::SYS_ADMIN);
        let rules = admin["syscalls"].as_array().unwrap();
        assert!(!rules.iter().any(|rule| rule["names"][0] == "clone3"));
    }

    #[test]
    fn nesting_permits_namespaces_without_capabilities() {
        let nested = FilterConditions { capabilities: DEFAULT, nesting: true };
        let nested = serde_json::to_value(super::default(nested)).unwrap();
        let plain = default(DEFAULT);
        let none = [0; 6];
        for name in ["unshare", "mount", "setns", "pivot_root", "clone3", "fsopen", "sethostname"] {
            assert!(permits_call(&nested, name, &none), "{name}");
            assert!(!permits_call(&plain, name, &none), "{name}");
        }
        let new_user = [0x1000_0000, 0, 0, 0, 0, 0];
        assert!(
            permits_call(&nested, "clone", &new_user) && !permits_call(&plain, "clone", &new_user)
        );
        // Resources that all of the host shares stay out of reach.
        for name in ["bpf", "init_module", "reboot", "add_key", "perf_event_open", "swapon", "acct"]
        {
            assert!(!permits_call(&nested, name, &none), "{name}");
        }
        for (command, expected) in [(1, true), (5, true), (6, true), (0, false), (11, false)] {
            assert_eq!(permits_call(&nested, "keyctl", &[command]), expected, "{command}");
        }
        let restricted =
            ContainerSecurity { restricted: true, nesting: true, ..ContainerSecurity::default() };
        let filter = serde_json::to_value(seccomp(&restricted, CapabilitySet::empty())).unwrap();
        assert!(!permits_call(&filter, "unshare", &none));
    }

    #[test]
    fn image_builders_may_only_mount() {
        let none = [0; 6];
        for (privilege, leaves_groups) in [(Privilege::Root, true), (Privilege::Single, false)] {
            let profile = builder_profile(privilege);
            assert!(permits_call(&profile, "mount", &none));
            for name in ["bpf", "quotactl", "perf_event_open", "fanotify_init", "syslog"] {
                assert!(!permits_call(&profile, name, &none), "{name}");
            }
            assert_eq!(permits_call(&profile, "setgroups", &none), leaves_groups);
        }
        let profile = builder_profile(Privilege::Single);
        let rules = profile["syscalls"].as_array().unwrap();
        let of_groups = rules
            .iter()
            .filter(|rule| rule["names"].as_array().unwrap().contains(&json!("setgroups")));
        let told: Vec<_> = of_groups.map(|rule| (&rule["action"], &rule["errnoRet"])).collect();
        assert_eq!(told, [(&json!("SCMP_ACT_ERRNO"), &json!(0))]);
    }

    /// Returns whether a profile permits a call with these arguments, evaluated as in the kernel.
    fn permits_call(profile: &Value, name: &str, arguments: &[u64]) -> bool {
        let number = |condition: &Value, key: &str| condition[key].as_u64().unwrap_or_default();
        let holds = |condition: &Value| {
            let index = usize::try_from(number(condition, "index")).unwrap();
            let (value, two) = (number(condition, "value"), number(condition, "valueTwo"));
            match condition["op"].as_str().unwrap() {
                "SCMP_CMP_EQ" => arguments[index] == value,
                "SCMP_CMP_MASKED_EQ" => arguments[index] & value == two,
                other => panic!("{other}"),
            }
        };
        profile["syscalls"].as_array().unwrap().iter().any(|rule| {
            rule["action"] == "SCMP_ACT_ALLOW"
                && rule["names"].as_array().unwrap().contains(&json!(name))
                && rule["args"].as_array().is_none_or(|conditions| conditions.iter().all(holds))
        })
    }

    #[test]
    fn device_nodes_need_only_their_capability() {
        let (fifo, file, socket) = (0o010_644, 0o100_644, 0o140_644);
        let (character, block, directory, link) = (0o020_666, 0o060_666, 0o040_755, 0o120_777);
        let disk = 0x800;
        let plain = default(DEFAULT);
        let with_nodes = default(DEFAULT | CapabilitySet::MKNOD);
        for (mode, device, is_plain) in [
            (fifo, 0, true),
            (fifo, disk, true),
            (file, 0, true),
            (0o644, 0, true),
            (socket, 0, true),
            (character, 0, true),
            (character, 0x103, false),
            // The kernel uses the lower half; rejecting a number with an upper half costs nothing.
            (character, 1 << 32, false),
            (block, 0, false),
            (block, disk, false),
            // The kernel uses 16 bits of a mode.
            (block | 1 << 16, disk, false),
            (block | character, disk, false),
            // The kernel creates neither, for any caller.
            (directory, 0, true),
            (link, 0, false),
        ] {
            for (name, arguments) in
                [("mknod", vec![7, mode, device]), ("mknodat", vec![3, 7, mode, device])]
            {
                let case = format!("{name} {mode:o} {device:x}");
                assert_eq!(permits_call(&plain, name, &arguments), is_plain, "{case}");
                assert!(permits_call(&with_nodes, name, &arguments), "{case}");
            }
        }
    }

    #[test]
    fn few_personalities_are_permitted() {
        let profile = default(DEFAULT);
        let randomized: u64 = 0x4_0000;
        for (personality, expected) in [
            (0, true),
            (0x8, true),
            (0x2_0000, true),
            (0x2_0008, true),
            (u64::from(u32::MAX), true),
            (randomized, false),
            (0x1, false),
            (0x2_0009, false),
            (u64::from(u32::MAX) - 1, false),
        ] {
            let is_allowed = permits_call(&profile, "personality", &[personality]);
            assert_eq!(is_allowed, expected, "{personality:x}");
        }
    }

    #[test]
    fn architectures_have_the_names_of_libseccomp() {
        let written = serde_json::to_value(architectures("x86_64")).unwrap();
        assert_eq!(written, json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]));
        for machine in ["x86", "aarch64", "arm", "powerpc64", "riscv64", "s390x"] {
            for name in serde_json::to_value(architectures(machine)).unwrap().as_array().unwrap() {
                let name = name.as_str().unwrap().strip_prefix("SCMP_ARCH_").unwrap();
                let known = ["X86", "AARCH64", "ARM", "PPC64LE", "RISCV64", "S390X", "S390"];
                assert!(known.contains(&name), "{name}");
            }
        }
    }

    #[test]
    fn profile_of_the_administrator_is_unchanged() {
        let profile = json!({"defaultAction": "SCMP_ACT_OF_TOMORROW", "vendor": [1]});
        let security = ContainerSecurity {
            seccomp: Seccomp::Profile(profile.clone()),
            ..ContainerSecurity::default()
        };
        let written = serde_json::to_value(seccomp(&security, CapabilitySet::all())).unwrap();
        assert_eq!(written, profile);
    }

    #[test]
    fn privileged_container_has_no_filter() {
        let security = ContainerSecurity { privileged: true, ..ContainerSecurity::default() };
        assert!(seccomp(&security, CapabilitySet::all()).is_none());
    }
}
