//! Compiled patterns of secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use super::gate::{Gate, normalize};
use super::masking::{BUILT_IN_PREFIXES, MIN_LOOSE_BYTES, Masking, OTHER_PREFIXES};

/// URL parameters whose values are masked, case-insensitively.
const URL_KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Automaton for `?key=` and `&key=`.
static URL_MARKERS: LazyLock<(Vec<String>, Automaton)> = LazyLock::new(|| {
    let marker = |key| ["?", "&"].map(|before| format!("{before}{key}="));
    let markers: Vec<_> = URL_KEYS.into_iter().flat_map(marker).collect();
    let automaton = Automaton::new(&markers, Case::Any);
    (markers, automaton)
});

/// The phrases, prefixes and URL parameters that a [`Masker`](super::Masker) searches for.
pub struct Patterns {
    prefix_texts: Arc<BTreeSet<String>>,
    pub phrases: Texts,
    /// Searched for in the normalized text of the stream.
    pub loose: Texts,
    pub prefixes: Arc<Automaton>,
    pub gate: Gate,
}

/// Limit of the total size of texts to mask: the automata need 20 times as much memory.
const MAX_BYTES: usize = 4 << 20;

/// There are too many secrets to mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many secrets to mask (limit {} MiB)", MAX_BYTES >> 20)]
pub struct TooMuchToMask;

impl Patterns {
    pub(super) fn new(masking: &Masking) -> Result<Self, TooMuchToMask> {
        let others = OTHER_PREFIXES.into_iter().filter(|_| !masking.only_personal_tokens);
        let own = masking.token_prefixes.iter().map(String::as_str);
        let prefixes: BTreeSet<_> = BUILT_IN_PREFIXES
            .into_iter()
            .chain(others)
            .chain(own)
            .filter(|prefix| !prefix.is_empty())
            .map(str::to_owned)
            .collect();
        check_size(&prefixes)?;
        let automaton = Arc::new(Automaton::new(&prefixes, Case::Exact));
        let phrases = trimmed(&masking.phrases);
        Self::compile(phrases, normalized(&masking.loose_phrases), Arc::new(prefixes), automaton)
    }

    /// Returns these patterns with more phrases.
    pub fn with(&self, phrases: &[String], loose: &[String]) -> Result<Self, TooMuchToMask> {
        let phrases = &self.phrases.texts | &trimmed(phrases);
        let loose = &self.loose.texts | &normalized(loose);
        Self::compile(phrases, loose, self.prefix_texts.clone(), self.prefixes.clone())
    }

    fn compile(
        phrases: BTreeSet<Vec<u8>>,
        loose: BTreeSet<Vec<u8>>,
        prefix_texts: Arc<BTreeSet<String>>,
        prefixes: Arc<Automaton>,
    ) -> Result<Self, TooMuchToMask> {
        let (phrases, loose) = (Texts::new(phrases)?, Texts::new(loose)?);
        let markers = url_markers().iter().chain(prefix_texts.iter()).map(String::as_bytes);
        let all = phrases.texts.iter().chain(&loose.texts).map(Vec::as_slice).chain(markers);
        let gate = Gate::new(all, !loose.texts.is_empty());
        Ok(Patterns { prefix_texts, phrases, loose, prefixes, gate })
    }

    /// Returns whether all of these are among the phrases.
    pub fn have(&self, phrases: &[String], loose: &[String]) -> bool {
        trimmed(phrases).is_subset(&self.phrases.texts)
            && normalized(loose).is_subset(&self.loose.texts)
    }
}

/// Texts to search for, with the length of partial matches by state.
pub struct Texts {
    texts: BTreeSet<Vec<u8>>,
    automaton: Automaton,
    /// Length of the longest partial match by state of the automaton; sorted.
    held: Vec<(StateID, u32)>,
}

impl Texts {
    fn new(texts: BTreeSet<Vec<u8>>) -> Result<Self, TooMuchToMask> {
        check_size(&texts)?;
        let automaton = Automaton::new(&texts, Case::Exact);
        let held = held(&automaton, &texts);
        Ok(Texts { texts, automaton, held })
    }

