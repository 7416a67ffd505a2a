//! The source tree: files, their code without comments and strings, and their packages.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use oci_hooks_testsupport::program;

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TidyFinding {
    path: PathBuf,
    line: usize,
    message: String,
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

impl TidyFinding {
    pub(crate) fn new(path: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Self {
        TidyFinding { path: path.into(), line, message: message.into() }
    }
}

/// A Rust file.
pub(crate) struct SourceFile {
    /// Path relative to the root of the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The text with comments and the content of literals replaced by spaces, with unchanged byte offsets.
    pub(crate) code: String,
}

impl SourceFile {
    pub(crate) fn new(path: impl Into<PathBuf>, text: &str) -> Self {
        SourceFile { path: path.into(), text: text.to_owned(), code: blank_literals(text) }
    }

    /// Returns the raw content of each string that is no raw string, with its byte offset.
    pub(crate) fn strings(&self) -> Vec<(usize, &str)> {
        let mut strings = Vec::new();
        let mut at = 0;
        while at < self.text.len() {
            let rest = &self.text[at..];
            let length = literal(rest, &self.text[..at]);
            if rest.starts_with('"') {
                strings.push((at, &rest[1..length.max(2) - 1]));
            }
            at += length.max(rest.chars().next().map_or(1, char::len_utf8));
        }
        strings
    }

    /// Returns the code before the tests at the end of the file.
    pub(crate) fn code_without_tests(&self) -> &str {
        let tests = self.code.find("\n#[cfg(test)]\nmod ");
        tests.map_or(&self.code, |at| &self.code[..=at])
    }

    /// Returns a finding at a byte offset of the file.
    pub(crate) fn finding(&self, at: usize, message: impl Into<String>) -> TidyFinding {
        let line = self.code[..at].matches('\n').count() + 1;
        TidyFinding { path: self.path.clone(), line, message: message.into() }
    }

    pub(crate) fn is_below(&self, dir: &str) -> bool {
        self.path.starts_with(dir)
    }

    /// Returns the directory of the file's package, and the file's path in it.
    pub(crate) fn package_path(&self) -> (&Path, &Path) {
        let path = &self.path;
        let parts = match path.iter().next().and_then(|first| first.to_str()) {
            Some("crates") => 2,
            Some("fuzz") => 1,
            Some("tests") if path.starts_with("tests/system") => 2,
            _ => 0,
        };
        let package = path.ancestors().nth(path.iter().count() - parts);
        let package = package.expect("a path has so many parts");
        (package, path.strip_prefix(package).expect("it is below its package"))
    }

    /// Returns whether the file is part of a library for other packages.
    pub(crate) fn is_library(&self) -> bool {
        let (package, path) = self.package_path();
        path.starts_with("src")
            && !path.starts_with("src/bin")
            && package != Path::new("crates/testsupport")
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|n| n == name)
    }
}

/// Reads the Rust files below some directories of the repository, sorted by path.
pub(crate) fn read(dirs: &[&str]) -> Vec<SourceFile> {
    let root = &program::repository("");
    let mut paths: Vec<_> = dirs.iter().map(|dir| root.join(dir)).collect();
    let mut sources = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            paths.extend(entries.filter(|path| !path.ends_with("target")));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            // Generated code is not checked here, but compared with its source by `proto`.
            if text.starts_with("// This file is @generated") {
                continue;
            }
            sources.push(SourceFile::new(path.strip_prefix(root).unwrap(), &text));
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Replaces comments and the content of literals by spaces.
fn blank_literals(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = literal(rest, &out);
        if length == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.extend(rest[..length].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    out
}

/// Returns the length of the comment or literal at the start of a text, or 0.
fn literal(rest: &str, before: &str) -> usize {
    match rest.chars().next() {
        Some('/') if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
        Some('/') if rest.starts_with("/*") => block_comment(rest),
        Some('"') => string(rest),
        Some('r') if raw_hashes(rest).is_some() && !ends_in_word(before) => raw_string_length(rest),
        Some('\'') => character(rest),
        _ => 0,
    }
}

fn ends_in_word(text: &str) -> bool {
    // `b` and `c` are prefixes of raw strings.
    let text = text.strip_suffix(['b', 'c']).unwrap_or(text);
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    for (at, _) in text.char_indices() {
        if text[at..].starts_with("/*") {
            depth += 1;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            if depth == 0 {
                return at + 2;
            }
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the number of `#` at the start of a raw string.
fn raw_hashes(text: &str) -> Option<usize> {
    let hashes = text[1..].find(|c| c != '#')?;
    text[1 + hashes..].starts_with('"').then_some(hashes)
}

fn raw_string_length(text: &str) -> usize {
    let hashes = raw_hashes(text).unwrap_or(0);
    let end = format!("\"{}", "#".repeat(hashes));
    let content = hashes + 2;
    text[content..].find(&end).map_or(text.len(), |at| content + at + end.len())
}

/// Returns the length of a character literal, or 0 for a lifetime.
fn character(text: &str) -> usize {
    let inner: Vec<_> = text.char_indices().skip(1).take(12).collect();
    match inner.as_slice() {
        [(_, '\\'), _, rest @ ..] => {
            rest.iter().find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
        }
        [_, (at, '\''), ..] => at + 1,
        _ => 0,
    }
}

#[test]
fn comments_and_literals_are_not_code() {
    let blanked = |text| blank_literals(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(blanked("a // dbg!\nb /* x /* y */ z */ c"), "a b c");
    assert_eq!(blanked(r#"f("todo!\"", 'a', '\'', '"', "x") g"#), "f( , , , , ) g");
    assert_eq!(
        blanked("f(r#\"dbg!\"#, br\"x\", r\"\\\") for r in &'a b"),
        "f( , b , ) for r in &'a b"
    );
    assert_eq!(blank_literals("\"a\nb\" c").lines().nth(1), Some("   c"));
}

#[test]
fn trailing_tests_are_excluded() {
    let source =
        SourceFile::new("src/a.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    b();\n}\n");
    assert_eq!(source.code_without_tests(), "fn a() {}\n\n");
}
