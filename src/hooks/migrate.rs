//! Migration of hook files from schema 0.1.0 to equivalent files of schema 1.0.0.
//!
//! In a 0.1.0 file one condition is enough, in a 1.0.0 file all must hold. A 0.1.0 file with
//! several conditions therefore becomes several files, one for each. The hook applies to the same
//! containers, but a container that meets two conditions gets the hook twice: 1.0.0 cannot express
//! "this and not that", so no set of files avoids it. [`MigrationNote::RunsTwice`] reports where
//! this can happen.
//!
//! In one common case a second file is not needed: a command pattern that matches every program,
//! such as `.*`, makes the other conditions redundant, and they are omitted.
//!
//! The remaining differences concern containers that no engine creates, those without `process.args`:
//!
//! - With an empty `process.args`, 0.1.0 evaluates commands only if no other condition holds. The
//!   file for the commands always evaluates them, so the configuration is rejected.
//! - Without `process`, a 1.0.0 file whose other conditions were omitted because of `.*` never
//!   applies; the 0.1.0 file applies if one of these conditions holds.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::schema::KEYS_0_1_0;
use super::{
    DraftConditions, HookDefinition, HookDraft, HookError, HookFault, HookStage, OciStage,
    ParseOptions, PathCheck, Pattern, SchemaVersion,
};
use crate::json::{JsonDocument, TextLocation, folds_to};

/// Options of a migration to schema 1.0.0.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MigrateOptions<'a> {
    /// Stages that the consumer runs itself.
    pub extension_stages: &'a [String],
    /// Treatment of the deprecated stage `prestart`.
    pub prestart: PrestartMigration,
}

/// Treatment of stage `prestart`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrestartMigration {
    /// Kept: each consumer treats it as before.
    #[default]
    Keep,
    /// Replaced by `createRuntime`, as podman 5 and CRI-O do on injection.
    CreateRuntime,
}

/// The result of a migration: the files to write and notes about them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Migration {
    /// Files to write. The first one has the old name.
    ///
    /// The others are called `NAME.1.json`, `NAME.2.json`: in the order of injection, hardly any
    /// name sorts between them and `NAME.json`, unlike with `NAME-1.json`.
    pub files: Vec<MigratedFile>,
    pub remarks: Vec<MigrationNote>,
}

/// A 1.0.0 hook file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigratedFile {
    pub name: OsString,
    pub text: String,
}

/// Something that the user should know about the new files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrationNote {
    /// The old file has no condition that can hold, so its hook never applies. The new file has no
    /// condition either.
    NeverApplies,
    /// A container that meets several conditions gets the hook once for each instead of once.
    RunsTwice {
        /// The conditions, in the order of the files.
        conditions: Vec<ConditionKind>,
    },
    /// Conditions were omitted because the commands match every program.
    Implied { conditions: Vec<ConditionKind> },
    /// A later directory's file that masked the old file masks only the first new file; each other
    /// new file needs a mask, too.
    HideTogether,
    /// A key that consumers ignore was omitted.
    UnknownKey { key: String, location: TextLocation },
}

/// A condition of schema 0.1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionKind {
    BindMounts,
    Annotations,
    Commands,
}

impl MigrationNote {
    /// Returns a stable name of the kind of note, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            MigrationNote::NeverApplies => "never-applies",
            MigrationNote::RunsTwice { .. } => "runs-twice",
            MigrationNote::Implied { .. } => "implied-conditions",
            MigrationNote::HideTogether => "hide-together",
            MigrationNote::UnknownKey { .. } => "unknown-key",
        }
    }
}

impl fmt::Display for MigrationNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MigrationNote::NeverApplies => {
                f.write_str("the hook has no condition and never applies")
            }
            MigrationNote::RunsTwice { conditions } => write!(
                f,
                "in 0.1.0, any of {} was enough; 1.0.0 needs a file for each, and a container that meets \
                 several now gets the hook several times",
                names(conditions)
            ),
            MigrationNote::Implied { conditions } => write!(
                f,
                "the commands match every program, so these conditions have no effect and are left out: {}",
                names(conditions)
            ),
            MigrationNote::HideTogether => f.write_str(
                "in a later directory, a file of the old name hides only the first new file; to hide the \
                 others too, add files with their names",
            ),
            MigrationNote::UnknownKey { key, .. } => {
                write!(f, "unknown key {key:?}, which is left out of the new file")
            }
        }
    }
}

