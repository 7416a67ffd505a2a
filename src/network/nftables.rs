//! Elements of nft's maps, by the kernel's own protocol: `nft` takes milliseconds for each call.
//!
//! Only what changes from container to container is done here. The rules themselves are text, for
//! nft.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

/// `NFPROTO_INET`: both IPv4 and IPv6.
pub(super) const INET: u8 = 1;
/// `NFPROTO_IPV4`.
pub(super) const IPV4: u8 = 2;
/// `NFPROTO_IPV6`.
pub(super) const IPV6: u8 = 10;

// From linux/netlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const ERROR: u16 = 2;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NFTABLES: u16 = 10;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;
const NESTED: u16 = 1 << 15;

const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const RULE_CHAIN: u16 = 2;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const KEY: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;

/// An element of a map, its fields joined as the kernel has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) map: &'static str,
    pub(super) key: Vec<u8>,
    pub(super) data: Vec<u8>,
}

/// A connection to the packet filter of the network namespace it was opened in.
pub(super) struct Nftables {
    socket: Socket,
}

impl Nftables {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        Ok(Nftables { socket })
    }

    /// Returns whether there is a chain.
    pub(super) fn has_chain(&self, family: u8, table: &str, chain: &str) -> io::Result<bool> {
        let kind = NFTABLES << 8 | GET_CHAIN;
        let attributes = [text(TABLE, table), text(CHAIN_NAME, chain)].concat();
        self.socket.send(&message(kind, REQUEST | ACK, 0, family, 0, &attributes), 0)?;
        match errors(&self.answers()?).first() {
            None => Ok(true),
            Some((_, Errno::NOENT)) => Ok(false),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Returns the rules of a chain as the kernel writes them, to look for a word in.
    pub(super) fn rules(&self, family: u8, table: &str, chain: &str) -> io::Result<Vec<u8>> {
        let kind = NFTABLES << 8 | GET_RULE;
        let attributes = [text(TABLE, table), text(RULE_CHAIN, chain)].concat();
        self.socket.send(&message(kind, REQUEST | DUMP, 0, family, 0, &attributes), 0)?;
        self.answers()
    }

    /// Adds elements to the maps of a table, all or none.
    pub(super) fn add(&self, table: &str, elements: &[Element]) -> io::Result<()> {
        match self.change(NEW_ELEMENT, CREATE, table, elements)?.first() {
            None => Ok(()),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Takes elements out of the maps of a table. One that is not there is fine.
    pub(super) fn delete(&self, table: &str, elements: &[Element]) -> io::Result<()> {
        let mut left = elements.to_vec();
        loop {
            let errors = self.change(DELETE_ELEMENT, 0, table, &left)?;
            if let Some((_, error)) = errors.iter().find(|(_, error)| *error != Errno::NOENT) {
                return Err((*error).into());
            }
            // The kernel takes a batch as a whole or not at all: once more, without what is missing.
            let (before, mut number) = (left.len(), 0);
            left.retain(|_| {
                number += 1;
                !errors.iter().any(|(missing, _)| *missing == number)
            });
            if left.len() == before {
                return Ok(());
            }
        }
    }

    /// Sends a batch and returns which of its messages, counted from 1, the kernel refuses; 0 is
    /// the batch itself.
    fn change(
        &self,
        kind: u16,
        flags: u16,
        table: &str,
        elements: &[Element],
    ) -> io::Result<Vec<(u32, Errno)>> {
        if elements.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = message(BATCH_BEGIN, REQUEST, 0, 0, NFTABLES, &[]);
        for (number, element) in (1..).zip(elements) {
            let value = |kind, bytes: &[u8]| nested(kind, &attribute(VALUE, bytes));
            let mut content = value(KEY, &element.key);
            if kind == NEW_ELEMENT {
                content.extend(value(DATA, &element.data));
            }
            let attributes = [
                text(TABLE, table),
                text(SET, element.map),
                nested(ELEMENTS, &nested(LIST_ELEMENT, &content)),
            ];
            let (kind, flags) = (NFTABLES << 8 | kind, REQUEST | ACK | flags);
            batch.extend(message(kind, flags, number, INET, 0, &attributes.concat()));
        }
        batch.extend(message(BATCH_END, REQUEST, u32::MAX, 0, NFTABLES, &[]));
        self.socket.send(&batch, 0)?;
        Ok(errors(&self.answers()?))
    }

    /// Returns all answers to what was sent. The kernel writes them while it takes the request,
    /// except for the rest of a long list, which it goes on with as the beginning is read.
    fn answers(&self) -> io::Result<Vec<u8>> {
        let mut answers = Vec::new();
        loop {
            let mut buffer = Vec::with_capacity(32 << 10);
            match self
                .socket
                .recv(&mut buffer, rustix::net::RecvFlags::DONTWAIT.bits().cast_signed())
            {
                Ok(_) => answers.extend(buffer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answers),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the sequence numbers and errors of the messages that report one.
fn errors(mut answers: &[u8]) -> Vec<(u32, Errno)> {
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

fn message(
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
    // The kernel's port, and the header of the packet filter's own messages.
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).expect("attributes are short");
    let mut bytes = Vec::with_capacity(content.len() + 8);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, content)
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_not_counted_so() {
        assert_eq!(attribute(7, b"abcde").len(), 12);
        assert_eq!(attribute(7, b"abcde")[..2], 9_u16.to_ne_bytes());
    }

    #[test]
    fn errors_are_told_from_acknowledgements() {
        let answer = |number, code: i32| {
            let mut bytes = message(ERROR, 0, number, 0, 0, &[0; 16]);
            bytes[16..20].copy_from_slice(&code.to_ne_bytes());
            bytes
        };
        let answers = [answer(1, 0), answer(2, -2), message(9, 0, 3, 0, 0, &[]), answer(4, -17)];
        assert_eq!(errors(&answers.concat()), [(2, Errno::NOENT), (4, Errno::EXIST)]);
        assert_eq!(errors(&[1, 2, 3]), []);
    }
}
