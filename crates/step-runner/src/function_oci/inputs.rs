//! Validated inputs of the functions that build and publish images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::spelling::closest_name;
use oci_hooks_image::{ImageReference, Platform};
use semver::Version;

use super::super::ExprValue;
use super::super::resolve::ARCHIVE;
use super::error::FunctionError;

/// Default platforms of an image, all with the same files.
const PLATFORMS: [&str; 2] = ["linux/amd64", "linux/arm64"];

/// Inputs of `builtin://function/oci/build`.
#[derive(Debug)]
pub struct BuildInputs {
    pub version: Version,
    pub common: Vec<CopiedFile>,
    /// Platforms, at least one, in the order of their names, each with its additional files.
    pub platforms: Vec<(Platform, Vec<CopiedFile>)>,
}

/// A file or a directory that is copied into an image.
#[derive(Debug, PartialEq, Eq)]
pub struct CopiedFile {
    /// Path in the image, without `.` and `..`; empty for the top of the image.
    pub destination: PathBuf,
    /// Path of the file or directory as in the input, relative to the job's directory or absolute.
    pub source: PathBuf,
}

/// Inputs of `builtin://function/oci/publish`.
#[derive(Debug)]
pub struct PublishInputs {
    pub archive: PathBuf,
    /// Repository to push to. An input with a tag or digest is rejected.
    pub repository: ImageReference,
    pub overwrite: bool,
}

impl BuildInputs {
    pub(super) fn parse(inputs: &BTreeMap<String, ExprValue>) -> Result<Self, FunctionError> {
        let version = match inputs.get("version") {
            Some(ExprValue::Number(number)) => {
                let problem = format!("expected a string, got the number {number}: quote it");
                return Err(input("version", problem));
            }
            version => parse_version(text("version", version)?)?,
        };
        let mut common = Vec::new();
        for (key, value) in object("common", inputs.get("common"))? {
            match key.as_str() {
                "files" => common = files("common.files", value)?,
                key => return Err(unknown("common", key, &["files"])),
            }
        }
        let mut platforms: Vec<(Platform, Vec<CopiedFile>)> = Vec::new();
        for (name, value) in object("platforms", inputs.get("platforms"))? {
            let (platform, files) = platform(name, value)?;
            if platforms.iter().any(|(other, _)| *other == platform) {
                let problem = format!("duplicate platform {platform}");
                return Err(input("platforms", problem));
            }
            platforms.push((platform, files));
        }
        if platforms.is_empty() {
            let all = PLATFORMS.iter().map(|name| name.parse().expect("they are platforms"));
            platforms = all.map(|platform| (platform, Vec::new())).collect();
        }
        Ok(BuildInputs { version, common, platforms })
    }
}

impl PublishInputs {
    pub(super) fn parse(inputs: &BTreeMap<String, ExprValue>) -> Result<Self, FunctionError> {
        let archive = match inputs.get("archive") {
            None => ARCHIVE,
            archive => text("archive", archive)?,
        };
        let name = text("to_repository", inputs.get("to_repository"))?.trim();
        let wrong = |problem: &str| input("to_repository", format!("{name:?}: {problem}"));
        let repository: ImageReference =
            name.parse().map_err(|error| input("to_repository", format!("{error}")))?;
        let last = name.rsplit('/').next().unwrap_or(name);
        if repository.digest().is_some() || last.contains(':') && name.contains('/') {
            return Err(wrong("leave out the tag: the version in the archive is used"));
        }
        // A name without a registry would mean Docker Hub.
        let is_hub = repository.registry() == "docker.io";
        if is_hub && !name.starts_with("docker.io/") && !name.starts_with("index.docker.io/") {
            return Err(wrong(
                "begin with the registry, for example registry.example.com/group/name",
            ));
        }
        let overwrite = match inputs.get("overwrite") {
            None => false,
            Some(ExprValue::Bool(overwrite)) => *overwrite,
            Some(other) => return Err(type_error("overwrite", "true or false", other)),
        };
        Ok(PublishInputs { archive: archive.into(), repository, overwrite })
    }
}

