//! Which system calls a container may make.

use serde_json::{Value, json};

use super::capabilities::CapabilitySet;
use super::options::{Seccomp, Security};

const LIST: &str = include_str!("seccomp/default.txt");

/// The flags of `clone` that make namespaces.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;
const AF_VSOCK: u32 = 40;
/// What a process may look like to itself: Linux, 32 bits wide, an old version, and "tell me".
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, u32::MAX];
const ENOSYS: i32 = 38;
/// The bits of a mode that say what kind of file it is.
const FILE_KIND: u32 = 0o170_000;
/// FIFOs, files (none is one too) and sockets: what `mknod` makes for anybody.
const PLAIN_KINDS: [u32; 4] = [0o010_000, 0o100_000, 0, 0o140_000];
const CHARACTER_DEVICE: u32 = 0o020_000;
/// The calls that make nodes, and which of their arguments is the mode. The device number is next.
const MAKE_NODE: [(&str, u32); 2] = [("mknod", 1), ("mknodat", 2)];

/// Returns `linux.seccomp`, if there is to be one.
pub(super) fn seccomp(security: &Security, capabilities: CapabilitySet) -> Option<Value> {
    match &security.seccomp {
        _ if security.privileged => None,
        Seccomp::Unconfined => None,
        Seccomp::Profile(profile) => Some(profile.clone()),
        Seccomp::Default => Some(default(capabilities)),
    }
}

fn default(capabilities: CapabilitySet) -> Value {
    let names: Vec<&str> = groups(LIST)
        .filter(|(heading, _)| applies(heading, capabilities, std::env::consts::ARCH))
        .flat_map(|(_, names)| names)
        .collect();
    let mut rules = vec![json!({"names": names, "action": "SCMP_ACT_ALLOW"})];
    let mut allow = |name: &str, index: u32, value: u32, op: &str| {
        // `MASKED_EQ` compares what the mask leaves with the second value, zero.
        let condition = json!({"index": index, "value": value, "op": op});
        rules.push(json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [condition]}));
    };
    allow("socket", 0, AF_VSOCK, "SCMP_CMP_NE");
    for personality in PERSONALITIES {
        allow("personality", 0, personality, "SCMP_CMP_EQ");
    }
    if !capabilities.contains(CapabilitySet::SYS_ADMIN) {
        let index = u32::from(cfg!(target_arch = "s390x"));
        allow("clone", index, NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ");
        // Its flags are in memory, where a filter cannot see them: C libraries fall back to `clone`.
        rules.push(json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
    }
    if !capabilities.contains(CapabilitySet::MKNOD) {
        rules.extend(MAKE_NODE.into_iter().flat_map(plain_nodes));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": architectures(std::env::consts::ARCH),
        "syscalls": rules,
    })
}

/// Returns the rules by which a call makes no device nodes.
///
/// The character device 0:0 is none: overlays in containers make such whiteouts.
fn plain_nodes((name, mode): (&str, u32)) -> Vec<Value> {
    let is_of_kind = |kind: u32| {
        // The kernel looks at no other bits of the mode either to tell what to make.
        json!({"index": mode, "value": FILE_KIND, "valueTwo": kind, "op": "SCMP_CMP_MASKED_EQ"})
    };
    let rule = |conditions: &[Value]| json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": conditions});
    let has_no_number = json!({"index": mode + 1, "value": 0, "op": "SCMP_CMP_EQ"});
    let mut rules: Vec<Value> =
        PLAIN_KINDS.into_iter().map(|kind| rule(&[is_of_kind(kind)])).collect();
    rules.push(rule(&[is_of_kind(CHARACTER_DEVICE), has_no_number]));
    rules
}

fn architectures(processor: &str) -> &'static [&'static str] {
    match processor {
        "x86_64" => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "x86" => &["SCMP_ARCH_X86"],
        "aarch64" => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        "arm" => &["SCMP_ARCH_ARM"],
        "powerpc64" => &["SCMP_ARCH_PPC64LE"],
        "riscv64" => &["SCMP_ARCH_RISCV64"],
        "s390x" => &["SCMP_ARCH_S390X", "SCMP_ARCH_S390"],
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

fn applies(condition: &str, capabilities: CapabilitySet, processor: &str) -> bool {
    let mut words = condition.split(' ');
    match words.next() {
        Some("capability") => words
            .filter_map(CapabilitySet::from_name)
            .any(|capability| capabilities.contains(capability)),
        Some("processor") => words.any(|word| word == processor),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::capabilities::DEFAULT;
    use super::*;

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

    /// Tells if a profile lets a call with these arguments through, as the kernel decides it.
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
            // The kernel takes the lower half; refusing what has an upper one costs nothing.
            (character, 1 << 32, false),
            (block, 0, false),
            (block, disk, false),
            // Of a mode it takes 16 bits.
            (block | 1 << 16, disk, false),
            (directory, 0, false),
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
    fn a_privileged_container_has_no_filter() {
        let security = Security { privileged: true, ..Security::default() };
        assert_eq!(seccomp(&security, CapabilitySet::all()), None);
    }
}
