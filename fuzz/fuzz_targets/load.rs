//! The way from the text of a hook file and of a configuration to a new configuration.
//!
//! The input is a hook file, a NUL byte, and a configuration.

#![no_main]

use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::consumer::SchemaRule;
use oci_hooks::hooks::lint::{self, LintOptions};
use oci_hooks::hooks::migrate::{MigrateOptions, migrate};
use oci_hooks::hooks::{
    Config, Consumer, Definition, HookFile, HookSet, InjectOptions, PathCheck, SchemaOptions,
};

fuzz_target!(|input: &[u8]| {
    let split = input.iter().position(|&b| b == 0);
    let (hook, config) = split.map_or((input, &b"{}"[..]), |at| (&input[..at], &input[at + 1..]));
    let stages = vec!["precreate".to_owned()];
    let mut files = Vec::new();
    for schema in [SchemaRule::Go, SchemaRule::Strict] {
        let options = SchemaOptions { extension_stages: &stages, path_check: PathCheck::Skip, schema };
        if let Ok(definition) = Definition::parse(hook, options) {
            files.push(HookFile::new(PathBuf::from(format!("{}.json", files.len())), definition));
        }
    }
    lint::lint_text(Path::new("a.json"), hook, &LintOptions::default());
    let _ = migrate("a.json".as_ref(), hook, MigrateOptions::default());

    let hooks: HookSet = files.into_iter().collect();
    let Ok(config) = Config::parse(config) else { return };
    for consumer in Consumer::ALL {
        let Ok(target) = config.target(consumer.bind_mounts) else { return };
        let Ok(selection) = hooks.select(&target, &consumer) else { continue };
        let Ok(injected) = config.inject(&selection, InjectOptions { once: true }) else { continue };
        let again = Config::parse(&injected).expect("what is injected is JSON");
        assert_eq!(again.target(consumer.bind_mounts).expect("the rest is as it was"), target);
        let twice = again.inject(&selection, InjectOptions { once: true }).expect("it was possible once");
        assert_eq!(twice, injected, "injecting once more changes nothing");
    }
});