fn platform(name: &str, value: &ExprValue) -> Result<(Platform, Vec<CopiedFile>), FunctionError> {
    let path = format!("platforms.{name}");
    let parsed = name.trim().parse::<Platform>();
    let mut platform = parsed.map_err(|error| input("platforms", error.to_string()))?;
    let mut copied = Vec::new();
    for (key, value) in object(&path, Some(value))? {
        match key.as_str() {
            "files" => copied = files(&format!("{path}.files"), value)?,
            "variant" => {
                let variant = text(&format!("{path}.variant"), Some(value))?;
                let full = format!("{}/{}/{variant}", platform.os, platform.architecture);
                platform = full.parse().map_err(|error| input(&path, format!("{error}")))?;
            }
            key => return Err(unknown(&path, key, &["files", "variant"])),
        }
    }
    Ok((platform, copied))
}

/// Parses a mapping of destinations to sources. Fails on a duplicate destination. `path` is the
/// path of the input in errors.
fn files(path: &str, value: &ExprValue) -> Result<Vec<CopiedFile>, FunctionError> {
    let mut copied: Vec<CopiedFile> = Vec::new();
    for (destination, source) in object(path, Some(value))? {
        let ExprValue::String(source) = source else {
            return Err(type_error(&format!("{path}.{destination}"), "a path", source));
        };
        if source.trim().is_empty() {
            return Err(input(path, format!("no source path for {destination:?}")));
        }
        let normal = normalize_path(destination).ok_or_else(|| {
            input(path, format!("{destination:?}: expected a path in the image, without \"..\""))
        })?;
        if copied.iter().any(|other| other.destination == normal) {
            let normal = normal.display().to_string();
            return Err(input(path, format!("duplicate destination {normal:?}")));
        }
        copied.push(CopiedFile { destination: normal, source: source.trim().into() });
    }
    Ok(copied)
}

/// Returns a path in the image relative to its top; `None` if the path is empty, or contains `..`
/// or a NUL byte.
fn normalize_path(path: &str) -> Option<PathBuf> {
    let path = path.trim();
    if path.is_empty() || path.contains('\0') {
        return None;
    }
    let mut normal = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

fn text<'a>(path: &str, value: Option<&'a ExprValue>) -> Result<&'a str, FunctionError> {
    match value {
        Some(ExprValue::String(text)) if !text.trim().is_empty() => Ok(text),
        Some(ExprValue::String(_)) | None => {
            Err(input(path, "expected a string that is not empty".to_owned()))
        }
        Some(other) => Err(type_error(path, "a string", other)),
    }
}

fn object<'a>(
    path: &str,
    value: Option<&'a ExprValue>,
) -> Result<impl Iterator<Item = (&'a String, &'a ExprValue)>, FunctionError> {
    match value {
        Some(ExprValue::Object(members)) => Ok(Some(members).into_iter().flatten()),
        None | Some(ExprValue::Null) => Ok(None.into_iter().flatten()),
        Some(other) => Err(type_error(path, "an object", other)),
    }
}

fn input(path: &str, problem: String) -> FunctionError {
    FunctionError::Input { path: path.to_owned(), problem }
}

fn type_error(path: &str, expected: &str, got: &ExprValue) -> FunctionError {
    let got = got.kind().map_or("null", |kind| kind.name());
    input(path, format!("expected {expected}, got {got}"))
}

/// Returns the error about an unknown key, which names the known keys, the most similar one first.
fn unknown(path: &str, key: &str, known: &[&str]) -> FunctionError {
    let meant = closest_name(key, known.iter().copied());
    let mut known = known.to_vec();
    known.sort_by_key(|&name| Some(name) != meant);
    let known: Vec<_> = known.into_iter().map(|name| format!("{name:?}")).collect();
    input(path, format!("unknown key {key:?}: expected {}", known.join(" or ")))
}

/// Maximum length of a tag in bytes, from the OCI distribution specification.
const MAX_TAG_BYTES: usize = 128;

