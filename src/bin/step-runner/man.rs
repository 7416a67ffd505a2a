//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --features step-runner --bin step-runner man` writes them anew.

use clap::CommandFactory as _;
use oci_hooks::program::testing::pages::{Pages, man};

use crate::cli::Cli;
use crate::environment;

const DESCRIPTION: &str = include_str!("../../../man/parts/step-runner-description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/step-runner-reference.roff");

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR step\\-runner (1)
";

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = Pages {
        program: "step-runner",
        manual: "Step Runner",
        description: DESCRIPTION,
        reference: REFERENCE,
        global_options: "",
        see_also: SEE_ALSO,
    };
    pages.check(Cli::command(), |name| name.starts_with("step-runner"));
}

#[test]
fn variables_are_described() {
    let page = std::fs::read_to_string(man("step-runner.1")).unwrap().replace("\\-", "-");
    for name in [environment::SOCKET, "XDG_RUNTIME_DIR", "TMPDIR"] {
        assert!(page.contains(name), "{name}");
    }
}
