//! The man pages of this program and of its commands.

use oci_hooks_cli::man::ManPages;

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-hooks\\-dir\\fR, \\fB\\-\\-as\\fR, \\fB\\-\\-format\\fR, \\fB\\-\\-error\\-format\\fR, \
\\fB\\-\\-color\\fR and \\fB\\-\\-verbose\\fR are described in
.BR oci\\-hooks (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks (1),
.BR oci\\-hooks\\-json (5)
";

/// The pages written by hand, and the parts that the pages of all commands share.
pub const PAGES: ManPages = ManPages {
    program: "oci-hooks",
    manual: "OCI hooks",
    written: &[
        ("oci-hooks.1", include_str!("../../../man/oci-hooks.1")),
        ("oci-hooks-json.5", include_str!("../../../man/oci-hooks-json.5")),
    ],
    global_options: GLOBAL_OPTIONS,
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory as _;
    use oci_hooks::hooks::consumer::PODMAN;
    use oci_hooks::hooks::lint::{self, LintOptions, LintRule, RuleLevel, Severity};
    use oci_hooks::hooks::{HookDefinition, ParseOptions, PathCheck};
    use oci_hooks_testsupport::pages::{check, undescribed_keys};

    use super::PAGES;
    use crate::cli::Cli;

    #[test]
    fn man_pages_match_the_command_line() {
        check(&PAGES, &Cli::command());
    }

    #[test]
    fn every_key_of_the_json_output_is_described() {
        let files = [
            "cli/list.json",
            "cli/explain.json",
            "cli/explain-container.json",
            "cli/validate.json",
            "cli/disable.json",
            "cli/migrate-any.json",
            "cli/pattern.json",
            "lint/output/findings.json",
            "lint/output/explain.json",
        ];
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        assert_eq!(undescribed_keys(&PAGES, &files.map(|file| data.join(file))), [""; 0]);
    }

    #[test]
    fn examples_of_hook_files_have_no_errors() {
        let (_, page) = PAGES.written[1];
        let examples = page.split(".nf\n").skip(1).map(|rest| rest.split_once(".fi").unwrap().0);
        let mut options = LintOptions::for_consumer(&PODMAN);
        // One example disables a hook on purpose, another shows the old schema.
        for rule in ["always-false", "old-schema"] {
            options.levels.set(LintRule::find(rule).unwrap(), RuleLevel::Allow);
        }
        let mut count = 0;
        for example in examples {
            let text = example.replace("\\(dq", "\"").replace("\\(ha", "^");
            let text = text.replace("\\-", "-").replace("\\e", "\\");
            let schema = ParseOptions::default().with_path_check(PathCheck::Skip);
            HookDefinition::parse(text.as_bytes(), schema)
                .unwrap_or_else(|e| panic!("{e:?}: {text}"));
            let findings = lint::lint_text(Path::new("example.json"), text.as_bytes(), &options);
            let bad: Vec<_> = findings.iter().filter(|f| f.severity > Severity::Note).collect();
            assert!(bad.is_empty(), "{bad:?}: {text}");
            count += 1;
        }
        assert!(count >= 5);
    }
}
