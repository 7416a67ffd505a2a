//! Queries and changes nftables over netlink, because each run of `nft` takes milliseconds.
//!
//! Only rules are added with `nft`, from text.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

use super::nfnetlink::{
    attribute, contents, errors, find, find_all, message, nested_attribute, text,
};

/// `NFPROTO_INET`: both IPv4 and IPv6.
pub const INET: u8 = 1;
/// `NFPROTO_IPV4` of `linux/netfilter.h`: the family of a table or chain.
pub const IPV4: u8 = 2;
/// `NFPROTO_IPV6` of `linux/netfilter.h`.
pub const IPV6: u8 = 10;

// From linux/netlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;
const NEW_GENERATION: u16 = 15;
const GET_GENERATION: u16 = 16;

const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_POLICY: u16 = 5;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const GENERATION: u16 = 1;
const BATCH_GENERATION: u16 = 1;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const KEY: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;

/// `ERESTART`: the kernel's answer to a change that depends on an outdated generation.
const ERESTART: i32 = 85;

/// An element of a set or a map. Fields of a key or value are concatenated, as in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetElement {
    pub set: &'static str,
    pub key: Vec<u8>,
    /// Value of a map; empty for a set.
    pub data: Vec<u8>,
}

/// A rule in another program's chain.
#[derive(Clone, Debug)]
pub struct ChainRule {
    handle: Vec<u8>,
    /// Netlink attributes of the rule, which are searched for names and comments.
    pub content: Vec<u8>,
}

/// Generation of the tables of a network namespace: a number that the kernel increments with each
/// change.
#[derive(Clone, Debug)]
pub struct TableGeneration(Vec<u8>);

