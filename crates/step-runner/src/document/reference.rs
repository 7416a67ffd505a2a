//! The short form of references to step files.

use std::fmt;

use super::types::StepReference;

/// A text that is not a reference to a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is not a path, an image or a built-in step, and has no revision of a git
    /// repository. The message is that of GitLab's step runner.
    #[error("expecting url@rev. got {:?}{}", remove_user(text), hint(text))]
    NoRevision { text: String },
}

/// Returns a suggestion to append to the message about a text without a revision; empty if there is
/// none.
fn hint(text: &str) -> String {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let is_path = !text.is_empty() && text.chars().all(is_path);
    let has_host = text.split_once('/').is_some_and(|(first, _)| first.contains('.'));
    if is_scp_like(text) || is_path && has_host {
        format!(": write {:?} for its branch main", format!("{text}@main"))
    } else if is_path {
        format!(": write {:?} for a directory", format!("./{text}"))
    } else {
        String::new()
    }
}

impl fmt::Display for StepReference {
    /// Formats the short form that [`StepReference::parse`] reads; of git URLs, without user, password and
    /// parameters. A directory outside of `steps/` in a git repository has no short form, and is shown like one
    /// below `steps/`. A short form with expressions is shown as written, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |path: &[String], file: &Option<String>| {
            let path: Vec<_> = path.iter().chain(file).map(String::as_str).collect();
            path.join("/")
        };
        match self {
            StepReference::Local { path, filename } => {
                let path = joined(path, filename);
                f.write_str(
                    path.strip_prefix('/').filter(|_| path.starts_with("//")).unwrap_or(&path),
                )
            }
            StepReference::Git { url, rev, path, filename } => {
                let short = path.strip_prefix(&[STEPS_DIR.to_owned()][..]).unwrap_or(path);
                let dir = joined(short, filename);
                let separator = if dir.is_empty() { "" } else { "/-/" };
                write!(f, "{}{separator}{dir}@{rev}", remove_secrets(url))
            }
            StepReference::Oci { registry, repository, tag, path, filename } => {
                let separator = if tag.contains(':') { '@' } else { ':' };
                write!(f, "{registry}/{repository}{separator}{tag}")?;
                let dir = joined(path, filename);
                if dir.is_empty() { Ok(()) } else { write!(f, " {dir}") }
            }
            StepReference::Builtin { path } => write!(f, "builtin://{}", path.join("/")),
            StepReference::Dynamic(text) => f.write_str(&remove_user(text)),
        }
    }
}

/// Returns a URL without the parts that may be secret: user, password and parameters.
fn remove_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit('@').next().unwrap_or_default();
    let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() { format!("{host}{path}") } else { format!("{scheme}://{host}{path}") }
}

/// Returns a short form without user and password. They are kept if they contain expressions, which
/// are not secret, and a user without a password is kept if there is no scheme.
fn remove_user(text: &str) -> String {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + "://".len()));
    let end = rest.find(['/', '?', '#', '$']).unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        // Without a scheme, `git@host:path` has no password, and `name@rev` no user.
        Some((user, _)) if !scheme.is_empty() || user.contains(':') && !is_scp_like(text) => {
            format!("{scheme}{}", &rest[user.len() + 1..])
        }
        _ => text.to_owned(),
    }
}

/// Directory in a git repository to which the directories in short references are relative.
const STEPS_DIR: &str = "steps";