/// Parses the version of a function: `1.2.3`, or `1.2.3-rc1` for a prerelease.
pub fn parse_version(text: &str) -> Result<Version, FunctionError> {
    let hint = match text {
        text if text.starts_with(['v', 'V']) => ": leave out the \"v\"",
        text if text.contains('+') => ": tags have no \"+\"",
        text if text.split(['.', '-']).any(is_padded) => ": numbers have no leading zeros",
        _ => "",
    };
    match Version::parse(text) {
        Ok(version) if version.build.is_empty() && text.len() <= MAX_TAG_BYTES => Ok(version),
        _ => Err(FunctionError::Version { text: text.to_owned(), hint }),
    }
}

fn is_padded(part: &str) -> bool {
    part.len() > 1 && part.starts_with('0') && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the tags of an image with a version, the version itself first.
///
/// `1.2`, `1` and `latest` name the newest release in their range: a release does not get such a
/// tag if one of the `existing` tags is a newer release in its range. A prerelease gets none of
/// them.
pub fn tags_of(version: &Version, existing: &BTreeSet<String>) -> Vec<String> {
    let mut tags = vec![version.to_string()];
    if !version.pre.is_empty() {
        return tags;
    }
    let mut newer: Vec<_> = existing.iter().filter_map(|tag| parse_version(tag).ok()).collect();
    newer.retain(|other| other.pre.is_empty() && other > version);
    if newer.iter().all(|other| (other.major, other.minor) != (version.major, version.minor)) {
        tags.push(format!("{}.{}", version.major, version.minor));
    }
    if newer.iter().all(|other| other.major != version.major) {
        tags.push(version.major.to_string());
    }
    if newer.is_empty() {
        tags.push("latest".to_owned());
    }
    tags
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(json: serde_json::Value) -> BTreeMap<String, ExprValue> {
        let ExprValue::Object(members) = ExprValue::from(json) else { panic!("it is an object") };
        members
    }

    #[test]
    fn inputs_of_the_documentation_are_accepted() {
        let inputs = BuildInputs::parse(&values(json!({
            "version": "1.2.3",
            "common": {"files": {"func.yml": "func.yml", "./a//b/": "b"}},
            "platforms": {
                "linux/amd64": {"files": {"bin/x": "bin/amd64/x"}},
                "linux/aarch64": {"files": {"/bin/x": "bin/arm64/x"}},
                "linux/arm": {"variant": "v7"},
                "linux/riscv64": null,
            },
        })))
        .unwrap();
        assert_eq!(inputs.version.to_string(), "1.2.3");
        assert_eq!(inputs.common[0].destination, Path::new("a/b"));
        let names: Vec<_> =
            inputs.platforms.iter().map(|(p, f)| format!("{p} {}", f.len())).collect();
        assert_eq!(names, ["linux/arm64 1", "linux/amd64 1", "linux/arm/v7 0", "linux/riscv64 0"]);
        assert_eq!(inputs.platforms[0].1[0].destination, Path::new("bin/x"));

        let inputs = BuildInputs::parse(&values(json!({"version": "1.0.0"}))).unwrap();
        let names: Vec<_> = inputs.platforms.iter().map(|(p, _)| p.to_string()).collect();
        assert_eq!(names, PLATFORMS);
    }

    #[test]
    fn invalid_inputs_are_named() {
        for (inputs, expected) in [
            (json!({}), "input version: expected a string that is not empty"),
            (json!({"version": 1.2}), "expected a string, got the number 1.2: quote it"),
            (json!({"version": "v1.2.3"}), "leave out the \"v\""),
            (
                json!({"version": "1.0.0", "common": []}),
                "input common: expected an object, got array",
            ),
            (
                json!({"version": "1.0.0", "common": {"file": {}}}),
                "input common: unknown key \"file\": expected \"files\"",
            ),
            (
                json!({"version": "1.0.0", "platforms": {"linux/arm": {"varient": "v7"}}}),
                "unknown key \"varient\": expected \"variant\" or \"files\"",
            ),
            (
                json!({"version": "1.0.0", "platforms": {"linux/arm": {"mode": {}}}}),
                "unknown key \"mode\": expected \"files\" or \"variant\"",
            ),
            (
                json!({"version": "1.0.0", "common": {"files": {"a": 1}}}),
                "input common.files.a: expected a path, got number",
            ),
            (
                json!({"version": "1.0.0", "common": {"files": {"a": ""}}}),
                "no source path for \"a\"",
            ),
            (json!({"version": "1.0.0", "common": {"files": {"../a": "a"}}}), "without \"..\""),
            (json!({"version": "1.0.0", "common": {"files": {"": "a"}}}), "without \"..\""),
            (
                json!({"version": "1.0.0", "common": {"files": {"a": "a", "./a": "b"}}}),
                "duplicate destination \"a\"",
            ),
            (json!({"version": "1.0.0", "platforms": {"linux": {}}}), "invalid platform \"linux\""),
            (
                json!({"version": "1.0.0", "platforms": {"linux/arm64": {}, "linux/aarch64": {}}}),
                "duplicate platform linux/arm64",
            ),
        ] {
            let error = BuildInputs::parse(&values(inputs)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_repository_has_a_registry_and_no_tag() {
        let parse = |name: &str| {
            let inputs = json!({"archive": "x.tar", "to_repository": name});
            PublishInputs::parse(&values(inputs))
                .map(|inputs| inputs.repository.repository().to_owned())
        };
        for (name, repository) in [
            ("registry.example.com/my-org/my-function", "my-org/my-function"),
            (" localhost:5000/a ", "a"),
            ("docker.io/org/a", "org/a"),
        ] {
            assert_eq!(parse(name).unwrap(), repository);
        }
        for (name, expected) in [
            ("registry.example.com/a:1.2.3", "leave out the tag"),
            ("localhost:5000/a:latest", "leave out the tag"),
            ("my-org/a", "begin with the registry"),
            ("a:1", "begin with the registry"),
            ("https://registry.example.com/a", "leave out"),
            ("registry.example.com/A", "lower case"),
            ("", "expected a string that is not empty"),
        ] {
            let error = parse(name).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn versions_are_parsed_and_printed_unchanged() {
        for text in ["0.0.0", "1.2.3", "10.20.30", "1.2.0-rc1", "1.2.0-rc.1-x"] {
            assert_eq!(parse_version(text).unwrap().to_string(), text);
        }
        for (text, hint) in [
            ("", ""),
            ("1", ""),
            ("1.2", ""),
            ("1.2.3.4", ""),
            ("v1.2.3", "leave out the \"v\""),
            ("1.2.3+5", "no \"+\""),
            ("1.2.03", "leading zeros"),
            ("1.2.3-rc.01", "leading zeros"),
            ("1.2.-3", ""),
            ("1.2.3-", ""),
            ("1.2.3-a..b", ""),
            ("1.2.3-a_b", ""),
            ("1.2.3-é", ""),
            (" 1.2.3", ""),
            ("1.2.99999999999999999999", ""),
        ] {
            let error = parse_version(text).unwrap_err().to_string();
            assert!(error.contains("MAJOR.MINOR.PATCH") && error.contains(hint), "{error}");
        }
        assert!(parse_version(&format!("1.2.3-{}", "a".repeat(128))).is_err());
    }

    #[test]
    fn release_gets_the_tags_for_which_it_is_newest() {
        for (version, existing, expected) in [
            ("1.2.3", &[][..], "1.2.3 1.2 1 latest"),
            ("1.2.3", &["1.2.3", "1.2", "1", "latest"], "1.2.3 1.2 1 latest"),
            ("1.2.3", &["1.2.4"], "1.2.3"),
            ("1.2.3", &["1.3.0"], "1.2.3 1.2"),
            ("1.2.3", &["2.0.0"], "1.2.3 1.2 1"),
            ("1.2.3", &["1.2.4-rc1", "2.0.0-rc1", "v3.0.0", "main", "5"], "1.2.3 1.2 1 latest"),
            ("1.10.0", &["1.9.0"], "1.10.0 1.10 1 latest"),
            ("1.2.0-rc1", &[], "1.2.0-rc1"),
        ] {
            let existing = existing.iter().map(|&tag| tag.to_owned()).collect();
            let tags = tags_of(&parse_version(version).unwrap(), &existing);
            assert_eq!(tags.join(" "), expected, "{version} {existing:?}");
        }
    }
}
