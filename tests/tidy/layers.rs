//! Dependencies point down.

use crate::source::{Finding, Source};

/// The modules of the library, lowest layer first. A module names only modules of layers below its own.
const LAYERS: [&[&str]; 5] = [
    &["sys", "yaml"],
    &["hooks", "image", "runtime", "network"],
    &["bundle", "rootfs"],
    &["container"],
    // Each speaks one protocol; none names another.
    &["container_hook", "garm", "step_runner"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Checks which of the library's modules each of them names.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if !source.is_library() || source.path.ends_with("lib.rs") {
        return Vec::new();
    }
    let mut parts = source.path.iter().skip(1).map(|part| part.to_str().unwrap());
    let module = parts.next().unwrap().trim_end_matches(".rs");
    let Some(own) = layer(module) else {
        return vec![source.finding(0, format!("give `{module}` a place in tests/tidy/layers.rs"))];
    };
    // From a module's first file, `super` is the crate.
    let is_first = matches!(parts.next(), None | Some("mod.rs"));
    let roots: &[_] = if is_first { &["crate::", "super::"] } else { &["crate::"] };

    // Tests may use whatever they need.
    let code = source.code_without_tests();
    let mut findings = Vec::new();
    for (at, root) in roots.iter().flat_map(|root| code.match_indices(root)) {
        for name in first_names(&code[at + root.len()..]) {
            if name != module && layer(name).is_some_and(|layer| layer >= own) {
                findings.push(source.finding(at, format!("`{module}` must not name `{name}`")));
            }
        }
    }
    findings
}

/// Returns the first segment of the path, or of each path in the list, that a text starts with.
fn first_names(text: &str) -> Vec<&str> {
    let Some(list) = text.strip_prefix('{') else {
        return vec![word(text)];
    };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut is_start = true;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            c if is_start && !c.is_whitespace() => {
                names.push(word(&list[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn up_and_sideways_is_found_with_file_and_line() {
        for (path, text, expected) in [
            (
                "src/sys/fs.rs",
                "fn a() {}\nuse crate::hooks::Hook;",
                "2: `sys` must not name `hooks`",
            ),
            (
                "src/hooks/load.rs",
                "use crate::runtime::find;",
                "1: `hooks` must not name `runtime`",
            ),
            (
                "src/runtime/log.rs",
                "use crate::{\n    sys::{a, b},\n    hooks,\n};",
                "1: `runtime` must not name `hooks`",
            ),
            ("src/sys/mod.rs", "use super::runtime;", "1: `sys` must not name `runtime`"),
            ("src/images/mod.rs", "", "1: give `images` a place in tests/tidy/layers.rs"),
        ] {
            assert_eq!(found(path, text), [format!("{path}:{expected}")]);
        }
    }

    #[test]
    fn down_and_within_is_fine() {
        for (path, text) in [
            (
                "src/hooks/load.rs",
                "use crate::{sys::fs, hooks::{runtime, json}};\nuse super::runtime;",
            ),
            ("src/sys/fs.rs", "//! See [`crate::hooks`].\n"),
            ("src/sys/fs.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::hooks;\n}"),
            ("src/lib.rs", "pub use crate::hooks;"),
            ("src/bin/a/main.rs", "use crate::hooks;"),
        ] {
            assert_eq!(found(path, text), <[String; 0]>::default(), "{path}: {text}");
        }
    }
}
