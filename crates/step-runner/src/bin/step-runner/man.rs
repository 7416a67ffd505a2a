//! The man pages of this program: those written by hand in `man`, and those generated for its
//! commands.

use oci_hooks_cli::man::ManPages;

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR step\\-runner (1)
";

/// The man pages of `step-runner` and its commands.
pub const PAGES: ManPages = ManPages {
    program: "step-runner",
    manual: "Step Runner",
    written: &[("step-runner.1", include_str!("../../../man/step-runner.1"))],
    global_options: "",
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use oci_hooks_testsupport::pages::check;

    use super::PAGES;
    use crate::cli::StepRunnerCli;
    use crate::environment;

    #[test]
    fn man_pages_match_the_command_line() {
        check(&PAGES, &StepRunnerCli::command());
    }

    #[test]
    fn variables_are_described() {
        let page = PAGES.written[0].1.replace("\\-", "-");
        for name in [environment::SOCKET, "XDG_RUNTIME_DIR", "TMPDIR"] {
            assert!(page.contains(name), "{name}");
        }
    }
}
