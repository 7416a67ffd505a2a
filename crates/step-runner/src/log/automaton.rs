//! Search for many texts at once.

use std::collections::{BTreeSet, HashMap};

/// A node of the trie of all texts: a prefix of one or more of them.
pub type NodeId = u32;

/// The node of the empty prefix.
const ROOT: NodeId = 0;

/// Case sensitivity of the comparison of ASCII letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CaseMatching {
    Exact,
    Any,
}

/// Aho-Corasick automaton, advanced byte by byte.
///
/// Nodes are numbered in the order of the sorted texts, so that the first child of a node, mostly its only one, has the
/// next number. Thousands of secrets thus delay the start of their job by only a fraction of a second.
///
/// The crate `aho-corasick` takes longer to compile them, and does not tell how much of the input may become a text.
pub struct Automaton {
    case: CaseMatching,
    /// Last byte of the prefix, by node.
    bytes: Vec<u8>,
    /// Length of the prefix, by node.
    lengths: Vec<u32>,
    /// Longest proper suffix of the prefix that is a node, by node.
    suffixes: Vec<NodeId>,
    /// Longest suffix of the prefix that is a text, or [`ROOT`], by node.
    found: Vec<NodeId>,
    /// The children of the root, by byte.
    first: Box<[NodeId; 256]>,
    /// The second and later children of other nodes, by parent and byte.
    others: HashMap<(NodeId, u8), NodeId>,
    /// The node of each text, in ascending order, which is also the order of the texts.
    texts: Vec<NodeId>,
}

impl Automaton {
    /// Compiles texts, none of which is empty. For [`CaseMatching::Any`], they must be in lower
    /// case.
    pub(super) fn new<T: AsRef<[u8]> + Ord>(texts: &BTreeSet<T>, case: CaseMatching) -> Self {
        let nodes = 1 + texts.iter().map(|text| text.as_ref().len()).sum::<usize>();
        let mut automaton = Automaton {
            case,
            bytes: Vec::with_capacity(nodes),
            lengths: Vec::with_capacity(nodes),
            suffixes: Vec::new(),
            found: Vec::new(),
            first: Box::new([ROOT; 256]),
            others: HashMap::new(),
            texts: Vec::with_capacity(texts.len()),
        };
        automaton.bytes.push(0);
        automaton.lengths.push(0);
        let branches = automaton.add_nodes(texts.iter().map(AsRef::as_ref));
        automaton.link_suffixes(branches);
        automaton
    }

