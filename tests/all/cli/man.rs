//! `oci-hooks man`.

use std::fs;

use crate::cli::env::HookEnv;

#[test]
fn man_pages_of_the_program_and_its_commands_are_written() {
    let env = HookEnv::new();
    let directory = env.path("share/man");
    assert_eq!(env.run(&["man", directory.to_str().unwrap()]).code, Some(0));
    let names = |section: &str| {
        let entries = fs::read_dir(directory.join(section)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names("man5"), ["oci-hooks-json.5"]);
    let pages = names("man1");
    let help = env.run(&["--help"]).stdout;
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let commands: Vec<_> = commands
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !matches!(*name, "" | "help"))
        .collect();
    assert!(commands.contains(&"explain"));
    assert_eq!(pages.len(), 1 + commands.len(), "{pages:?}");
    for command in commands {
        assert!(pages.contains(&format!("oci-hooks-{command}.1")), "{command}");
    }
    let page = fs::read_to_string(directory.join("man1/oci-hooks-explain.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS\n\\fBoci\\-hooks explain\\fR"), "{page}");
}

#[test]
fn man_page_lists_the_classes_of_errors() {
    let source = include_str!("../../../src/bin/oci-hooks/error.rs");
    let page = include_str!("../../../man/oci-hooks.1");
    let classes = source.split("simple(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let classes: Vec<_> = classes.collect();
    assert!(classes.contains(&"no-container"), "{classes:?}");
    for class in classes {
        let word = class.replace('-', "\\-");
        let is_entry = |line: &str| line == format!(".B {word}") || line == format!(".BR {word} ,");
        assert!(page.lines().any(is_entry), "{class}");
    }
}

#[test]
fn directory_that_cannot_be_created_is_an_error() {
    let env = HookEnv::new();
    env.write("file", "");
    let ran = env.run(&["man", env.path("file").to_str().unwrap()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("{ROOT}/file/man1: cannot create"), "{}", ran.stderr);
}
