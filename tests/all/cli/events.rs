//! Logged events: `--log-level` and `RUST_LOG`.

use crate::cli::env::HookEnv;

#[test]
fn events_are_logged_to_stderr_only_on_request() {
    let env = HookEnv::with_hooks();
    let quiet = env.run(&["inject"]);
    assert!(!quiet.stderr.contains("load hook files"), "{}", quiet.stderr);
    let loud = env.run(&["inject", "--log-level", "debug"]);
    assert!(
        loud.stderr.contains("DEBUG oci_hooks::hooks::pipeline: load hook files"),
        "{}",
        loud.stderr
    );
    assert!(loud.stderr.contains("the hook matches"), "{}", loud.stderr);
    assert_eq!(loud.stdout, quiet.stdout);
}

#[test]
fn rust_log_selects_modules_and_the_option_overrides_it() {
    let env = HookEnv::with_hooks();
    let stderr = |levels: &str, args: &[&str]| {
        let output = env.command(args).env("RUST_LOG", levels).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for levels in ["debug", "oci_hooks::hooks=trace", "error,oci_hooks::hooks::pipeline=debug"] {
        assert!(stderr(levels, &["inject"]).contains("load hook files"), "{levels}");
    }
    for levels in ["", "info", "oci_hooks_engine::network=trace"] {
        assert!(!stderr(levels, &["inject"]).contains("load hook files"), "{levels}");
    }
    assert!(!stderr("debug", &["inject", "--log-level", "off"]).contains("load hook files"));
    let told = stderr("oci_hooks=loud", &["inject"]);
    assert!(told.contains("invalid RUST_LOG \"oci_hooks=loud\""), "{told}");
}
