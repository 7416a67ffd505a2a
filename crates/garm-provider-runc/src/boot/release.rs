//! Distribution of an instance, from `/etc/os-release`.

use std::path::Path;

/// Size limit of the file, larger than any real one.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Length limit of a value.
const MAX_VALUE_CHARS: usize = 100;

/// Name and version of a distribution; empty if missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// Short name, such as `debian`.
    pub id: String,
    /// Version, such as `12`.
    pub version: String,
}

impl OsRelease {
    /// Reads the release with a function that reads a file of a limited size.
    pub fn of(mut read: impl FnMut(&Path, u64) -> Option<Vec<u8>>) -> Self {
        let mut paths = ["/etc/os-release", "/usr/lib/os-release"].into_iter();
        let found = paths.find_map(|path| read(Path::new(path), MAX_FILE_BYTES));
        OsRelease::parse(&String::from_utf8_lossy(&found.unwrap_or_default()))
    }

    /// Parses shell assignments without executing them.
    fn parse(text: &str) -> Self {
        let mut release = OsRelease::default();
        for line in text.lines() {
            match line.trim().split_once('=') {
                Some(("ID", value)) => release.id = unquoted(value),
                Some(("VERSION_ID", value)) => release.version = unquoted(value),
                _ => {}
            }
        }
        release
    }
}

/// Removes quotes and escapes from a value as a shell does.
fn unquoted(value: &str) -> String {
    let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''));
    let value = quote.map_or(value, |quote| {
        let inner = &value[1..];
        inner.strip_suffix(quote).unwrap_or(inner)
    });
    let mut result = String::new();
    let mut is_escaped = false;
    for c in value.chars() {
        if c == '\\' && !is_escaped && quote != Some('\'') {
            is_escaped = true;
        } else {
            is_escaped = false;
            result.extend(Some(c).filter(|c| !c.is_control()));
        }
    }
    result.chars().take(MAX_VALUE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn assignments_are_parsed_like_in_a_shell() {
        for (text, id, version) in [
            ("NAME=\"Debian GNU/Linux\"\nID=debian\nVERSION_ID=\"12\"\n", "debian", "12"),
            ("# x\n ID='Alpine \\ Linux'\r\nVERSION_ID=3.20.1", "Alpine \\ Linux", "3.20.1"),
            ("ID=\"a \\\"b\\\" \\$c\"\nPRETTY_NAME=x", "a \"b\" $c", ""),
            ("ID=old\nID=new\nVERSION_ID=", "new", ""),
            ("ID=\"\nVERSION_ID='1", "", "1"),
            ("nothing", "", ""),
        ] {
            let expected = OsRelease { id: id.into(), version: version.into() };
            assert_eq!(OsRelease::parse(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_release_file_gives_two_short_values(text in "(?s)((ID|VERSION_ID)=.{0,300}\n?){0,4}") {
            let release = OsRelease::parse(&text);
            for value in [&release.id, &release.version] {
                prop_assert!(value.chars().count() <= MAX_VALUE_CHARS);
                prop_assert!(!value.contains(char::is_control));
            }
        }
    }
}
