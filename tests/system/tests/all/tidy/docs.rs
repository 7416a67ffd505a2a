//! Documentation: items have it, and it says more than their names.
//!
//! Rust's `missing_docs` also requires it for fields and variants, where most of it would only repeat the name.

use crate::tidy::source::{SourceFile, TidyFinding};

/// A block with at most this many words usually repeats the name of its item.
const SHORT_WORDS: usize = 4;

/// Permitted percentage of short blocks.
const MAX_SHORT_PERCENT: usize = 5;

/// Start of public items that must have documentation.
const ITEMS: [&str; 8] =
    ["fn ", "const fn ", "async ", "unsafe ", "struct ", "enum ", "trait ", "type "];

/// Finds public items of libraries without documentation.
pub(crate) fn check(source: &SourceFile) -> Vec<TidyFinding> {
    if !source.is_library() {
        return Vec::new();
    }
    let code = source.code_without_tests();
    let mut at = 0;
    let mut findings = Vec::new();
    let mut is_documented = false;
    // Nesting depth of open brackets of an attribute.
    let mut depth = 0;
    for line in code.split_inclusive('\n') {
        let text = source.text[at..at + line.len()].trim_start();
        let item = line.trim_start();
        if depth > 0 || item.starts_with("#[") {
            depth += item.matches('[').count();
            depth = depth.saturating_sub(item.matches(']').count());
            is_documented |= text.starts_with("#[doc");
        } else if text.starts_with("///") {
            is_documented = true;
        } else {
            let name = item.strip_prefix("pub ").unwrap_or_default();
            if ITEMS.iter().any(|start| name.starts_with(start)) && !is_documented {
                findings.push(source.finding(at, "a public item needs documentation"));
            }
            is_documented = false;
        }
        at += line.len();
    }
    findings
}

/// Finds short blocks, if there are too many. Programs are excluded, because their documentation is their help.
pub(crate) fn check_lengths<'a>(sources: impl Iterator<Item = &'a SourceFile>) -> Vec<TidyFinding> {
    let (mut count, mut short) = (0, Vec::new());
    for source in sources.filter(|source| source.is_library()) {
        let mut lines = source.text.lines().enumerate().peekable();
        while let Some((at, line)) = lines.next() {
            let Some(first) = documentation(line) else { continue };
            let mut words = first.split_whitespace().count();
            while let Some(more) = lines.peek().and_then(|(_, line)| documentation(line)) {
                words += more.split_whitespace().count();
                lines.next();
            }
            count += 1;
            if words <= SHORT_WORDS {
                short.push(TidyFinding::new(
                    &source.path,
                    at + 1,
                    format!("repeats a name: {first}"),
                ));
            }
        }
    }
    if short.len() * 100 <= count * MAX_SHORT_PERCENT { Vec::new() } else { short }
}

fn documentation(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("///").filter(|text| !text.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_without_documentation_are_found_and_fields_are_not() {
        let good = "/// A.\n#[error(\n    \"x\"\n)]\n#[a]\npub struct A {\n    pub b: u8,\n}\n\
                    impl A {\n    /// B.\n    #[must_use]\n    pub fn b() {}\n    pub(crate) fn c() {}\n}\n\
                    pub mod d;\npub use d::E;\n#[cfg(test)]\nmod tests {\n    pub fn f() {}\n}\n";
        assert_eq!(check(&SourceFile::new("src/a.rs", good)), []);
        for bad in
            ["pub fn a() {}", "pub struct A;", "    pub const fn a() {}", "#[a]\npub enum B {}"]
        {
            assert_eq!(
                check(&SourceFile::new("src/a.rs", &format!("/// A.\nfn x() {{}}\n{bad}\n"))).len(),
                1,
                "{bad}"
            );
            assert_eq!(check(&SourceFile::new("src/bin/a.rs", bad)), []);
        }
    }

    #[test]
    fn short_blocks_are_found_if_they_are_many() {
        let long = "/// Returns something that is worth a line.\nfn a() {}\n".repeat(19);
        let one = SourceFile::new("src/a.rs", &format!("{long}/// Why.\nsource: E,\n"));
        assert_eq!(check_lengths([&one].into_iter()), []);
        let two = SourceFile::new(
            "src/a.rs",
            &format!("{long}/// Why.\nsource: E,\n/// The path.\npath: P,\n"),
        );
        assert_eq!(check_lengths([&two].into_iter()).len(), 2);
    }
}
