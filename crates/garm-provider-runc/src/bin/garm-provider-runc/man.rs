//! Man pages of this program: the page in `man`, and one page per command.

use oci_hooks_cli::man::ManPages;

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-config\\fR, \\fB\\-\\-format\\fR and \\fB\\-\\-color\\fR are described in
.BR garm\\-provider\\-runc (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR garm\\-provider\\-runc (1)
";

/// Man pages of this program.
pub const PAGES: ManPages = ManPages {
    program: "garm-provider-runc",
    manual: "GARM's provider",
    written: &[("garm-provider-runc.1", include_str!("../../../man/garm-provider-runc.1"))],
    global_options: GLOBAL_OPTIONS,
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use garm_provider_runc::schema;
    use oci_hooks_engine_cli::host::PROXY_VARIABLES;
    use oci_hooks_testsupport::pages::{check, json_files, undescribed_keys};
    use serde_json::Value;

    use super::PAGES;
    use crate::cli::ProviderCli;
    use crate::settings::{FILE, FILE_VARIABLE};

    #[test]
    fn man_pages_match_the_command_line() {
        check(&PAGES, &ProviderCli::command());
    }

    #[test]
    fn every_key_of_the_json_output_is_described() {
        let files = json_files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cli"));
        assert_eq!(undescribed_keys(&PAGES, &files), [""; 0]);
    }

    #[test]
    fn files_variables_and_extra_specs_are_described() {
        let page = PAGES.written[0].1.replace("\\-", "-");
        for name in PROXY_VARIABLES.into_iter().chain([FILE, FILE_VARIABLE]) {
            assert!(page.contains(name), "{name}");
        }
        let schema: Value = serde_json::from_str(schema::EXTRA_SPECS).unwrap();
        let (_, described) = page.split_once("EXTRA SPECS").unwrap();
        for key in schema["properties"].as_object().unwrap().keys() {
            assert!(described.contains(key.as_str()), "{key}");
        }
    }
}
