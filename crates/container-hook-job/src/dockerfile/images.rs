//! Finds the images that a Dockerfile names, without building it.
//!
//! Images that are missed here are pulled by the build itself, without a login.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use oci_hooks_files::fs::SystemRoot;
use oci_hooks_image::ImageReference;
use semver::Version;

/// Number of images after which the search stops.
const MAX_IMAGES: usize = 256;

/// Returns the images that a Dockerfile names; none if it cannot be read, which the builder
/// reports. `copy` is the copied build context that contains the Dockerfile.
pub fn images_of(copy: &Path, file_name: &OsStr) -> Vec<ImageReference> {
    images(&text_of(copy, file_name))
}

/// Returns the base images of stages and the images they copy from, each once.
fn images(text: &str) -> Vec<ImageReference> {
    let mut dockerfile = Dockerfile::default();
    for line in instructions(text) {
        dockerfile.read(&line);
        if dockerfile.images.len() >= MAX_IMAGES {
            break;
        }
    }
    dockerfile.images
}

#[derive(Debug, Default)]
struct Dockerfile {
    /// Defaults of `ARG` instructions before the first stage.
    arguments: BTreeMap<String, String>,
    stages: BTreeSet<String>,
    has_stage: bool,
    images: Vec<ImageReference>,
}

impl Dockerfile {
    fn read(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let instruction = words.next().unwrap_or_default().to_ascii_uppercase();
        match instruction.as_str() {
            "ARG" if !self.has_stage => {
                let defaults = words.filter_map(|word| word.split_once('='));
                let defaults = defaults.map(|(name, value)| (name.to_owned(), unquoted(value)));
                self.arguments.extend(defaults.collect::<Vec<_>>());
            }
            "FROM" => {
                self.has_stage = true;
                let mut words = words.skip_while(|word| word.starts_with("--"));
                self.add(words.next().unwrap_or_default());
                if words.next().is_some_and(|word| word.eq_ignore_ascii_case("as")) {
                    self.stages.extend(words.next().map(str::to_ascii_lowercase));
                }
            }
            "ADD" | "COPY" => {
                let from = words.filter_map(|word| word.strip_prefix("--from="));
                from.collect::<Vec<_>>().into_iter().for_each(|image| self.add(image));
            }
            "RUN" => {
                let mounts = words.filter_map(|word| word.strip_prefix("--mount="));
                let from = mounts.flat_map(|mount| mount.split(','));
                let from = from.filter_map(|field| field.strip_prefix("from="));
                from.collect::<Vec<_>>().into_iter().for_each(|image| self.add(image));
            }
            _ => {}
        }
    }

    /// Adds an image, unless the word is the name or number of a stage.
    fn add(&mut self, word: &str) {
        let Some(name) = self.expand(&unquoted(word)) else { return };
        let is_stage =
            name.parse::<u32>().is_ok() || self.stages.contains(&name.to_ascii_lowercase());
        if is_stage || name == "scratch" {
            return;
        }
        if let Ok(image) = name.parse::<ImageReference>()
            && !self.images.contains(&image)
        {
            self.images.push(image);
        }
    }

    /// Replaces arguments by their defaults; returns none if an argument has no default.
    fn expand(&self, text: &str) -> Option<String> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            expanded += before;
            let (name, default, end) = match after.strip_prefix('{') {
                Some(braced) => {
                    let (inner, end) = braced.split_once('}')?;
                    let (name, default) = match inner.split_once(":-") {
                        Some((name, default)) => (name, Some(default)),
                        None => (inner, None),
                    };
                    (name, default, end)
                }
                None => {
                    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let length = after.find(|c| !is_part(c)).unwrap_or(after.len());
                    (&after[..length], None, &after[length..])
                }
            };
            let value =
                self.arguments.get(name).map(String::as_str).filter(|value| !value.is_empty());
            expanded += value.or(default)?;
            rest = end;
        }
        Some(expanded + rest)
    }
}

