//! Man pages: the files in `man`, and the pages of the commands.

use oci_hooks_cli::man::ManPages;

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks\\-nri (1)
";

/// All pages.
pub const PAGES: ManPages = ManPages {
    program: "oci-hooks-nri",
    manual: "OCI hooks",
    written: &[("oci-hooks-nri.1", include_str!("../../../man/oci-hooks-nri.1"))],
    global_options: "",
    see_also: SEE_ALSO,
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use oci_hooks_testsupport::pages::check;

    use super::PAGES;
    use crate::cli::PluginCli;

    #[test]
    fn man_pages_match_the_command_line() {
        check(&PAGES, &PluginCli::command());
    }
}
