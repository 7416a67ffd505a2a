//! Links between pages, and from pages to files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use oci_hooks_testsupport::program;

use crate::docs::page::DocsPage;

/// Returns the broken links.
pub(crate) fn check(names: &[String]) -> Vec<String> {
    let mut pages = BTreeMap::new();
    let mut findings = Vec::new();
    for name in names {
        for (line, link) in
            read(name, &mut pages).map(|page| page.links.clone()).unwrap_or_default()
        {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let beside = Path::new(name).parent().unwrap_or(Path::new("")).join(path);
            let target =
                if path.is_empty() { PathBuf::from(name) } else { normalize_path(&beside) };
            let target = target.to_str().expect("names are text");
            if !program::repository(target).exists() {
                findings.push(format!("{name}:{line}: no file {target}"));
            } else if !anchor.is_empty() && target.ends_with(".md") {
                let has_anchor = read(target, &mut pages).is_some_and(|page| {
                    page.headings.iter().any(|heading| heading.anchor == anchor)
                });
                if !has_anchor {
                    findings.push(format!("{name}:{line}: {target} has no heading #{anchor}"));
                }
            }
        }
    }
    findings
}

fn read<'a>(name: &str, pages: &'a mut BTreeMap<String, DocsPage>) -> Option<&'a DocsPage> {
    if !pages.contains_key(name) {
        let text = fs::read_to_string(program::repository(name)).ok()?;
        pages.insert(name.to_owned(), DocsPage::parse(&text));
    }
    pages.get(name)
}

/// Removes `.` and `..` from a path.
fn normalize_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}
