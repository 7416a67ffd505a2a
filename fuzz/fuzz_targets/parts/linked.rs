//! Documents that refer to each other by digest, which a fuzzer would never find either.

use oci_hooks_image::Digest;

/// Splits an input at its zero bytes. Its first digit limits the number of parts; only the last
/// part may contain zero bytes.
///
/// In each part, `@N` becomes the digest of the `body` of part N, and `%N` its size, if part N comes later.
pub fn split_linked(input: &[u8], body: impl Fn(&[u8]) -> &[u8]) -> Vec<Vec<u8>> {
    let Some((&digit, input)) = input.split_first() else { return Vec::new() };
    let count = usize::from(digit.wrapping_sub(b'0') % 10);
    let mut parts: Vec<Vec<u8>> =
        input.splitn(count, |&byte| byte == 0).map(<[u8]>::to_vec).collect();
    for at in (0..parts.len().saturating_sub(1)).rev() {
        let mut text = Vec::new();
        let mut bytes = parts[at].iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            let digit = |next: &&u8| next.is_ascii_digit() && usize::from(**next - b'0') > at;
            let later = bytes.peek().filter(digit).map(|next| usize::from(next - b'0'));
            match (byte, later.and_then(|later| parts.get(later))) {
                (b'@', Some(later)) => text.extend(Digest::of(body(later)).as_str().bytes()),
                (b'%', Some(later)) => text.extend(body(later).len().to_string().bytes()),
                _ => {
                    text.push(byte);
                    continue;
                }
            }
            bytes.next();
        }
        parts[at] = text;
    }
    parts
}