impl StepReference {
    /// Parses the short form of a reference:
    ///
    /// - `${{ … }}` anywhere in it: expanded when the step is reached.
    /// - `./dir`, `../dir`, `/dir`: a local directory. A last segment that ends in `.yml` is the file.
    /// - `builtin://name`, formerly `dist://name`: a step of this program.
    /// - `host/repository@rev`, `host/repository/-/dir@rev`: a directory in a git repository, below `steps/`.
    ///   HTTPS unless it starts with `http://`, `ssh://` or `user@host:`.
    /// - `registry/repository:tag`, `registry/repository:tag dir/func.yml`: a container image.
    ///   `@sha256:…` in place of the tag is a digest.
    ///
    /// # Errors
    ///
    /// Fails if the text is none of these.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.contains("${{") {
            return Ok(StepReference::Dynamic(text.to_owned()));
        }
        // A path or `builtin://` is also recognized after blanks; the blanks stay part of a path.
        let trimmed = text.trim_start();
        if trimmed.starts_with(['.', '/']) {
            let (mut path, filename) = path_and_file(text);
            if text.starts_with('/') {
                path.insert(0, "/".to_owned());
            }
            return Ok(StepReference::Local { path, filename });
        }
        let builtin = trimmed.strip_prefix("builtin://").or(trimmed.strip_prefix("dist://"));
        if let Some(name) = builtin {
            return Ok(StepReference::Builtin {
                path: name.split('/').map(str::to_owned).collect(),
            });
        }
        if let Some(image) = parse_image(text) {
            return Ok(image);
        }
        let no_revision = || ReferenceError::NoRevision { text: text.to_owned() };
        // An `@` before the path of the repository ends the user.
        let is_repository = |place: &str| {
            let rest = place.split_once("://").map_or(place, |(_, rest)| rest);
            rest.contains('/') || is_scp_like(place)
        };
        let (place, rev) = text
            .rsplit_once('@')
            .filter(|(place, _)| is_repository(place))
            .ok_or_else(no_revision)?;
        let (url, dir) = place.split_once("/-/").unwrap_or((place, ""));
        let (mut path, filename) = path_and_file(dir);
        path.insert(0, STEPS_DIR.to_owned());
        Ok(StepReference::Git { url: Self::url(url), rev: rev.to_owned(), path, filename })
    }

    /// Returns the reference with its expressions expanded by `expand`.
    pub(crate) fn expand<E: From<ReferenceError>>(
        &self,
        expand: impl Fn(&str) -> Result<String, E>,
    ) -> Result<Self, E> {
        // A slash may be part of an expression.
        let dirs = |path: &[String]| expand(&path.join("/")).map(|dir| segments(&dir));
        let file = |name: &Option<String>| name.as_deref().map(&expand).transpose();
        Ok(match self {
            StepReference::Dynamic(text) => StepReference::parse(&expand(text)?)?,
            StepReference::Git { url, rev, path, filename } => StepReference::Git {
                url: Self::url(&expand(url)?),
                rev: expand(rev)?,
                path: dirs(path)?,
                filename: file(filename)?,
            },
            StepReference::Oci { registry, repository, tag, path, filename } => {
                StepReference::Oci {
                    registry: expand(registry)?,
                    repository: expand(repository)?,
                    tag: expand(tag)?,
                    path: dirs(path)?,
                    filename: file(filename)?,
                }
            }
            StepReference::Local { .. } | StepReference::Builtin { .. } => self.clone(),
        })
    }

    /// Returns the URL of a git repository; `https://` is the default scheme.
    pub fn url(text: &str) -> String {
        let has_scheme = ["http://", "https://", "ssh://"].iter().any(|s| text.starts_with(s));
        if has_scheme || is_scp_like(text) || text.is_empty() || text.contains("${{") {
            text.to_owned()
        } else {
            format!("https://{text}")
        }
    }
}

/// Returns whether a text is an scp-like repository, such as `git@host:group/project`.
fn is_scp_like(text: &str) -> bool {
    let Some((host, path)) = text.split_once(':') else { return false };
    let Some((user, host)) = host.split_once('@') else { return false };
    let is_port = path.split('/').next().is_some_and(|s| s.bytes().all(|b| b.is_ascii_digit()));
    !user.is_empty() && !host.is_empty() && !host.contains('/') && !is_port
}

/// Parses `registry/repository:tag` or `registry/repository@sha256:…`, with an optional path after
/// a blank.
fn parse_image(text: &str) -> Option<StepReference> {
    let (image, dir) = text.split_once(' ').unwrap_or((text, ""));
    let (name, tag) = match image.split_once("@sha256:") {
        Some((name, digits)) => {
            let is_digest = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            (name, is_digest.then(|| format!("sha256:{digits}"))?)
        }
        None => {
            let (name, tag) = image.rsplit_once(':')?;
            let is_tag = tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            (name, (is_tag && !tag.is_empty()).then(|| tag.to_owned())?)
        }
    };
    let (registry, repository) = name.split_once('/')?;
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
    let is_registry = !registry.is_empty() && registry.bytes().all(|b| is_name(b) || b == b':');
    let is_repository = !repository.is_empty() && repository.bytes().all(is_name);
    if !is_registry || !is_repository || repository.starts_with('/') {
        return None;
    }
    let (path, filename) = path_and_file(dir);
    let (registry, repository) = (registry.to_owned(), repository.to_owned());
    Some(StepReference::Oci { registry, repository, tag, path, filename })
}

/// Splits a path into directories and a file name; the last segment is a file name if it ends in
/// `.yml`.
fn path_and_file(path: &str) -> (Vec<String>, Option<String>) {
    let mut path = segments(path);
    let filename = path.pop_if(|last| last.ends_with(".yml"));
    (path, filename)
}

