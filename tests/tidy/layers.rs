//! Dependencies point down.

use crate::source::{Finding, Source};

/// The modules of the library, lowest layer first. A module names only modules of layers below its own.
const LAYERS: [&[&str]; 6] = [
    &["http", "json", "sys", "yaml"],
    &["hooks", "host", "image", "runtime", "network"],
    &["bundle", "rootfs"],
    &["container"],
    // Each speaks one protocol; none names another.
    &["container_hook", "garm", "nri", "step_runner"],
    // What the programs share.
    &["program"],
];

/// What no file of `container_hook` names outside of its room `engine`: other backends use them too.
const ENGINE_ONLY: [&str; 4] = ["bundle", "container", "rootfs", "runtime"];

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
    // Tests may use whatever they need.
    let code = source.code_without_tests();
    let mut findings = shared_by_backends(source, code);
    for (at, path) in paths(code) {
        for name in names_in_the_crate(path, depth(source)) {
            if name != module && layer(name).is_some_and(|layer| layer >= own) {
                findings.push(source.finding(at, format!("`{module}` must not name `{name}`")));
            }
        }
    }
    findings
}

/// Finds what only the engine's room of `container_hook` may name in the files that it shares.
fn shared_by_backends(source: &Source, code: &str) -> Vec<Finding> {
    let is_shared =
        source.is_below("src/container_hook") && !source.is_below("src/container_hook/engine");
    // It has steps of the same first process.
    let is_cluster = source.is_below("src/container_hook/kubernetes");
    let mut findings = Vec::new();
    for (at, path) in paths(code).into_iter().filter(|_| is_shared) {
        for name in names_in_the_crate(path, depth(source)) {
            if ENGINE_ONLY.contains(&name) && !(is_cluster && name == "container") {
                let message = format!("only `container_hook::engine` may name `{name}`");
                findings.push(source.finding(at, message));
            }
        }
        let in_room = match path.strip_prefix("crate::") {
            Some(path) => path.strip_prefix("container_hook::").map(|path| (path, 0)),
            None => Some((path, depth(source) - 1)),
        };
        let names = in_room.map(|(path, depth)| names_in_the_crate(path, depth));
        if names.is_some_and(|names| names.contains(&"engine")) {
            findings.push(source.finding(at, "what backends share must not name `engine`"));
        }
    }
    findings
}

/// Returns how many modules below the crate's root the module of a file is.
fn depth(source: &Source) -> usize {
    let names = source.path.iter().count() - 1;
    if source.is_named("mod.rs") { names - 1 } else { names }
}

/// Returns where the paths are that begin with a word for a module, and the text from there on.
fn paths(code: &str) -> Vec<(usize, &str)> {
    let mut paths: Vec<_> = ["crate::", "super::", "self::"]
        .iter()
        .flat_map(|start| code.match_indices(start))
        .filter(|(at, _)| {
            let before = &code[..*at];
            !before.ends_with("::") && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        })
        .map(|(at, _)| (at, &code[at..]))
        .collect();
    paths.sort_unstable();
    paths
}

/// Returns the modules at the crate's root that a path names, or each path in the list that it is, from a
/// module so deep below the root.
fn names_in_the_crate(path: &str, depth: usize) -> Vec<&str> {
    if let Some(rest) = path.strip_prefix("self::") {
        return names_in_the_crate(rest, depth);
    }
    if let Some(rest) = path.strip_prefix("crate::") {
        return names_in_the_crate(rest, 0);
    }
    if let Some(rest) = path.strip_prefix("super::") {
        return names_in_the_crate(rest, depth.saturating_sub(1));
    }
    match path.strip_prefix('{') {
        Some(list) => {
            items(list).into_iter().flat_map(|item| names_in_the_crate(item, depth)).collect()
        }
        None if depth == 0 => vec![word(path)],
        None => Vec::new(),
    }
}

/// Returns the text from each item of a list on.
fn items(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut depth = 0;
    let mut is_start = true;
    for (at, c) in list.char_indices() {
        if is_start && !c.is_whitespace() && c != '}' {
            items.push(&list[at..]);
            is_start = false;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ => {}
        }
    }
    items
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
            ("src/sys.rs", "use self::super::runtime;", "1: `sys` must not name `runtime`"),
            (
                "src/hooks/lint/rules/text.rs",
                "use super::super::super::super::{runtime::find};",
                "1: `hooks` must not name `runtime`",
            ),
            (
                "src/hooks/lint/mod.rs",
                "fn a() { super::super::network::b() }",
                "1: `hooks` must not name `network`",
            ),
            (
                "src/sys/fs.rs",
                "use super::{beneath, super::hooks::Hook};",
                "1: `sys` must not name `hooks`",
            ),
            ("src/garm/a.rs", "use crate::program::b;", "1: `garm` must not name `program`"),
            (
                "src/container_hook/plan/role.rs",
                "use crate::container::Role;",
                "1: only `container_hook::engine` may name `container`",
            ),
            (
                "src/container_hook/plan/role.rs",
                "use super::super::{engine::EngineBackend, words};",
                "1: what backends share must not name `engine`",
            ),
            (
                "src/container_hook/settings.rs",
                "use crate::container_hook::engine::BuildOptions;",
                "1: what backends share must not name `engine`",
            ),
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
            ("src/hooks/lint/rules/text.rs", "use super::super::{runtime, self::network};"),
            ("src/hooks/lint/mod.rs", "use self::runtime::a; use super::network::super_::b;"),
            ("src/sys/fs.rs", "//! See [`crate::hooks`].\n"),
            ("src/sys/fs.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::hooks;\n}"),
            ("src/lib.rs", "pub use crate::hooks;"),
            (
                "src/container_hook/engine/plan.rs",
                "use crate::{bundle, container};\nuse super::pod;\nuse super::super::engine;",
            ),
            ("src/container_hook/plan/role.rs", "use super::request::a; use crate::image::b;"),
            ("src/bin/a/main.rs", "use crate::hooks;"),
        ] {
            assert_eq!(found(path, text), <[String; 0]>::default(), "{path}: {text}");
        }
    }
}