/// A connection to the packet filter of the network namespace in which it was opened.
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        Ok(Nftables { socket })
    }

    /// Returns whether a table of family `inet` exists.
    pub fn has_table(&self, table: &str) -> io::Result<bool> {
        Ok(self.ask(GET_TABLE, ACK, INET, &text(TABLE, table))?.is_some())
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&self, family: u8, table: &str, chain: &str) -> io::Result<bool> {
        Ok(self.chain(family, table, chain)?.is_some())
    }

    /// Returns whether the policy of a chain is to drop packets.
    pub fn drops(&self, family: u8, table: &str, chain: &str) -> io::Result<bool> {
        let Some(answer) = self.chain(family, table, chain)? else { return Ok(false) };
        let chains = contents(&answer, NFTABLES << 8 | NEW_CHAIN);
        let policy = chains.first().and_then(|chain| find(chain, CHAIN_POLICY));
        // `NF_DROP`.
        Ok(policy.is_some_and(|policy| policy == [0; 4]))
    }

    fn chain(&self, family: u8, table: &str, chain: &str) -> io::Result<Option<Vec<u8>>> {
        let attributes = [text(TABLE, table), text(CHAIN_NAME, chain)].concat();
        self.ask(GET_CHAIN, ACK, family, &attributes)
    }

    /// Returns the rules of a chain; empty if the chain does not exist.
    pub fn rules(&self, family: u8, table: &str, chain: &str) -> io::Result<Vec<ChainRule>> {
        let attributes = [text(TABLE, table), text(RULE_CHAIN, chain)].concat();
        let answer = self.ask(GET_RULE, DUMP, family, &attributes)?.unwrap_or_default();
        let rules = contents(&answer, NFTABLES << 8 | NEW_RULE);
        let rule = |content: &[u8]| {
            let handle = find(content, RULE_HANDLE)?.to_vec();
            Some(ChainRule { handle, content: content.to_vec() })
        };
        Ok(rules.into_iter().filter_map(rule).collect())
    }

    /// Returns whether a set is empty or does not exist.
    pub fn is_empty(&self, table: &str, set: &'static str) -> io::Result<bool> {
        Ok(self.elements(table, set)?.is_empty())
    }

    /// Returns the elements of a set or map in a table of family `inet`; empty if it does not exist.
    pub fn elements(&self, table: &str, set: &'static str) -> io::Result<Vec<SetElement>> {
        let attributes = [text(TABLE, table), text(SET, set)].concat();
        let answer = self.ask(GET_ELEMENT, DUMP, INET, &attributes)?.unwrap_or_default();
        let parts = contents(&answer, NFTABLES << 8 | NEW_ELEMENT);
        let lists = parts.into_iter().filter_map(|part| find(part, ELEMENTS));
        let element = |content: &[u8]| {
            let value = |kind| Some(find(find(content, kind)?, VALUE)?.to_vec());
            SetElement {
                set,
                key: value(KEY).unwrap_or_default(),
                data: value(DATA).unwrap_or_default(),
            }
        };
        Ok(lists.flat_map(|list| find_all(list, LIST_ELEMENT)).map(element).collect())
    }

    /// Returns the current generation, on which a later change can depend.
    pub fn generation(&self) -> io::Result<TableGeneration> {
        let answer = self.ask(GET_GENERATION, 0, 0, &[])?.unwrap_or_default();
        let found = contents(&answer, NFTABLES << 8 | NEW_GENERATION);
        let number = found.first().and_then(|content| find(content, GENERATION));
        let missing = || io::Error::other("the kernel does not count changes");
        Ok(TableGeneration(number.ok_or_else(missing)?.to_vec()))
    }

    /// Sends a request and returns the reply; `None` if the object does not exist.
    fn ask(
        &self,
        kind: u16,
        flags: u16,
        family: u8,
        attributes: &[u8],
    ) -> io::Result<Option<Vec<u8>>> {
        let kind = NFTABLES << 8 | kind;
        self.socket.send(&message(kind, REQUEST | flags, 0, family, 0, attributes), 0)?;
        let answers = self.answers()?;
        match errors(&answers).first() {
            None => Ok(Some(answers)),
            Some((_, Errno::NOENT)) => Ok(None),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Removes a table and rules of other tables, all or none, if nothing has changed since a generation.
    /// Returns whether they were removed.
    pub fn remove(
        &self,
        since: &TableGeneration,
        table: Option<&str>,
        rules: &[(u8, &str, &str, ChainRule)],
    ) -> io::Result<bool> {
        let mut batch = vec![attribute(BATCH_GENERATION, &since.0)];
        batch[0] = message(BATCH_BEGIN, REQUEST, 0, 0, NFTABLES, &batch[0]);
        let mut push = |kind: u16, family, attributes: &[u8]| {
            let number = u32::try_from(batch.len()).expect("there are few");
            let kind = NFTABLES << 8 | kind;
            batch.push(message(kind, REQUEST | ACK, number, family, 0, attributes));
        };
        for (family, table, chain, rule) in rules {
            let attributes =
                [text(TABLE, table), text(RULE_CHAIN, chain), attribute(RULE_HANDLE, &rule.handle)];
            push(DELETE_RULE, *family, &attributes.concat());
        }
        if let Some(table) = table {
            push(DELETE_TABLE, INET, &text(TABLE, table));
        }
        batch.push(message(BATCH_END, REQUEST, u32::MAX, 0, NFTABLES, &[]));
        self.socket.send(&batch.concat(), 0)?;
        match errors(&self.answers()?).first() {
            None => Ok(true),
            Some((_, error)) if error.raw_os_error() == ERESTART => Ok(false),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Creates an empty chain, and its table if that is missing.
    pub fn add_chain(&self, table: &str, chain: &str) -> io::Result<()> {
        let chain = [text(TABLE, table), text(CHAIN_NAME, chain)].concat();
        let messages = [(NEW_TABLE, text(TABLE, table)), (NEW_CHAIN, chain)];
        self.batch(CREATE, &messages)?.first().map_or(Ok(()), |(_, error)| Err((*error).into()))
    }

    /// Removes a chain from a table of family `inet`; does nothing if it does not exist.
    pub fn delete_chain(&self, table: &str, chain: &str) -> io::Result<()> {
        // The kernel takes ten milliseconds to reject a change, but almost none to answer a query.
        if !self.has_chain(INET, table, chain)? {
            return Ok(());
        }
        let chain = [text(TABLE, table), text(CHAIN_NAME, chain)].concat();
        match self.batch(0, &[(DELETE_CHAIN, chain)])?.first() {
            None | Some((_, Errno::NOENT)) => Ok(()),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Adds elements to sets and maps of a table, all or none.
    pub fn add(&self, table: &str, elements: &[SetElement]) -> io::Result<()> {
        match self.change(NEW_ELEMENT, CREATE, table, elements)?.first() {
            None => Ok(()),
            Some((_, error)) => Err((*error).into()),
        }
    }

    /// Removes elements from sets and maps of a table. Missing elements are no error.
    pub fn delete(&self, table: &str, elements: &[SetElement]) -> io::Result<()> {
        let mut left = elements.to_vec();
        loop {
            let errors = self.change(DELETE_ELEMENT, 0, table, &left)?;
            if let Some((_, error)) = errors.iter().find(|(_, error)| *error != Errno::NOENT) {
                return Err((*error).into());
            }
            // The kernel applies a batch as a whole or not at all: try again without the missing elements.
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

    /// Sends a batch and returns the numbers and errors of rejected messages, counted from 1; 0 is the batch itself.
    fn change(
        &self,
        kind: u16,
        flags: u16,
        table: &str,
        elements: &[SetElement],
    ) -> io::Result<Vec<(u32, Errno)>> {
        if elements.is_empty() {
            return Ok(Vec::new());
        }
        let messages: Vec<_> = elements
            .iter()
            .map(|element| {
                let value = |kind, bytes: &[u8]| nested_attribute(kind, &attribute(VALUE, bytes));
                let mut content = value(KEY, &element.key);
                if kind == NEW_ELEMENT && !element.data.is_empty() {
                    content.extend(value(DATA, &element.data));
                }
                let list = nested_attribute(ELEMENTS, &nested_attribute(LIST_ELEMENT, &content));
                (kind, [text(TABLE, table), text(SET, element.set), list].concat())
            })
            .collect();
        self.batch(flags, &messages)
    }

    /// Sends messages about tables of family `inet`, which the kernel applies as a whole or not at all, and returns
    /// errors as [`Self::change`] does.
    fn batch(&self, flags: u16, messages: &[(u16, Vec<u8>)]) -> io::Result<Vec<(u32, Errno)>> {
        let mut batch = message(BATCH_BEGIN, REQUEST, 0, 0, NFTABLES, &[]);
        for (number, (kind, attributes)) in (1..).zip(messages) {
            let (kind, flags) = (NFTABLES << 8 | kind, REQUEST | ACK | flags);
            batch.extend(message(kind, flags, number, INET, 0, attributes));
        }
        batch.extend(message(BATCH_END, REQUEST, u32::MAX, 0, NFTABLES, &[]));
        self.socket.send(&batch, 0)?;
        Ok(errors(&self.answers()?))
    }

    /// Returns all replies to a request. The kernel writes them while it handles the request, except for the
    /// rest of a long list, which it continues as the beginning is read.
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

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    /// Set when the tests run in a separate network namespace.
    const APART: &str = "NFTABLES_TEST_APART";

    #[test]
    fn nothing_is_removed_after_concurrent_changes() {
        let name = "network::nftables::tests::changes_only_its_own_tables";
        let mut test = Command::new("unshare");
        test.args(["--user", "--map-root-user", "--net", "--"]);
        test.arg(env::current_exe().unwrap()).args(["--exact", name]).env(APART, "1");
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }

    /// Not a test by itself: [`nothing_is_removed_after_concurrent_changes`] runs it.
    #[test]
    fn changes_only_its_own_tables() {
        if env::var_os(APART).is_none() {
            return;
        }
        let nftables = Nftables::open().unwrap();
        nftables.add_chain("table", "one").unwrap();
        let before = nftables.generation().unwrap();
        nftables.add_chain("table", "two").unwrap();
        assert!(!nftables.remove(&before, Some("table"), &[]).unwrap());
        assert!(nftables.has_table("table").unwrap());
        let now = nftables.generation().unwrap();
        assert!(nftables.remove(&now, Some("table"), &[]).unwrap());
        assert!(!nftables.has_table("table").unwrap());
        // A missing table is an error, unlike a change.
        let now = nftables.generation().unwrap();
        nftables.remove(&now, Some("table"), &[]).unwrap_err();
        assert!(nftables.is_empty("table", "set").unwrap());
        nftables.delete_chain("table", "one").unwrap();
    }
}