/// Returns the instructions, with continuation lines joined.
fn instructions(text: &str) -> impl Iterator<Item = String> {
    let mut lines = text.lines();
    std::iter::from_fn(move || {
        let mut whole = lines.next()?.to_owned();
        while let Some(length) = whole.trim_end().strip_suffix('\\').map(str::len) {
            let is_skipped =
                |line: &&str| matches!(line.trim_start().chars().next(), None | Some('#'));
            let mut more = lines.by_ref().skip_while(is_skipped);
            whole.truncate(length);
            whole.push(' ');
            whole += more.next().unwrap_or_default();
        }
        Some(whole)
    })
}

fn unquoted(word: &str) -> String {
    word.trim_matches(['"', '\'']).to_owned()
}

/// Maximum size of a Dockerfile that is searched; real Dockerfiles are smaller.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a Dockerfile in the copied build context; empty if it cannot be read, which
/// the builder reports.
fn text_of(copy: &Path, file_name: &OsStr) -> String {
    // The workflow controls the file: a symbolic link is resolved within the context.
    let text = SystemRoot::mounted_at(copy).read(file_name.as_ref(), MAX_BYTES);
    let text = text.ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// A here-document of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HereDocument {
    /// Line in which it begins, from 1.
    pub line: usize,
}

impl HereDocument {
    /// First version of buildah that supports here-documents.
    pub const SINCE: Version = Version::new(1, 33, 0);

    /// Returns the first here-document of a Dockerfile in the copied build context.
    pub fn find_first(copy: &Path, file_name: &OsStr) -> Option<Self> {
        HereDocument::parse_first(&text_of(copy, file_name))
    }

    fn parse_first(text: &str) -> Option<Self> {
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
    fn images_of_stages_copies_and_mounts_are_found() {
        let text = r#"
# syntax=docker/dockerfile:1
ARG VERSION=3.20 BASE="ghcr.io/octo/base"
arg NOTHING
FROM --platform=linux/amd64 alpine:${VERSION} AS Build
FROM \
  # in between

  $BASE:$VERSION as second
COPY --from=build --chown=1 /a /b
COPY --from=quay.io/a/tool:1 /a /b
RUN --mount=type=bind,from=second,target=/x --mount=type=bind,from=b/c,target=/y true
FROM scratch
COPY --from=0 /a /a
FROM $NOTHING
FROM ${OTHER:-node:22}
FROM alpine:3.20
FROM second
FROM Not/An:Image
FROM
"#;
        let found: Vec<_> = images(text).iter().map(ImageReference::to_string).collect();
        let expected =
            ["alpine:3.20", "ghcr.io/octo/base:3.20", "quay.io/a/tool:1", "b/c", "node:22"];
        let expected: Vec<_> =
            expected.map(|image| image.parse::<ImageReference>().unwrap().to_string()).to_vec();
        assert_eq!(found, expected);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(
            text in "((FROM|ARG|COPY --from=|RUN --mount=from=)?[ -~żé\\\\$\\{\\}:]{0,20}\\\\?\n){0,9}"
        ) {
            images(&text);
        }
    }

    #[test]
    fn long_dockerfile_is_read_up_to_a_limit() {
        let many: String = (0..10_000).map(|n| format!("FROM a:{n}\n")).collect();
        assert_eq!(images(&many).len(), MAX_IMAGES);
        assert!(images(&"\\\n".repeat(1000)).is_empty());
    }

    #[test]
    fn here_documents_are_distinguished_from_shell_syntax() {
        let line = |text| HereDocument::parse_first(text).map(|found| found.line);
        assert_eq!(line("FROM a\n# RUN <<EOF\nRUN <<EOF\nls\nEOF\n"), Some(3));
        assert_eq!(line("FROM a\nCOPY <<-\"end\" /file\nend\n"), Some(2));
        assert_eq!(line("RUN a \\\n  && b <<'_'\n_\n"), Some(2));
        assert_eq!(line("RUN cat <<< text; echo $((1<<N)) $((1 << N))\n"), None);
    }
}