fn names(conditions: &[ConditionKind]) -> String {
    conditions.iter().map(|condition| condition.name()).collect::<Vec<_>>().join(" and ")
}

impl ConditionKind {
    /// Returns the key of the condition in schema 1.0.0.
    pub fn name(self) -> &'static str {
        match self {
            ConditionKind::BindMounts => "hasBindMounts",
            ConditionKind::Annotations => "annotations",
            ConditionKind::Commands => "commands",
        }
    }
}

/// Migrates the text of a 0.1.0 file; returns `None` for a 1.0.0 file.
///
/// The hook's program need not exist.
///
/// ```
/// use oci_hooks::hooks::migrate::{MigrateOptions, migrate};
///
/// let old = br#"{"hook": "/bin/true", "stage": ["prestart"], "cmd": ["/init$"]}"#;
/// let migration = migrate("init.json".as_ref(), old, MigrateOptions::default()).unwrap().unwrap();
/// assert_eq!(migration.files.len(), 1);
/// assert!(migration.files[0].text.contains(r#""version": "1.0.0""#));
/// ```
pub fn migrate(
    name: &OsStr,
    text: &[u8],
    options: MigrateOptions<'_>,
) -> Result<Option<Migration>, HookFault> {
    let document = JsonDocument::parse(text).map_err(|error| HookFault {
        location: Some(TextLocation::of_span(text, error.offset..error.offset + 1)),
        error: HookError::Syntax(error),
    })?;
    let schema = ParseOptions {
        extension_stages: options.extension_stages,
        path_check: PathCheck::Skip,
        ..ParseOptions::default()
    };
    let definition = HookDefinition::from_document(&document, schema)?;
    if definition.version == SchemaVersion::V1_0_0 {
        return Ok(None);
    }
    let mut remarks: Vec<_> = unknown_keys(&document).collect();
    let whens = conditions(&definition, &mut remarks);
    let stages: Vec<_> =
        definition.stages.iter().map(|stage| stage_name(stage, options.prestart)).collect();
    let files = whens
        .into_iter()
        .enumerate()
        .map(|(index, when)| {
            let draft = HookDraft { hook: definition.hook.clone(), when, stages: stages.clone() };
            MigratedFile { name: numbered_name(name, index), text: draft.to_text() }
        })
        .collect();
    Ok(Some(Migration { files, remarks }))
}

/// Returns the conditions of each file to write, and adds notes to `remarks`.
fn conditions(
    definition: &HookDefinition,
    remarks: &mut Vec<MigrationNote>,
) -> Vec<DraftConditions> {
    let when = &definition.when;
    let mut found = Vec::new();
    // A `false` never holds, but does not prevent other conditions from holding.
    if when.has_bind_mounts == Some(true) {
        found.push(ConditionKind::BindMounts);
    }
    if !when.annotations.is_empty() {
        found.push(ConditionKind::Annotations);
    }
    if !when.commands.is_empty() {
        found.push(ConditionKind::Commands);
    }
    if found.len() > 1 && when.commands.iter().any(matches_everything) {
        found.pop();
        remarks.push(MigrationNote::Implied { conditions: found });
        found = vec![ConditionKind::Commands];
    }
    match found.len() {
        0 => {
            remarks.push(MigrationNote::NeverApplies);
            return vec![DraftConditions::default()];
        }
        1 => {}
        _ => {
            remarks.push(MigrationNote::RunsTwice { conditions: found.clone() });
            remarks.push(MigrationNote::HideTogether);
        }
    }
    let draft = |condition| match condition {
        ConditionKind::BindMounts => {
            DraftConditions { has_bind_mounts: Some(true), ..DraftConditions::default() }
        }
        ConditionKind::Annotations => {
            let pairs = when.annotations.iter();
            let pairs = pairs.map(|p| (p.key.as_str().to_owned(), p.value.as_str().to_owned()));
            DraftConditions {
                annotations: pairs.collect::<BTreeMap<_, _>>(),
                ..DraftConditions::default()
            }
        }
        ConditionKind::Commands => {
            let commands = when.commands.iter().map(|pattern| pattern.as_str().to_owned());
            DraftConditions { commands: commands.collect(), ..DraftConditions::default() }
        }
    };
    found.into_iter().map(draft).collect()
}

