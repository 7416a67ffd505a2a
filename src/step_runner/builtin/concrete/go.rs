//! Values as Go's library makes them: GitLab's programs expect them so.

use std::collections::BTreeMap;
use std::time::Duration;

/// Returns a duration as `time.Duration` prints it: `1h0m0s`, `1.5s`, `20ms`.
pub fn duration(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    let fraction = |value: u128, unit: u128| {
        let digits = format!("{:0width$}", value % unit, width = unit.ilog10() as usize);
        let digits = digits.trim_end_matches('0');
        let whole = value / unit;
        if digits.is_empty() { whole.to_string() } else { format!("{whole}.{digits}") }
    };
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(nanoseconds, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(nanoseconds, 1_000_000)),
        _ => {
            let seconds = fraction(nanoseconds % 60_000_000_000, 1_000_000_000);
            let minutes = nanoseconds / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Expands `$NAME` and `${NAME}`, as `os.Expand` does. `$$` is a dollar sign, and what is special to shells
/// is nothing.
pub fn expand(text: &str, variable: impl Fn(&str) -> String) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let special = |c: char| matches!(c, '*' | '#' | '$' | '@' | '!' | '?' | '-' | '0'..='9');
        let (name, length) = match after.strip_prefix('{') {
            // What is not closed, or has no name, is dropped.
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 2),
                None => ("", 1),
            },
            None if after.starts_with(special) => (&after[..1], 1),
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
                if end == 0 {
                    expanded.push('$');
                }
                (&after[..end], end)
            }
        };
        match name {
            "$" => expanded.push('$'),
            name if name.len() == 1 && name.starts_with(special) => {}
            "" => {}
            name => expanded.push_str(&variable(name)),
        }
        rest = &after[length..];
    }
    expanded + rest
}

/// Returns a path without `.`, `..` and double slashes, by its text alone, as `filepath.Clean` does.
fn clean(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    parts
}

/// Returns the path of the archive of a cache, relative to the working directory if it can be.
pub fn archive_path(cache_dir: &str, key: &str, work_dir: &str) -> String {
    let parts = [cache_dir, key, "cache.zip"];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let path = parts.join("/");
    let (from, to) = (clean(work_dir), clean(&path));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let is_absolute = path.starts_with('/');
    if is_absolute != work_dir.starts_with('/') || from[common..].contains(&"..") {
        return if is_absolute { format!("/{}", to.join("/")) } else { to.join("/") };
    }
    let up = from[common..].iter().map(|_| "..");
    up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/")
}

/// Returns an object of texts in JSON.
pub fn json(members: &[(&str, &str)]) -> String {
    use super::super::super::Value;
    let member =
        |(name, value): &(&str, &str)| ((*name).to_owned(), Value::String((*value).to_owned()));
    Value::Object(members.iter().map(member).collect::<BTreeMap<_, _>>()).to_json()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn variables_are_expanded_as_go_does() {
        let value = |name: &str| if name == "A" { "a".to_owned() } else { format!("<{name}>") };
        for (text, expanded) in [
            ("", ""),
            ("1 $A", "1 a"),
            ("${A}b$A.", "aba."),
            ("$$A $", "$A $"),
            ("$1$?$*x", "x"),
            ("${}x ${A", "x A"),
            ("$é", "$é"),
            ("${a-b}", "<a-b>"),
        ] {
            assert_eq!(expand(text, value), expanded, "{text}");
        }
    }

    #[test]
    fn archives_are_relative_to_the_working_directory() {
        for (cache, key, work, path) in [
            ("/cache/g/p", "k", "/builds/g/p", "../../../cache/g/p/k/cache.zip"),
            ("/builds/g/p/c", "k", "/builds/g/p", "c/k/cache.zip"),
            ("/cache", "../../k", "/b", "../k/cache.zip"),
            ("cache", "k", "/b", "cache/k/cache.zip"),
            ("", "k", "/b", "k/cache.zip"),
        ] {
            assert_eq!(archive_path(cache, key, work), path);
        }
    }
}
