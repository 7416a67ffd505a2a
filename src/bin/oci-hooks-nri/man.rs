//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --features nri --bin oci-hooks-nri man` writes them anew.

use clap::CommandFactory as _;
use oci_hooks::program::testing::pages::Pages;

use crate::cli::Cli;

const DESCRIPTION: &str = include_str!("../../../man/parts/oci-hooks-nri-description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/oci-hooks-nri-reference.roff");

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks\\-nri (1)
";

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = Pages {
        program: "oci-hooks-nri",
        manual: "OCI hooks",
        description: DESCRIPTION,
        reference: REFERENCE,
        global_options: "",
        see_also: SEE_ALSO,
    };
    pages.check(Cli::command(), |name| name.starts_with("oci-hooks-nri"));
}
