//! Sizes on the command line.

/// Reads a size in bytes such as `4096`, `512K`, `64M` or `4G`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(number) => (number, 10 * (1 + "KMGT".find(&text[number.len()..]).unwrap_or(0))),
        None => (text, 0),
    };
    let size = number.parse::<u64>().ok().and_then(|size| size.checked_mul(1 << shift));
    size.ok_or_else(|| "a number of bytes is expected: 4096, 512K, 64M, 4G".to_owned())
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