/// Returns whether a pattern certainly matches every text.
///
/// A pattern that matches the empty text and has no assertions is found in any text. One `^` at the
/// start or one `$` at the end changes nothing; both together do.
fn matches_everything(pattern: &Pattern) -> bool {
    let text = pattern.as_str();
    let inner = text.strip_prefix('^').or_else(|| text.strip_suffix('$')).unwrap_or(text);
    !inner.contains(['^', '$', '\\'])
        && Pattern::new(inner).is_ok_and(|pattern| pattern.is_match(""))
}

fn stage_name(stage: &HookStage, prestart: PrestartMigration) -> String {
    match (stage, prestart) {
        (HookStage::Oci(OciStage::Prestart), PrestartMigration::CreateRuntime) => {
            OciStage::CreateRuntime.name().to_owned()
        }
        (stage, _) => stage.name().to_owned(),
    }
}

fn unknown_keys(document: &JsonDocument<'_>) -> impl Iterator<Item = MigrationNote> {
    let known = |key: &str| KEYS_0_1_0.iter().chain(&["version"]).any(|name| folds_to(key, name));
    document.root().members().filter_map(move |member| {
        let key = member.key.as_str()?;
        let location = member.key.location();
        (!known(&key)).then(|| MigrationNote::UnknownKey { key: key.into_owned(), location })
    })
}

