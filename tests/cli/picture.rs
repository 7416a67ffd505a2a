//! The picture of a terminal in README.md: `oci-hooks explain` as it prints today.

use anstyle_svg::Term;

use crate::env::{TestEnv, golden};

/// Hook files as an administrator may have them: one that applies, one that the annotation is missing
/// for, one that another masks, one whose program is not installed.
fn hooks() -> TestEnv {
    let env = TestEnv::new();
    env.hook("usr/10-ca-certificates.json", r#""always": true"#, r#""createRuntime""#);
    env.hook(
        "usr/20-gpu.json",
        r#""annotations": {"^com\\.example\\.gpu$": "^all$"}"#,
        r#""createRuntime""#,
    );
    env.hook("usr/30-audit.json", r#""always": true"#, r#""poststop""#);
    env.write(
        "usr/40-firewall.json",
        &env.read("usr/30-audit.json").replace("/bin/true", "/usr/local/bin/fw"),
    );
    env.hook("etc/30-audit.json", r#""commands": ["/nginx$"]"#, r#""poststop""#);
    env.write(
        "config.json",
        r#"{"process": {"args": ["/usr/bin/python3"]}, "annotations": {"com.example.gpu": "none"}}"#,
    );
    env
}

#[test]
fn shows_what_explain_prints() {
    let ran = hooks().run(&["explain", "--color", "always"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let text = ran
        .stdout
        .replace("{ROOT}/usr", "/usr/share/containers/oci/hooks.d")
        .replace("{ROOT}/etc", "/etc/containers/oci/hooks.d");
    let text = format!("\u{1b}[2m$\u{1b}[0m oci-hooks explain /run/bundle\n{text}");
    golden(
        "../../../docs/explain.svg",
        &Term::new().palette(anstyle_svg::WIN10_CONSOLE).render_svg(&text),
    );
}
