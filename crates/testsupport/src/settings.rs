//! Checks of settings files with mistakes: errors must not quote their content.

/// Checks that messages about `/s.toml` name the file, the line, the column and the expected value. `mistake`
/// returns the message about a text.
#[track_caller]
pub fn check_positions(mistake: impl Fn(&str) -> Option<String>) {
    for (text, expected) in [
        ("[runtime]\nordr = []\n", "2:1: unknown field, expected one of `order`"),
        ("[log]\nsize = \"20XB\"\n", "2:8: invalid size: expected a number and its unit"),
        ("[store]\npull = \"sometimes\"\n", "2:8: unknown variant, expected one of `always`"),
        ("[network]\ndns = [\"1.1.1.1\", \"x\"]\n", "2:19: invalid IP address syntax"),
        (
            "[registry.\"https://r.test\"]\n",
            "1:2: invalid host: expected HOST[:PORT] without a scheme",
        ),
        (
            "[registry.\"r.test\"]\nmirrors = [\"http://m.test\"]\n",
            "1:2: invalid mirror: expected HOST[:PORT][/PATH] without a scheme",
        ),
        ("[store\n", "1:7: unclosed table"),
        ("\"\u{fc}\" = 1", "1:1: unknown field, expected one of"),
    ] {
        let message = message(&mistake, text);
        assert!(message.starts_with(&format!("/s.toml:{expected}")), "{message}");
    }
}

/// Checks that messages do not quote the file, because users who see them may not have read access.
#[track_caller]
pub fn check_secrecy(mistake: impl Fn(&str) -> Option<String>) {
    let shadow = "root:$y$s3cret:20000:0:99999:7:::\ns3cret:*:20000:0:99999:7:::\n";
    for text in [
        shadow,
        "s3cret",
        "s3cret = 1",
        "[s3cret]",
        "s3cret = {",
        "[store]\npull = \"s3cret\"",
        "[store]\nroot = [\"s3cret\"]",
        "[store]\nmax-layer-size = \"s3cret\"",
        "[store]\nmax-layer-files = \"s3cret\"",
        "[store]\nkeep-age = \"s3cret\"",
        "[store]\ns3cret = 1",
        "[network]\npool = \"s3cret\"",
        "[network]\ndns = [\"s3cret\"]",
        "[network]\ndns = \"s3cret\"",
        "[runtime]\norder = \"s3cret\"",
        "[runtime]\norder = [\"s3cret\", 7]",
        "[registry.\"s3cret\"]\ninsecure = \"s3cret\"",
        "runtime = \"s3cret\"",
    ] {
        let message = message(&mistake, text);
        assert!(!message.contains("s3cret"), "{message}");
        assert!(message.starts_with("/s.toml:"), "{message}");
    }
}

#[track_caller]
fn message(mistake: impl Fn(&str) -> Option<String>, text: &str) -> String {
    mistake(text).unwrap_or_else(|| panic!("no mistake was found in {text:?}"))
}
