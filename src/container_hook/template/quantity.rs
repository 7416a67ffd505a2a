//! Whether a text is a quantity, as `500m` and `2Gi` are.

/// Returns whether a text is a [quantity]: a decimal number, then a suffix or an exponent.
///
/// [quantity]: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
pub(super) fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let is_number = number.matches('.').count() <= 1 && number.contains(|c: char| c != '.');
    is_number && is_suffix(suffix)
}

fn is_suffix(suffix: &str) -> bool {
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        // A lone `E` is a suffix, that of 10^18; so is `Ei`.
        return suffix == "E"
            || exponent == "i" && suffix == "Ei"
            || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    }
    let known = ["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];
    known.contains(&suffix)
}

#[cfg(test)]
mod tests {
    use super::is_quantity;

    #[test]
    fn quantities_are_told_from_other_texts() {
        for text in [
            "0", "1", "0.5", ".5", "5.", "+1", "-1", "500m", "2Gi", "1e3", "1E-3", "3E", "3Ei",
            "1k",
        ] {
            assert!(is_quantity(text), "{text}");
        }
        for text in [
            "", "-", ".", "1.2.3", "1GB", "1 Gi", "1K", "1ki", "1e", "1ei", "Gi", "1m5", "0x1",
            "1,5",
        ] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
