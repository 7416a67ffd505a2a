//! Names of pods, labels, containers and hosts that Kubernetes accepts.

use std::collections::BTreeSet;

use oci_hooks_image::Digest;

/// Maximum length of a label's value, a container's name and a host name; also of pod names, since they
/// become host names.
const MAX: usize = 63;

/// Length of the hash that replaces a cut-off part.
const HASH: usize = 8;

/// Returns the name of a runner's object: the runner's name and the kind.
///
/// A name that is too long or invalid is shortened and gets its hash as a suffix, so that runners' names stay
/// unique.
pub fn object(runner: &str, kind: &str) -> String {
    format!("{}-{kind}", label(runner, MAX - kind.len() - 1))
}

/// Returns the value of the label with a runner's name.
///
/// A valid value is unchanged: the controller of actions-runner-controller selects by it.
pub fn runner_label(runner: &str) -> String {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_value = runner.len() <= MAX
        && runner.bytes().all(is_inner)
        && is_bounded(runner, |b| b.is_ascii_alphanumeric());
    if is_value { runner.to_owned() } else { label(runner, MAX) }
}

fn is_bounded(text: &str, is_outer: impl Fn(u8) -> bool) -> bool {
    let ends = text.bytes().next().zip(text.bytes().next_back());
    ends.is_some_and(|(first, last)| is_outer(first) && is_outer(last))
}

/// Converts a text to a dotted DNS name of at most `max` characters; a valid one is unchanged.
fn label(text: &str, max: usize) -> String {
    let is_outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_part =
        |part: &str| is_bounded(part, is_outer) && part.bytes().all(|b| is_outer(b) || b == b'-');
    if text.len() <= max && text.split('.').all(is_part) {
        return text.to_owned();
    }
    let words = to_dns_label(text);
    let digest = Digest::of(text.as_bytes());
    let hash = &digest.hex()[..HASH];
    // Both are ASCII.
    let start = words[..words.len().min(max - HASH - 1)].trim_end_matches('-');
    if start.is_empty() { hash.to_owned() } else { format!("{start}-{hash}") }
}

/// Returns a text in lower case, with a dash in place of each run of characters that DNS labels lack.
fn to_dns_label(text: &str) -> String {
    let mut words = String::new();
    for c in text.chars() {
        match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() => words.push(c),
            _ if words.is_empty() || words.ends_with('-') => {}
            _ => words.push('-'),
        }
    }
    words.truncate(words.trim_end_matches('-').len());
    words
}

/// Names of the containers of a pod.
#[derive(Default)]
pub struct ContainerNames(BTreeSet<String>);

impl ContainerNames {
    /// Reserves a fixed name.
    pub fn reserve(&mut self, name: &str) {
        self.0.insert(name.to_owned());
    }

    /// Returns a unique container name that resembles `wanted` as far as DNS labels allow.
    pub fn choose(&mut self, wanted: &str) -> String {
        let words = to_dns_label(wanted);
        // Leaves room for a number.
        let start = words[..words.len().min(MAX - 4)].trim_end_matches('-');
        let start = if start.is_empty() { "service" } else { start };
        let numbered = (1..).map(|number| format!("{start}-{number}"));
        let mut names = std::iter::once(start.to_owned()).chain(numbered);
        let name = names.find(|name| !self.0.contains(name)).expect("there is no end of numbers");
        self.0.insert(name.clone());
        name
    }
}

/// Returns a host name in the form that `hostAliases` accepts; `None` for an invalid name.
pub fn host(name: &str) -> Option<String> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is_outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_part =
        |part: &str| is_bounded(part, is_outer) && part.bytes().all(|b| is_outer(b) || b == b'-');
    (name.len() <= 253 && name.split('.').all(is_part)).then_some(name)
}

/// Returns whether a key is valid for annotations.
pub fn is_annotation(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    prefix.is_none_or(|prefix| host(prefix).is_some_and(|lower| lower == prefix))
        && name.len() <= MAX
        && name.bytes().all(is_inner)
        && is_bounded(name, |b| b.is_ascii_alphanumeric())
}

/// Returns whether every version of Kubernetes accepts an environment variable of this name.
pub fn is_variable(name: &str) -> bool {
    let is_first = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'-' | b'_' | b'.');
    // Kubernetes rejects names that would be directory entries.
    !matches!(name, "." | "..")
        && !name.starts_with("..")
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|b| is_first(b) || b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_name(name: &str) -> bool {
        name.len() <= MAX && host(name).is_some_and(|lower| lower == name)
    }

    #[test]
    fn object_names_are_cut_and_unique_per_runner() {
        assert_eq!(object("runner-abc12", "workflow"), "runner-abc12-workflow");
        let long = format!("{}-bcdefgh", "a".repeat(53));
        let other = format!("{}-bcdefgi", "a".repeat(53));
        assert_ne!(object(&long, "workflow"), object(&other, "workflow"));
        let dotted = format!("{}.{}", "a".repeat(44), "b".repeat(20));
        for runner in [&long, &dotted, "Runner_1", "-", "", "a..b", "ä", "a.-b"] {
            for kind in ["workflow", "step-01234567", "secret-01234567"] {
                let name = object(runner, kind);
                assert!(is_name(&name), "{name}");
            }
        }
    }

    #[test]
    fn runner_label_is_the_name_if_it_is_valid() {
        assert_eq!(runner_label("runner.Abc_1"), "runner.Abc_1");
        let long = "a".repeat(64);
        assert_ne!(runner_label(&long), runner_label(&"a".repeat(65)));
        for runner in [&long, "a-", "", "a b"] {
            let value = runner_label(runner);
            assert!(value.len() <= MAX && is_name(&value), "{value}");
        }
    }

    #[test]
    fn container_names_are_unique_dns_labels() {
        let mut names = ContainerNames::default();
        names.reserve("job");
        let long = "x".repeat(100);
        let wanted = ["redis", "my_db", "job", "Redis", "redis-1", "ä", &long, "-a--b-"];
        let chosen: Vec<_> = wanted.iter().map(|name| names.choose(name)).collect();
        let long = "x".repeat(59);
        assert_eq!(
            chosen,
            ["redis", "my-db", "job-1", "redis-1", "redis-1-1", "service", &long, "a-b"]
        );
    }

    #[test]
    fn hosts_annotations_and_variables_have_valid_names() {
        assert_eq!(host("Db.Local.").as_deref(), Some("db.local"));
        assert_eq!((host("my_db"), host("-a"), host("")), (None, None, None));
        assert!(is_annotation("com.github.actions.run-id") && is_annotation("a.b/c_D"));
        assert!(!is_annotation("A/b") && !is_annotation("a/b/c") && !is_annotation("a b"));
        assert!(is_variable("A.b-C_1") && !is_variable("1A") && !is_variable("A B"));
        assert!(!is_variable("") && !is_variable(".."));
    }
}
