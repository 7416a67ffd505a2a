//! Which system calls a container may make.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator, LinuxSyscall,
};
use serde::Serialize;
use serde_json::Value;

use super::capabilities::{CapabilitySet, DEFAULT};
use super::options::{Seccomp, Security};
use crate::sys::privilege::Privilege;

const LIST: &str = include_str!("seccomp/default.txt");

/// The flags of `clone` that make namespaces.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;
const AF_VSOCK: u32 = 40;
/// What a process may look like to itself: Linux, 32 bits wide or of an old version or both.
const PERSONALITIES: u32 = 0x8 | 0x2_0000;
/// The personality that stands for "tell me".
const TELL: u32 = u32::MAX;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// The bits of a mode that say what kind of file it is.
const FILE_KIND: u32 = 0o170_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// A bit that devices have of both kinds, and nothing else that `mknod` makes: FIFOs, files, sockets. Links
/// have it too, and the kernel rejects them as it does directories.
const DEVICE: u32 = 0o020_000;
/// What runtimes do with keyrings: they join a new session's, look at its permissions and set them. The kernel
/// keeps those of a user namespace apart from those of others.
const KEYRING_COMMANDS: [u32; 3] = [1, 5, 6];
/// The calls by which a process changes its supplementary groups.
const LEAVE_GROUPS: [&str; 2] = ["setgroups", "setgroups32"];
/// The calls that make nodes, and which of their arguments is the mode. The device number is next.
const MAKE_NODE: [(&str, usize); 2] = [("mknod", 1), ("mknodat", 2)];

/// `linux.seccomp`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Filter<'a> {
    Default(LinuxSeccomp),
    /// The administrator's, passed on as it is: types would reject actions, flags and architectures
    /// that are newer than they are.
    Own(&'a Value),
}

/// Returns `linux.seccomp`, if there is to be one.
pub fn seccomp(security: &Security, capabilities: CapabilitySet) -> Option<Filter<'_>> {
    match &security.seccomp {
        _ if security.privileged => None,
        Seccomp::Unconfined => None,
        Seccomp::Profile(profile) => Some(Filter::Own(profile)),
        Seccomp::Default => {
            let nesting = security.nesting && !security.restricted;
            Some(Filter::Default(default(Allowed { capabilities, nesting })))
        }
    }
}

