//! Encodes and decodes the netlink messages of nftables. `nftables` sends them.

use rustix::io::Errno;

// From linux/netlink.h.
pub const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
/// Size of the netlink header (`nlmsghdr`) and the header of nftables messages (`nfgenmsg`).
const HEADER_BYTES: usize = 20;

/// Returns the sequence numbers and errors of the error messages.
pub fn errors(mut answers: &[u8]) -> Vec<(u32, Errno)> {
    let number =
        |bytes: &[u8], at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let mut errors = Vec::new();
    while let (Some(length), Some(kind)) = (number(answers, 0), number(answers, 4)) {
        let code = number(answers, 16).unwrap_or(0).cast_signed();
        if kind & 0xffff == u32::from(ERROR) && code != 0 {
            errors.push((number(answers, 8).unwrap_or(0), Errno::from_raw_os_error(-code)));
        }
        let length = usize::try_from(length).expect("32 bits fit").next_multiple_of(4);
        answers = answers.get(length.max(16)..).unwrap_or(&[]);
    }
    errors
}

pub(super) fn message(
    kind: u16,
    flags: u16,
    number: u32,
    family: u8,
    resource: u16,
    attributes: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(20 + attributes.len()).expect("messages are short");
    let mut bytes = Vec::with_capacity(20 + attributes.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    // The kernel's port, and the packet filter's own header.
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

pub(super) fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).expect("attributes are short");
    let mut bytes = Vec::with_capacity(content.len() + 8);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(super) fn nested_attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, content)
}

pub(super) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), b"\0"].concat())
}

/// Returns the attributes of all replies of one type, one item per reply.
pub fn contents(answers: &[u8], kind: u16) -> Vec<&[u8]> {
    families(answers, kind).into_iter().map(|(_, content)| content).collect()
}

/// Returns the families and attributes of all replies of one type.
pub fn families(mut answers: &[u8], kind: u16) -> Vec<(u8, &[u8])> {
    let mut contents = Vec::new();
    while let Some(header) = answers.get(..HEADER_BYTES) {
        let (length, found) = (u32_at(header, 0), u32_at(header, 4) & 0xffff);
        let length = usize::try_from(length).expect("32 bits fit");
        let content = answers.get(HEADER_BYTES..length).filter(|_| found == u32::from(kind));
        contents.extend(content.map(|content| (header[16], content)));
        answers = answers.get(length.next_multiple_of(4).max(HEADER_BYTES)..).unwrap_or(&[]);
    }
    contents
}

/// Returns the first attribute of a type.
pub fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let header = attributes.get(..4)?;
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let (length, found) = (usize::from(field(0)), field(2) & !NESTED);
        if found == kind {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.next_multiple_of(4).max(4)..)?;
    }
}

/// Returns all attributes of a type.
pub fn find_all(mut attributes: &[u8], kind: u16) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(header) = attributes.get(..4) {
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let length = usize::from(field(0));
        found.extend(attributes.get(4..length).filter(|_| field(2) & !NESTED == kind));
        attributes = attributes.get(length.next_multiple_of(4).max(4)..).unwrap_or(&[]);
    }
    found
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("there are four"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_padding_is_not_part_of_the_length() {
        assert_eq!(attribute(7, b"abcde").len(), 12);
        assert_eq!(attribute(7, b"abcde")[..2], 9_u16.to_ne_bytes());
    }

    #[test]
    fn errors_are_distinguished_from_acknowledgements() {
        let answer = |number, code: i32| {
            let mut bytes = message(ERROR, 0, number, 0, 0, &[0; 16]);
            bytes[16..20].copy_from_slice(&code.to_ne_bytes());
            bytes
        };
        let answers = [answer(1, 0), answer(2, -2), message(9, 0, 3, 0, 0, &[]), answer(4, -17)];
        assert_eq!(errors(&answers.concat()), [(2, Errno::NOENT), (4, Errno::EXIST)]);
        assert_eq!(errors(&[1, 2, 3]), []);
    }

    #[test]
    fn attributes_are_found_in_answers_of_their_kind() {
        let attributes = [text(1, "table"), nested_attribute(3, &text(1, "inner"))].concat();
        let answers =
            [message(7, 0, 1, 0, 0, &text(1, "other")), message(9, 0, 2, 0, 0, &attributes)];
        let answers = answers.concat();
        let found = contents(&answers, 9);
        assert_eq!(found, [&attributes[..]]);
        assert_eq!(find(found[0], 1), Some(&b"table\0"[..]));
        assert_eq!(find(found[0], 3).and_then(|inner| find(inner, 1)), Some(&b"inner\0"[..]));
        assert_eq!(find(found[0], 2), None);
        let list = [text(1, "a"), text(2, "b"), text(1, "c")].concat();
        assert_eq!(find_all(&list, 1), [b"a\0", b"c\0"]);
        // Truncated attributes and messages are ignored.
        assert_eq!(find_all(&list[..5], 1), Vec::<&[u8]>::new());
        assert_eq!(contents(&answers[..30], 7), Vec::<&[u8]>::new());
        assert_eq!(find(&[9, 0, 1, 0, 1], 1), None);
    }
}