/// Returns the non-empty segments of a path.
pub fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(path: &[&str]) -> Vec<String> {
        path.iter().copied().map(str::to_owned).collect()
    }

    #[test]
    fn image_reference_has_a_tag_or_digest_and_an_optional_path() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, expected) in [
            ("registry.gitlab.com/g/p:1 dir/func.yml", ("g/p", "1", vec!["dir"], Some("func.yml"))),
            ("registry.gitlab.com/g/p:1.2 dir/sub", ("g/p", "1.2", vec!["dir", "sub"], None)),
            ("registry.gitlab.com/p:latest", ("p", "latest", vec![], None)),
            (&format!("registry.gitlab.com/p@{digest}"), ("p", &digest, vec![], None)),
        ] {
            let (repository, tag, path, filename) = expected;
            let expected = StepReference::Oci {
                registry: "registry.gitlab.com".to_owned(),
                repository: repository.to_owned(),
                tag: tag.to_owned(),
                path: strings(&path),
                filename: filename.map(str::to_owned),
            };
            assert_eq!(StepReference::parse(text), Ok(expected), "{text}");
        }
        let Ok(StepReference::Oci { registry, .. }) = StepReference::parse("localhost:5000/p:1")
        else {
            panic!("no image");
        };
        assert_eq!(registry, "localhost:5000");
    }

    #[test]
    fn reference_without_revision_or_tag_is_rejected() {
        for text in ["", "a", "C:\\x", "a:1", "gitlab.com/g/p", "localhost:5000/g/p", "/x:1 y"] {
            let expected = ReferenceError::NoRevision { text: text.to_owned() };
            match StepReference::parse(text) {
                Ok(StepReference::Local { .. }) => assert!(text.starts_with('/')),
                other => assert_eq!(other, Err(expected), "{text}"),
            }
        }
    }

    #[test]
    fn expressions_are_expanded_in_each_part() {
        let reference = StepReference::Git {
            url: "${{host}}/p".to_owned(),
            rev: "${{rev}}".to_owned(),
            path: strings(&["a", "${{8 ", " 2}}"]),
            filename: Some("${{file}}".to_owned()),
        };
        let expand = |text: &str| -> Result<String, ReferenceError> {
            Ok(text.replace("${{host}}", "h").replace("${{8 / 2}}", "4/5").replace("${{", "<"))
        };
        let expanded = StepReference::Git {
            url: "https://h/p".to_owned(),
            rev: "<rev}}".to_owned(),
            path: strings(&["a", "4", "5"]),
            filename: Some("<file}}".to_owned()),
        };
        assert_eq!(reference.expand(expand).unwrap(), expanded);
        let dynamic = StepReference::Dynamic("./${{host}}".to_owned());
        let local = StepReference::Local { path: strings(&[".", "h"]), filename: None };
        assert_eq!(dynamic.expand(expand).unwrap(), local);
    }

    #[test]
    fn references_are_displayed_in_short_form() {
        for text in [
            "./a/b",
            "../a/func.yml",
            "/a/b",
            "https://gitlab.com/g/p@v1",
            "https://gitlab.com/g/p/-/dir@v1",
            "registry.gitlab.com/g/p:1 dir/func.yml",
            "builtin://script",
            "./${{ env.A }}",
        ] {
            assert_eq!(StepReference::parse(text).unwrap().to_string(), text);
        }
        for secret in ["https://user:password@host/g/p@v1", "https://host/g/p?private_token=x@v1"] {
            let secret = StepReference::parse(secret).unwrap();
            assert_eq!(secret.to_string(), "https://host/g/p@v1");
        }
        for (text, shown) in [
            ("https://u:password@host/g/p@${{ rev }}", "https://host/g/p@${{ rev }}"),
            ("https://u:${{ a }}@host/p@v1", "https://u:${{ a }}@host/p@v1"),
            ("https://host:8443${{ path }}@v1", "https://host:8443${{ path }}@v1"),
            ("${{ url }}@${{ rev }}", "${{ url }}@${{ rev }}"),
        ] {
            assert_eq!(StepReference::parse(text).unwrap().to_string(), shown);
        }
        for (scheme, rest) in [("https://", "host/g/p"), ("", "host/g/p"), ("", "host:8080/p")] {
            let text = format!("{scheme}user:password@{rest}");
            let error = StepReference::parse(&text).unwrap_err();
            let expected = format!("expecting url@rev. got \"{scheme}{rest}\"");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn error_suggests_the_probable_reference() {
        for (text, hint) in [
            ("lib/build", ": write \"./lib/build\" for a directory"),
            ("build", ": write \"./build\" for a directory"),
            ("gitlab.com/g/p", ": write \"gitlab.com/g/p@main\" for its branch main"),
            ("git@host:g/p", ": write \"git@host:g/p@main\" for its branch main"),
            ("git@host:g/p/-/dir", ": write \"git@host:g/p/-/dir@main\" for its branch main"),
            ("user@host:8080/p", ""),
            ("host@v1", ""),
            ("a b", ""),
            ("", ""),
        ] {
            let error = StepReference::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("expecting url@rev. got {text:?}{hint}"));
        }
    }

    #[test]
    fn repositories_can_be_reached_by_ssh() {
        for (text, expected) in [
            ("ssh://git@host:2222/g/p@v1", "ssh://git@host:2222/g/p"),
            ("git@host:g/p.git@v1", "git@host:g/p.git"),
            ("user:password@host/g/p@v1", "https://user:password@host/g/p"),
            ("user@host:8080/p@v1", "https://user@host:8080/p"),
        ] {
            let Ok(StepReference::Git { url, rev, .. }) = StepReference::parse(text) else {
                panic!("{text} is no repository");
            };
            assert_eq!((url.as_str(), rev.as_str()), (expected, "v1"));
        }
    }
}
