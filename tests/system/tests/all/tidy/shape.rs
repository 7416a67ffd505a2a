//! The shape of files: their length, the content of `mod.rs`, and the places of features.

use std::path::Path;

use crate::tidy::source::{SourceFile, TidyFinding};

/// Longer files are to be split by topic.
const MAX_LINES: usize = 600;

/// Checks the shape of a file.
pub(crate) fn check(source: &SourceFile) -> Vec<TidyFinding> {
    let mut findings = features(source);
    let lines = source.code_without_tests().lines().count();
    if lines > MAX_LINES {
        let message = format!("{lines} lines without its tests, more than {MAX_LINES}: split it");
        findings.push(source.finding(0, message));
    }
    if source.package_path().1.starts_with("src") && source.is_named("mod.rs") {
        findings.extend(logic(source));
    }
    findings
}

/// Finds items in `mod.rs` other than documentation, `mod` and `use`.
fn logic(source: &SourceFile) -> Option<TidyFinding> {
    let mut at = 0;
    loop {
        at += source.code[at..].find(|c: char| !c.is_whitespace())?;
        let item = &source.code[at..];
        let end = if item.starts_with('#') { item.find("]\n") } else { item.find(';') };
        let declaration = item.strip_prefix("pub").map_or(item, |public| {
            let public = public.strip_prefix('(').and_then(|p| Some(p.split_once(')')?.1));
            public.unwrap_or(&item[3..]).trim_start()
        });
        let known = ["#", "mod ", "use "].iter().any(|start| declaration.starts_with(start));
        match end {
            Some(end) if known && !is_inline_module(&item[..end]) => at += end + 1,
            _ => {
                return Some(
                    source.finding(at, "mod.rs holds documentation, `mod` and `use` alone"),
                );
            }
        }
    }
}

fn is_inline_module(item: &str) -> bool {
    item.contains("mod ") && item.contains('{')
}

/// Files that may name features.
const LISTS: [&str; 5] = [
    "src/lib.rs",
    "src/hooks/mod.rs",
    "crates/container-hook-job/src/lib.rs",
    "crates/container-hook/src/bin/container-hook/main.rs",
    "crates/testsupport/src/lib.rs",
];

/// Finds features named elsewhere than on the modules and re-exports of [`LISTS`].
fn features(source: &SourceFile) -> Vec<TidyFinding> {
    let is_list = LISTS.iter().any(|list| source.path == Path::new(list));
    let named = source.code.match_indices("feature =").chain(source.code.match_indices("feature="));
    named
        .filter(|(at, _)| {
            let before = &source.code[..*at];
            let attribute = before.rfind('\n').map_or(0, |line| line + 1);
            let next = source.code[*at..].split_once('\n').map_or("", |(_, next)| next);
            let is_declared = ["mod ", "pub mod ", "pub(crate) mod ", "pub use "]
                .iter()
                .any(|d| next.starts_with(d));
            // `target_feature` is a property of the compilation target, not a Cargo feature.
            let is_target = before.ends_with("target_");
            // Lint settings for code that a program does not use without a feature.
            let is_of_program = before.trim_end().ends_with("#![cfg_attr(\n    not(");
            // The only feature of this program adds a backend, which is an enum variant.
            let is_backend =
                source.path.to_string_lossy().contains("crates/container-hook/src/bin/");
            let is_on_declared = before[attribute..].starts_with("#[cfg(") && is_declared;
            !(is_target || is_backend || is_list && (is_on_declared || is_of_program))
        })
        .map(|(at, _)| {
            source.finding(
                at,
                format!("features stand on `mod` and `pub use` in {}", LISTS.join(", ")),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_faults(path: &str, text: &str) -> Vec<String> {
        check(&SourceFile::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn long_files_are_found_without_counting_tests() {
        let code = |lines| "fn a() {}\n".repeat(lines);
        assert_eq!(find_faults("src/a.rs", &code(600)), <[String; 0]>::default());
        assert_eq!(find_faults("src/a.rs", &code(601)).len(), 1);
        let with_tests = format!("{}\n#[cfg(test)]\nmod tests {{\n{}}}\n", code(500), code(300));
        assert_eq!(find_faults("src/a.rs", &with_tests), <[String; 0]>::default());
    }

    #[test]
    fn logic_in_mod_rs_is_found() {
        let good = "//! A.\n\nmod a;\n#[cfg(test)]\nmod tests;\n\npub(super) use a::{\n    B,\n    C,\n};\npub use d::E;\n";
        assert_eq!(find_faults("src/x/mod.rs", good), <[String; 0]>::default());
        for bad in
            ["fn b() {}", "pub struct B;", "mod b { fn c() {} }", "const A: u8 = 1;", "pub fn a();"]
        {
            let findings = find_faults("src/x/mod.rs", &format!("{good}{bad}\n"));
            assert_eq!(findings.len(), 1, "{bad}");
            assert!(findings[0].starts_with("src/x/mod.rs:12: "), "{findings:?}");
            assert_eq!(find_faults("src/x.rs", bad), <[String; 0]>::default());
        }
    }

    #[test]
    fn misplaced_features_are_found() {
        let good =
            "#[cfg(feature = \"cli\")]\npub mod a;\n#[cfg(feature = \"cli\")]\npub use a::B;\n";
        assert_eq!(find_faults("src/lib.rs", good), <[String; 0]>::default());
        assert_eq!(find_faults("src/hooks/load.rs", good).len(), 2);
        assert_eq!(find_faults("src/lib.rs", "#[cfg(feature = \"cli\")]\nfn a() {}\n").len(), 1);
        assert_eq!(
            find_faults("src/lib.rs", "fn a() { if cfg!(feature = \"cli\") {} }\n").len(),
            1
        );
    }
}
