//! Man pages: the files in `man`, and the pages of the commands.

use oci_hooks_cli::man::ManPages;

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-config\\fR, \\fB\\-\\-format\\fR and \\fB\\-\\-color\\fR are described in
.BR container\\-hook (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR container\\-hook (1)
";

/// All pages.
pub const PAGES: ManPages = ManPages {
    program: "container-hook",
    manual: "Container hooks",
    written: &[
        ("container-hook.1", include_str!("../../../man/container-hook.1")),
        ("container-hook-template.5", include_str!("../../../man/container-hook-template.5")),
    ],
    global_options: GLOBAL_OPTIONS,
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory as _;
    use container_hook::pod::{FIELDS, FieldTreatment, PodField};
    use container_hook_job::runner::JOB_VARIABLES;
    use oci_hooks_engine_cli::host::PROXY_VARIABLES;
    use oci_hooks_testsupport::pages::{check, json_files, undescribed_keys};

    use super::PAGES;
    use crate::cli::HookCli;
    use crate::settings::{FILE, FILE_VARIABLE};
    use crate::{docker, environment};

    #[test]
    fn man_pages_match_the_command_line() {
        check(&PAGES, &HookCli::command());
    }

    #[test]
    fn template_page_describes_every_field() {
        let (file, page) = PAGES.written[1];
        let fields = fields();
        assert!(page.contains(&fields), "man/{file} must have these sections:\n{fields}");
    }

    /// Returns all fields of a pod with their effects, in roff.
    fn fields() -> String {
        let (mut applied, mut plain) = (String::new(), Vec::new());
        let mut ineffective: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut rejected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for PodField { path, treatment } in FIELDS {
            match treatment {
                FieldTreatment::Applied("") => plain.push(*path),
                FieldTreatment::Applied(how) => applied += &format!(".TP\n.B {path}\n{how}\n"),
                FieldTreatment::Ineffective(why) => ineffective.entry(why).or_default().push(path),
                FieldTreatment::Rejected(why) => rejected.entry(why).or_default().push(path),
            }
        }
        let list = |paths: &[&str]| format!("\\fB{}\\fR\n", paths.join("\\fR, \\fB"));
        let by_reason = |all: BTreeMap<&str, Vec<&str>>| {
            let lines = all.into_iter().map(|(why, paths)| format!(".TP\n{why}\n{}", list(&paths)));
            lines.collect::<String>()
        };
        format!(
            ".SS Applied\n.TP\nas on Kubernetes\n{}{applied}\
             .SS \"Without effect on one host, by reason\"\n{}\
             .SS \"Rejected, by reason\"\n{}",
            list(&plain),
            by_reason(ineffective),
            by_reason(rejected)
        )
        .replace('-', "\\-")
    }

    #[test]
    fn every_key_of_the_json_output_is_described() {
        let files = json_files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cli"));
        assert_eq!(undescribed_keys(&PAGES, &files), [""; 0]);
    }

    #[test]
    fn files_and_variables_are_described() {
        let page = PAGES.written[0].1.replace("\\-", "-");
        let job = JOB_VARIABLES.iter().map(|(name, _)| *name);
        let runner = environment::RUNNER_VARIABLES
            .into_iter()
            .chain(docker::VARIABLES)
            .chain(docker::OF_DOCKER);
        for name in runner.chain(PROXY_VARIABLES).chain(job).chain([FILE, FILE_VARIABLE]) {
            assert!(page.contains(name), "{name}");
        }
    }
}
