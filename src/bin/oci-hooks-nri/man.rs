//! The man pages of this program: those in `man`, and those of its commands.

use oci_hooks::program::man::Pages;

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks\\-nri (1)
";

/// All pages.
pub const PAGES: Pages = Pages {
    program: "oci-hooks-nri",
    manual: "OCI hooks",
    written: &[("oci-hooks-nri.1", include_str!("../../../man/oci-hooks-nri.1"))],
    global_options: "",
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use oci_hooks::program::testing::pages::check;

    use super::PAGES;
    use crate::cli::Cli;

    #[test]
    fn pages_are_those_of_the_command_line() {
        check(&PAGES, &Cli::command());
    }
}