    /// Adds the nodes of texts, which must be sorted. Returns the new nodes of each text.
    fn add_nodes<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]>) -> Vec<NewNodes> {
        let mut branches = Vec::new();
        let mut last: &[u8] = &[];
        // The nodes of the last text, from the root.
        let mut path = vec![ROOT];
        for text in texts {
            let common = text.iter().zip(last).take_while(|(byte, other)| byte == other).count();
            path.truncate(common + 1);
            let parent = path[common];
            let next = self.next_id();
            if parent == ROOT {
                self.first[usize::from(text[0])] = next;
            } else if parent + 1 != next {
                self.others.insert((parent, text[common]), next);
            }
            for (length, &byte) in (1..).zip(text).skip(common) {
                path.push(self.next_id());
                self.bytes.push(byte);
                self.lengths.push(length);
            }
            let end = self.next_id() - 1;
            self.texts.push(end);
            branches.push(NewNodes { parent, next, end });
            last = text;
        }
        branches
    }

    fn next_id(&self) -> NodeId {
        NodeId::try_from(self.bytes.len()).expect("the texts have some megabytes")
    }

    /// Sets the longest proper suffix of each node, for shorter prefixes first: those of longer
    /// ones are derived from them.
    fn link_suffixes(&mut self, mut branches: Vec<NewNodes>) {
        self.suffixes = vec![ROOT; self.bytes.len()];
        self.found = vec![ROOT; self.bytes.len()];
        for &text in &self.texts {
            self.found[text as usize] = text;
        }
        branches.sort_by_key(|branch| std::cmp::Reverse(self.lengths[branch.next as usize]));
        let mut active: Vec<NewNodes> = Vec::new();
        let mut length = 0;
        while !(branches.is_empty() && active.is_empty()) {
            length += 1;
            while let Some(branch) =
                branches.pop_if(|branch| self.lengths[branch.next as usize] == length)
            {
                active.push(branch);
            }
            active.retain_mut(|NewNodes { parent, next, end }| {
                let node = *next as usize;
                if *parent != ROOT {
                    let suffix = self.next(self.suffixes[*parent as usize], self.bytes[node]);
                    self.suffixes[node] = suffix;
                    if self.found[node] == ROOT {
                        self.found[node] = self.found[suffix as usize];
                    }
                }
                (*parent, *next) = (*next, *next + 1);
                *next <= *end
            });
        }
    }

    pub(super) fn start(&self) -> NodeId {
        ROOT
    }

    /// Returns the node after one more byte of input: the longest suffix of the input that is a
    /// node.
    pub(super) fn next(&self, mut node: NodeId, byte: u8) -> NodeId {
        let byte = match self.case {
            CaseMatching::Exact => byte,
            CaseMatching::Any => byte.to_ascii_lowercase(),
        };
        while node != ROOT {
            if self.has_children(node) {
                if self.bytes[node as usize + 1] == byte {
                    return node + 1;
                }
                if let Some(child) = self.others.get(&(node, byte)) {
                    return *child;
                }
            }
            node = self.suffixes[node as usize];
        }
        self.first[usize::from(byte)]
    }

    /// Returns whether a node has children: the first of them is the next node.
    fn has_children(&self, node: NodeId) -> bool {
        let next = self.lengths.get(node as usize + 1);
        next.is_some_and(|next| *next == self.lengths[node as usize] + 1)
    }

    pub(super) fn is_match(&self, node: NodeId) -> bool {
        self.found[node as usize] != ROOT
    }

    /// Returns index and length of each text that is a suffix of the node's prefix, the longest
    /// first.
    pub fn matches(&self, node: NodeId) -> impl Iterator<Item = (usize, usize)> {
        let mut node = self.found[node as usize];
        std::iter::from_fn(move || {
            if node == ROOT {
                return None;
            }
            let text = self.texts.binary_search(&node).expect("it is the node of a text");
            let length = self.lengths[node as usize] as usize;
            node = self.found[self.suffixes[node as usize] as usize];
            Some((text, length))
        })
    }

    /// Returns the length of the longest suffix of the input that more input may complete to a
    /// text.
    pub fn held_length(&self, mut node: NodeId) -> usize {
        while node != ROOT && !self.has_children(node) {
            node = self.suffixes[node as usize];
        }
        self.lengths[node as usize] as usize
    }

    /// Returns the number of texts.
    pub(super) fn count(&self) -> usize {
        self.texts.len()
    }
}

/// Consecutive nodes that a text adds to the trie, while their suffixes are being determined.
#[derive(Clone, Copy)]
struct NewNodes {
    /// Parent of the node `next`.
    parent: NodeId,
    /// First node whose suffix is not determined yet.
    next: NodeId,
    /// Last node.
    end: NodeId,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn automaton_finds_what_a_search_for_each_text_finds(
            texts in prop::collection::btree_set("[ab]{1,5}", 0..12),
            input in "[abc]{0,40}",
        ) {
            let automaton = Automaton::new(&texts, CaseMatching::Exact);
            let mut node = automaton.start();
            for end in 1..=input.len() {
                node = automaton.next(node, input.as_bytes()[end - 1]);
                let read = &input[..end];
                let ends = |(_, text): &(usize, &String)| read.ends_with(text.as_str());
                let mut expected: Vec<_> = texts.iter().enumerate().filter(ends).collect();
                expected.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
                let found: Vec<_> = automaton.matches(node).collect();
                let expected: Vec<_> = expected.iter().map(|(index, text)| (*index, text.len())).collect();
                prop_assert_eq!(automaton.is_match(node), !found.is_empty());
                prop_assert_eq!(found, expected);
                let may_become = |from: &usize| {
                    texts.iter().any(|text| text.len() > end - from && text.starts_with(&read[*from..]))
                };
                let held = (0..end).find(may_become).map_or(0, |from| end - from);
                prop_assert_eq!(automaton.held_length(node), held);
            }
        }
    }
}
