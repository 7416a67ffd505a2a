//! Man pages name no paths of the repository, which their readers do not have.

use std::fs;
use std::path::Path;

/// Returns words of a page that are paths in the repository, which readers of the page do not have.
fn repository_paths(page: &str) -> Vec<String> {
    let page = page.replace("\\fI", "").replace("\\fB", "");
    let is_one = |word: &&str| {
        let word = word.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '/');
        ["docs/", "src/", "tests/", "contrib/"].iter().any(|dir| word.starts_with(dir))
    };
    page.split_whitespace().filter(is_one).map(str::to_owned).collect()
}

#[test]
fn pages_name_no_paths_of_the_repository() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<_> = entries.filter(|path| path.is_file()).collect();
    assert!(pages.len() > 40, "{pages:?}");
    for path in pages {
        let found = repository_paths(&fs::read_to_string(&path).unwrap());
        assert_eq!(found, [""; 0], "{}", path.display());
    }
}

#[test]
fn paths_in_the_repository_are_found() {
    let page = "see docs/steps.md, \\fIsrc/lib.rs\\fR (contrib/dist)\n.UR https://example.com/docs/steps.md\n\
                /usr/share/doc/step-runner/steps.md and /usr/share/doc/oci-hooks/docs/hooks.md";
    assert_eq!(repository_paths(page), ["docs/steps.md,", "src/lib.rs\\fR", "(contrib/dist)"]);
}