    /// Returns the length of the longest partial match in this state.
    pub fn held(&self, state: StateID) -> usize {
        match self.held.binary_search_by_key(&state, |&(state, _)| state) {
            Ok(found) => self.held[found].1 as usize,
            Err(_) => 0,
        }
    }
}

impl Deref for Texts {
    type Target = Automaton;

    fn deref(&self) -> &Automaton {
        &self.automaton
    }
}

/// Returns the automaton for URL parameters.
pub fn url_keys() -> &'static Automaton {
    &URL_MARKERS.1
}

fn url_markers() -> &'static [String] {
    &URL_MARKERS.0
}

fn trimmed(phrases: &[String]) -> BTreeSet<Vec<u8>> {
    let phrases = phrases.iter().map(|phrase| phrase.trim());
    phrases.filter(|phrase| !phrase.is_empty()).map(|phrase| phrase.as_bytes().to_vec()).collect()
}

/// Normalizes phrases. Those that become too short are dropped: they would match everywhere.
fn normalized(phrases: &[String]) -> BTreeSet<Vec<u8>> {
    let phrases = phrases.iter().map(|phrase| normalize(phrase.trim()));
    phrases.filter(|phrase| phrase.len() >= MIN_LOOSE_BYTES).collect()
}

fn check_size<T: AsRef<[u8]>>(texts: &BTreeSet<T>) -> Result<(), TooMuchToMask> {
    let bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    if bytes > MAX_BYTES { Err(TooMuchToMask) } else { Ok(()) }
}

/// Returns by state of the automaton the length of the longest suffix of the input that is a proper
/// prefix of a text.
fn held(automaton: &Automaton, texts: &BTreeSet<Vec<u8>>) -> Vec<(StateID, u32)> {
    let mut held = BTreeMap::new();
    let mut by_length: Vec<_> = texts.iter().map(Vec::as_slice).collect();
    by_length.sort_by_key(|text| text.len());
    for text in &by_length {
        let mut state = automaton.start();
        for (&byte, length) in text[..text.len() - 1].iter().zip(1..) {
            state = automaton.next(state, byte);
            held.insert(state, length);
        }
    }
    // A complete text that is no prefix of another counts as its longest suffix that is one. That suffix
    // is shorter, so if it is complete too, it was handled before.
    for text in by_length {
        let end = text.iter().fold(automaton.start(), |state, &byte| automaton.next(state, byte));
        if !held.contains_key(&end) {
            let shorter = text[1..]
                .iter()
                .fold(automaton.start(), |state, &byte| automaton.next(state, byte));
            if let Some(&length) = held.get(&shorter) {
                held.insert(end, length);
            }
        }
    }
    held.into_iter().collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Exact,
    Any,
}

/// Aho-Corasick automaton, advanced byte by byte.
pub struct Automaton {
    nfa: NFA,
    start: StateID,
}

impl Automaton {
    fn new<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>, case: Case) -> Self {
        let nfa = NFA::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(case == Case::Any)
            .prefilter(false)
            .build(texts)
            .expect("some megabytes of patterns are not too many states");
        let start = nfa.start_state(Anchored::No).expect("it searches unanchored");
        Automaton { nfa, start }
    }

    pub(super) fn start(&self) -> StateID {
        self.start
    }

    pub(super) fn next(&self, state: StateID, byte: u8) -> StateID {
        self.nfa.next_state(Anchored::No, state, byte)
    }

    pub(super) fn is_match(&self, state: StateID) -> bool {
        self.nfa.is_match(state)
    }

    /// Returns the indices and lengths of the texts that end in this state.
    pub fn matches(&self, state: StateID) -> impl Iterator<Item = (usize, usize)> {
        (0..self.nfa.match_len(state)).map(move |index| {
            let pattern = self.nfa.match_pattern(state, index);
            (pattern.as_usize(), self.nfa.pattern_len(pattern))
        })
    }

    pub(super) fn count(&self) -> usize {
        self.nfa.patterns_len()
    }
}
