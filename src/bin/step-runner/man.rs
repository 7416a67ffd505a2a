//! The man pages of this program: those in `man`, and those of its commands.

use oci_hooks::program::man::Pages;

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR step\\-runner (1)
";

/// All pages.
pub const PAGES: Pages = Pages {
    program: "step-runner",
    manual: "Step Runner",
    written: &[("step-runner.1", include_str!("../../../man/step-runner.1"))],
    global_options: "",
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use oci_hooks::program::testing::pages::check;

    use super::PAGES;
    use crate::cli::Cli;
    use crate::environment;

    #[test]
    fn pages_are_those_of_the_command_line() {
        check(&PAGES, &Cli::command());
    }

    #[test]
    fn variables_are_described() {
        let page = PAGES.written[0].1.replace("\\-", "-");
        for name in [environment::SOCKET, "XDG_RUNTIME_DIR", "TMPDIR"] {
            assert!(page.contains(name), "{name}");
        }
    }
}
