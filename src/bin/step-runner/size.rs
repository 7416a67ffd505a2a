//! Sizes on the command line.

use oci_hooks::sys::quantity::whole;

/// Reads a size in bytes such as `4096`, `512K`, `64M` or `4G`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let factor = |unit: &str| match unit {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        "T" => Some(1 << 40),
        _ => None,
    };
    whole(text.strip_prefix('+').unwrap_or(text), factor)
        .ok_or_else(|| "expected a size in bytes, for example 4096, 512K, 64M or 4G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(parse("12"), Ok(12));
        assert_eq!(parse("2K"), Ok(2048));
        assert_eq!(parse("4G"), Ok(4 << 30));
        for bad in ["", "K", "-1", "1X", "99999999999999T", "1.5G"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