/// Returns the filter of a container in which a program builds images: that of one with containers in it, though it has
/// the capability to mount.
pub fn builder_profile(privilege: Privilege) -> Value {
    let mut profile = default(Allowed { capabilities: DEFAULT, nesting: true });
    if privilege == Privilege::Single {
        // The kernel lets no process of such a user leave a group, and builders give up then: they are told that it
        // was done.
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

/// What a container has that system calls are for.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    capabilities: CapabilitySet,
    nesting: bool,
}

fn default(allowed: Allowed) -> LinuxSeccomp {
    let Allowed { capabilities, nesting } = allowed;
    let names = groups(LIST)
        .filter(|(heading, _)| applies(heading, allowed, std::env::consts::ARCH))
        .flat_map(|(_, names)| names);
    let mut rules = vec![allow(names, None)];
    let socket = condition(0, LinuxSeccompOperator::ScmpCmpNe, AF_VSOCK);
    rules.push(allow(["socket"], Some(vec![socket])));
    let is_one = condition(0, LinuxSeccompOperator::ScmpCmpMaskedEq, !PERSONALITIES);
    let asks = condition(0, LinuxSeccompOperator::ScmpCmpEq, TELL);
    rules.extend([is_one, asks].map(|is_it| allow(["personality"], Some(vec![is_it]))));
    if nesting {
        let is_one = |command| condition(0, LinuxSeccompOperator::ScmpCmpEq, command);
        let allowed =
            KEYRING_COMMANDS.map(|command| allow(["keyctl"], Some(vec![is_one(command)])));
        rules.extend(allowed);
    }
    if !nesting && !capabilities.contains(CapabilitySet::SYS_ADMIN) {
        let index = usize::from(cfg!(target_arch = "s390x"));
        // Compares what the mask leaves with the second value, zero.
        let has_none = condition(index, LinuxSeccompOperator::ScmpCmpMaskedEq, NAMESPACE_FLAGS);
        rules.push(allow(["clone"], Some(vec![has_none])));
        // Its flags are in memory, where a filter cannot see them: C libraries fall back to `clone`.
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

/// Returns the rule that allows calls, if all conditions hold.
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
    built(LinuxSeccompArgBuilder::default().index(index).op(operator).value(value))
}

fn built(condition: LinuxSeccompArgBuilder) -> LinuxSeccompArg {
    condition.build().expect("every field has a default")
}

/// Returns the rules by which a call makes no device nodes.
///
/// The character device 0:0 is none: overlays in containers make such whiteouts.
fn plain_nodes((name, mode): (&'static str, usize)) -> Vec<LinuxSyscall> {
    // The kernel looks at no other bits of the mode either to tell what to make.
    let operator = LinuxSeccompOperator::ScmpCmpMaskedEq;
    let is_plain = condition(mode, operator, DEVICE);
    let is_character = LinuxSeccompArgBuilder::default().index(mode).op(operator);
    let is_character = built(is_character.value(FILE_KIND).value_two(CHARACTER_DEVICE));
    let has_no_number = condition(mode + 1, LinuxSeccompOperator::ScmpCmpEq, 0);
    vec![
        allow([name], Some(vec![is_plain])),
        allow([name], Some(vec![is_character, has_no_number])),
    ]
}

fn architectures(machine: &str) -> &'static [Arch] {
    match machine {
        // Not x32, which kernels have off: it would take a third of the time that runtimes compile for.
        "x86_64" => &[Arch::ScmpArchX86_64, Arch::ScmpArchX86],
        "x86" => &[Arch::ScmpArchX86],
        "aarch64" => &[Arch::ScmpArchAarch64, Arch::ScmpArchArm],
        "arm" => &[Arch::ScmpArchArm],
        "powerpc64" => &[Arch::ScmpArchPpc64le],
        "riscv64" => &[Arch::ScmpArchRiscv64],
        "s390x" => &[Arch::ScmpArchS390x, Arch::ScmpArchS390],
        // None named, the runtimes take the one they are built for.
        _ => &[],
    }
}

/// Returns what headings say after the colon, and the names below them.
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

fn applies(condition: &str, allowed: Allowed, machine: &str) -> bool {
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
        serde_json::to_value(super::default(Allowed { capabilities, nesting: false })).unwrap()
    }

    fn allowed(capabilities: CapabilitySet) -> HashSet<String> {
        let profile = default(capabilities);
        let rules = profile["syscalls"].as_array().unwrap();
        let names = rules[0]["names"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_group_has_names_and_a_condition_that_can_hold() {
        for (condition, names) in groups(LIST) {
            assert!(!names.is_empty());
            let mut words = condition.split(' ');
            if words.next() == Some("capability") {
                assert!(words.all(|word| CapabilitySet::from_name(word).is_some()), "{condition}");
            }
        }
    }

    #[test]
    fn what_reaches_beyond_the_container_needs_a_capability() {
        let plain = allowed(CapabilitySet::empty());
        for name in
            ["mount", "unshare", "setns", "bpf", "init_module", "reboot", "keyctl", "clone3"]
        {
            assert!(!plain.contains(name), "{name}");
        }
        for name in ["openat", "execve", "futex", "clone_none"] {
            assert_eq!(plain.contains(name), name != "clone_none", "{name}");
        }
        let admin = allowed(CapabilitySet::SYS_ADMIN);
        assert!(admin.contains("mount") && admin.contains("clone3") && !admin.contains("reboot"));
    }

    #[test]
    fn new_namespaces_are_refused_by_the_flags_of_clone() {
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
    fn containers_in_the_container_need_no_capability_but_leave() {
        let nested = Allowed { capabilities: DEFAULT, nesting: true };
        let nested = serde_json::to_value(super::default(nested)).unwrap();
        let plain = default(DEFAULT);
        let none = [0; 6];
        for name in ["unshare", "mount", "setns", "pivot_root", "clone3", "fsopen", "sethostname"] {
            assert!(lets_through(&nested, name, &none), "{name}");
            assert!(!lets_through(&plain, name, &none), "{name}");
        }
        let new_user = [0x1000_0000, 0, 0, 0, 0, 0];
        assert!(
            lets_through(&nested, "clone", &new_user) && !lets_through(&plain, "clone", &new_user)
        );
        // What the host has but once stays out of reach.
        for name in ["bpf", "init_module", "reboot", "add_key", "perf_event_open", "swapon", "acct"]
        {
            assert!(!lets_through(&nested, name, &none), "{name}");
        }
        for (command, expected) in [(1, true), (5, true), (6, true), (0, false), (11, false)] {
            assert_eq!(lets_through(&nested, "keyctl", &[command]), expected, "{command}");
        }
        let restricted = Security { restricted: true, nesting: true, ..Security::default() };
        let filter = serde_json::to_value(seccomp(&restricted, CapabilitySet::empty())).unwrap();
        assert!(!lets_through(&filter, "unshare", &none));
    }

    #[test]
    fn builders_mount_but_have_nothing_else_of_administrators() {
        let none = [0; 6];
        for (privilege, leaves_groups) in [(Privilege::Root, true), (Privilege::Single, false)] {
            let profile = builder_profile(privilege);
            assert!(lets_through(&profile, "mount", &none));
            for name in ["bpf", "quotactl", "perf_event_open", "fanotify_init", "syslog"] {
                assert!(!lets_through(&profile, name, &none), "{name}");
            }
            assert_eq!(lets_through(&profile, "setgroups", &none), leaves_groups);
        }
        let profile = builder_profile(Privilege::Single);
        let rules = profile["syscalls"].as_array().unwrap();
        let of_groups = rules
            .iter()
            .filter(|rule| rule["names"].as_array().unwrap().contains(&json!("setgroups")));
        let told: Vec<_> = of_groups.map(|rule| (&rule["action"], &rule["errnoRet"])).collect();
        assert_eq!(told, [(&json!("SCMP_ACT_ERRNO"), &json!(0))]);
    }

    /// Returns whether a profile lets a call with these arguments through, as the kernel decides it.
    fn lets_through(profile: &Value, name: &str, arguments: &[u64]) -> bool {
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
    fn device_nodes_are_made_with_the_capability_alone() {
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
            // The kernel takes the lower half; rejecting what has an upper one costs nothing.
            (character, 1 << 32, false),
            (block, 0, false),
            (block, disk, false),
            // Of a mode it takes 16 bits.
            (block | 1 << 16, disk, false),
            (block | character, disk, false),
            // It makes neither, whoever asks.
            (directory, 0, true),
            (link, 0, false),
        ] {
            for (name, arguments) in
                [("mknod", vec![7, mode, device]), ("mknodat", vec![3, 7, mode, device])]
            {
                let case = format!("{name} {mode:o} {device:x}");
                assert_eq!(lets_through(&plain, name, &arguments), is_plain, "{case}");
                assert!(lets_through(&with_nodes, name, &arguments), "{case}");
            }
        }
    }

    #[test]
    fn a_process_may_take_few_personalities() {
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
            let is_allowed = lets_through(&profile, "personality", &[personality]);
            assert_eq!(is_allowed, expected, "{personality:x}");
        }
    }

    #[test]
    fn architectures_are_called_as_libseccomp_calls_them() {
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
    fn a_profile_of_the_administrator_is_passed_on_as_it_is() {
        let profile = json!({"defaultAction": "SCMP_ACT_OF_TOMORROW", "vendor": [1]});
        let security =
            Security { seccomp: Seccomp::Profile(profile.clone()), ..Security::default() };
        let written = serde_json::to_value(seccomp(&security, CapabilitySet::all())).unwrap();
        assert_eq!(written, profile);
    }

    #[test]
    fn a_privileged_container_has_no_filter() {
        let security = Security { privileged: true, ..Security::default() };
        assert!(seccomp(&security, CapabilitySet::all()).is_none());
    }
}