/// Returns the name of the file at an index: `NAME.json`, `NAME.1.json`, `NAME.2.json`.
fn numbered_name(name: &OsStr, index: usize) -> OsString {
    if index == 0 {
        return name.to_owned();
    }
    let bytes = name.as_bytes();
    let stem = bytes.strip_suffix(b".json").unwrap_or(bytes);
    let mut numbered = OsStr::from_bytes(stem).to_owned();
    numbered.push(format!(".{index}.json"));
    numbered
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::hooks::consumer::{CRIO, PODMAN, PODMAN_4};
    use crate::hooks::{HookFile, HookSet, MatchTarget, TargetCommand};

    fn migrate_value(old: &Value) -> Migration {
        let text = old.to_string();
        migrate("h.json".as_ref(), text.as_bytes(), MigrateOptions::default()).unwrap().unwrap()
    }

    fn whens(migration: &Migration) -> Vec<Value> {
        let text = |file: &MigratedFile| serde_json::from_str::<Value>(&file.text).unwrap();
        migration.files.iter().map(|file| text(file)["when"].clone()).collect()
    }

    fn classes(migration: &Migration) -> Vec<&str> {
        migration.remarks.iter().map(MigrationNote::class).collect()
    }

    #[test]
    fn one_condition_makes_one_file() {
        let migration = migrate_value(&json!({
            "hook": "/bin/x", "arguments": ["a"], "stages": ["prestart", "poststop"],
            "cmds": ["/init$", "/systemd$"], "hasbindmounts": false,
        }));
        assert_eq!(
            migration.files[0].text,
            "{\n  \"version\": \"1.0.0\",\n  \"hook\": {\n    \"path\": \"/bin/x\",\n    \
             \"args\": [\n      \"/bin/x\",\n      \"a\"\n    ]\n  },\n  \"when\": {\n    \
             \"commands\": [\n      \"/init$\",\n      \"/systemd$\"\n    ]\n  },\n  \
             \"stages\": [\n    \"prestart\",\n    \"poststop\"\n  ]\n}\n"
        );
        assert_eq!(migration.files.len(), 1);
        assert_eq!(migration.files[0].name, "h.json");
        assert_eq!(migration.remarks, []);
    }

    #[test]
    fn any_of_several_conditions_makes_a_file_for_each() {
        let migration = migrate_value(&json!({
            "hook": "/bin/x", "stage": [], "hasbindmounts": true, "annotation": ["(?i)a", "b"],
            "cmd": ["^/bin/sh$"],
        }));
        assert_eq!(
            whens(&migration),
            [
                json!({"hasBindMounts": true}),
                json!({"annotations": {".*": "(?i)a|b"}}),
                json!({"commands": ["^/bin/sh$"]}),
            ]
        );
        let names: Vec<_> =
            migration.files.iter().map(|file| file.name.to_str().unwrap()).collect();
        assert_eq!(names, ["h.json", "h.1.json", "h.2.json"]);
        assert_eq!(classes(&migration), ["runs-twice", "hide-together"]);
    }

    #[test]
    fn condition_that_always_matches_makes_the_others_redundant() {
        for pattern in ["", ".*", "^", "^.*", ".*$", "a|", "()", "(?i)x*"] {
            let migration = migrate_value(&json!({
                "hook": "/bin/x", "stage": [], "hasbindmounts": true, "cmd": ["never", pattern],
            }));
            assert_eq!(whens(&migration), [json!({"commands": ["never", pattern]})]);
            assert_eq!(classes(&migration), ["implied-conditions"]);
        }
        for pattern in [".", "^.*$", "x", r"\b", "^$", "[^/]*", r"\Q\E", ".+"] {
            let migration = migrate_value(&json!({
                "hook": "/bin/x", "stage": [], "hasbindmounts": true, "cmd": [pattern],
            }));
            assert_eq!(migration.files.len(), 2, "{pattern}");
        }
    }

    #[test]
    fn hook_without_condition_never_applies_before_and_after() {
        let migration =
            migrate_value(&json!({"hook": "/bin/x", "stage": [], "hasbindmounts": false}));
        assert_eq!(whens(&migration), [json!({})]);
        assert_eq!(classes(&migration), ["never-applies"]);
    }

    #[test]
    fn empty_list_of_annotations_still_matches_any() {
        let migration = migrate_value(&json!({"hook": "/bin/x", "stage": [], "annotations": []}));
        assert_eq!(whens(&migration), [json!({"annotations": {".*": ""}})]);
    }

    #[test]
    fn keys_without_effect_are_named() {
        let migration = migrate_value(
            &json!({"HOOK": "/bin/x", "stage": [], "cmd": ["a"], "when": {"always": true}}),
        );
        let [MigrationNote::UnknownKey { key, location }] = &migration.remarks[..] else {
            panic!("{:?}", migration.remarks);
        };
        assert_eq!((key.as_str(), location.pointer.as_str()), ("when", "/when"));
    }

    #[test]
    fn prestart_is_converted_only_on_request() {
        let old = br#"{"hook": "/bin/x", "stage": ["prestart", "poststop", "precreate"]}"#;
        let extension_stages = ["precreate".to_owned()];
        for (prestart, stages) in [
            (PrestartMigration::Keep, ["prestart", "poststop", "precreate"]),
            (PrestartMigration::CreateRuntime, ["createRuntime", "poststop", "precreate"]),
        ] {
            let options = MigrateOptions { extension_stages: &extension_stages, prestart };
            let migration = migrate("h".as_ref(), old, options).unwrap().unwrap();
            let new: Value = serde_json::from_str(&migration.files[0].text).unwrap();
            assert_eq!(new["stages"], json!(stages));
        }
    }

    #[test]
    fn current_files_are_kept_and_broken_ones_rejected() {
        let options = MigrateOptions::default();
        let current = br#"{"version": "1.0.0", "hook": {"path": "/bin/x"}, "stages": []}"#;
        assert!(migrate("h.json".as_ref(), current, options).unwrap().is_none());
        let fault = migrate("h.json".as_ref(), b"{\"hook\": \"/x\"}", options).unwrap_err();
        assert_eq!(fault.error.class(), "missing-stages");
    }

    const PATTERNS: [&str; 12] =
        ["", ".*", "^/bin/sh$", "sh", "(?i)SH", "^a$", "a", "\\Qa.", "b$", "^.*", "x|", "[/b]"];
    const TEXTS: [&str; 8] = ["", "/bin/sh", "/bin/SH", "a", "b", "a.b", "x\ny", "é"];

    fn patterns() -> impl Strategy<Value = Option<Vec<&'static str>>> {
        prop::option::of(prop::collection::vec(prop::sample::select(&PATTERNS), 0..4))
    }

    fn old_file() -> impl Strategy<Value = Value> {
        let stages = prop::collection::vec(
            prop::sample::select(&["prestart", "createRuntime", "poststop", "precreate"][..]),
            0..3,
        );
        (patterns(), patterns(), prop::option::of(any::<bool>()), stages, any::<bool>()).prop_map(
            |(annotations, commands, mounts, stages, arguments)| {
                json!({
                    "hook": "/bin/x", "stages": stages, "annotations": annotations,
                    "cmds": commands, "hasbindmounts": mounts,
                    "arguments": arguments.then_some(["--flag"]),
                })
            },
        )
    }

    fn target() -> impl Strategy<Value = MatchTarget> {
        let text = || prop::sample::select(&TEXTS[..]);
        let command = prop_oneof![
            1 => Just(TargetCommand::NoProcess),
            1 => Just(TargetCommand::NoArgs),
            8 => text().prop_map(|text| TargetCommand::Program(text.to_owned())),
        ];
        let annotations = prop::collection::btree_map(
            text().prop_map(str::to_owned),
            text().prop_map(str::to_owned),
            0..3,
        );
        (command, annotations, any::<bool>()).prop_map(|(command, annotations, has_bind_mounts)| {
            MatchTarget { command, annotations, has_bind_mounts }
        })
    }

    fn load<'a>(files: impl IntoIterator<Item = (&'a OsStr, &'a str)>) -> HookSet {
        let extension_stages = ["precreate".to_owned()];
        let options = ParseOptions {
            extension_stages: &extension_stages,
            path_check: PathCheck::Skip,
            ..ParseOptions::default()
        };
        let file = |(name, text): (&OsStr, &str)| {
            HookFile::new(name.into(), HookDefinition::parse(text.as_bytes(), options).unwrap())
        };
        files.into_iter().map(file).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn old_file_matches_exactly_if_a_new_one_does(old in old_file(), target in target()) {
            let old_text = old.to_string();
            let name = OsStr::new("h.json");
            let extension_stages = ["precreate".to_owned()];
            let options =
                MigrateOptions { extension_stages: &extension_stages, ..Default::default() };
            let Ok(migration) = migrate(name, old_text.as_bytes(), options) else {
                // Joined patterns may be an invalid pattern; then the old file is rejected as well.
                return Ok(());
            };
            let migration = migration.unwrap();
            let before = load([(name, old_text.as_str())]);
            let files = &migration.files;
            let after = load(files.iter().map(|f| (f.name.as_os_str(), f.text.as_str())));
            let implied = classes(&migration).contains(&"implied-conditions");

            for consumer in [&PODMAN, &PODMAN_4, &CRIO] {
                let old_hooks = before.select(&target, consumer);
                let new_hooks = after.select(&target, consumer);
                match (&old_hooks, &new_hooks) {
                    (Ok(old), Ok(new)) => {
                        let same = old.files.is_empty() == new.files.is_empty();
                        // See the module's documentation.
                        prop_assert!(same || (implied && target.command == TargetCommand::NoProcess));
                        let all: Vec<_> =
                            old.injections.iter().map(|i| (&i.stage, &i.hook)).collect();
                        for hooks in new.injections.chunks(all.len().max(1)) {
                            let hooks: Vec<_> = hooks.iter().map(|i| (&i.stage, &i.hook)).collect();
                            prop_assert_eq!(&hooks, &all);
                        }
                        let runs_once = !classes(&migration).contains(&"runs-twice");
                        prop_assert!(new.files.len() <= 1 || !runs_once);
                    }
                    (Err(_), Err(_)) => {}
                    (Ok(_), Err(_)) => prop_assert!(
                        target.command == TargetCommand::NoArgs && (implied || files.len() > 1)
                    ),
                    (Err(_), Ok(_)) => prop_assert!(false, "an error went away"),
                }
            }
        }
    }
}
