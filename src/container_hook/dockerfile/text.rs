//! The text of a Dockerfile, and what of its syntax old builders lack.

use std::ffi::OsStr;
use std::path::Path;

use semver::Version;

use crate::sys::fs::SystemRoot;

/// More than a Dockerfile that anybody wrote has. A longer one is not looked at.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a Dockerfile in the copy of its context; none of one that cannot be read, about which the builder
/// complains.
pub(super) fn text_of(copy: &Path, file_name: &OsStr) -> String {
    // A workflow's: where it is a link, it leads nowhere else than in the context.
    let text = SystemRoot::mounted_at(copy).read(file_name.as_ref(), MAX_BYTES);
    let text = text.ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// A here-document: lines that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::container_hook) struct HereDocument {
    /// The line that it begins in, from 1 on.
    pub(in crate::container_hook) line: usize,
}

impl HereDocument {
    /// The first version of buildah that knows them.
    pub(in crate::container_hook) const SINCE: Version = Version::new(1, 33, 0);

    /// Returns the first here-document of a Dockerfile in the copy of its context.
    pub(in crate::container_hook) fn first_of(copy: &Path, file_name: &OsStr) -> Option<Self> {
        HereDocument::first_in(&text_of(copy, file_name))
    }

    fn first_in(text: &str) -> Option<Self> {
        let mut lines = text.lines().zip(1..);
        let begins_one = |word: &str| {
            let name =
                word.strip_prefix("<<").map(|name| name.trim_start_matches(['-', '"', '\'']));
            name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
        };
        let found = lines.find(|(line, _)| {
            !line.trim_start().starts_with('#') && line.split_whitespace().any(begins_one)
        });
        found.map(|(_, line)| HereDocument { line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_here_document_is_told_from_what_shells_write() {
        let line = |text| HereDocument::first_in(text).map(|found| found.line);
        assert_eq!(line("FROM a\n# RUN <<EOF\nRUN <<EOF\nls\nEOF\n"), Some(3));
        assert_eq!(line("FROM a\nCOPY <<-\"end\" /file\nend\n"), Some(2));
        assert_eq!(line("RUN a \\\n  && b <<'_'\n_\n"), Some(2));
        assert_eq!(line("RUN cat <<< text; echo $((1<<N)) $((1 << N))\n"), None);
    }
}
