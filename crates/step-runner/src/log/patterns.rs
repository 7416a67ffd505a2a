//! Compiled search patterns for secrets in logs.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use super::automaton::{Automaton, CaseMatching};
use super::masking::{BUILT_IN_PREFIXES, MIN_LOOSE_BYTES, Masking, OTHER_PREFIXES};
use super::prefilter::{TextPrefilter, normalize};

/// URL parameters whose values are masked, case-insensitively.
const URL_KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// The texts `?key=` and `&key=` of each URL parameter, and the automaton that finds them.
static URL_MARKERS: LazyLock<(BTreeSet<String>, Automaton)> = LazyLock::new(|| {
    let marker = |key| ["?", "&"].map(|before| format!("{before}{key}="));
    let markers: BTreeSet<_> = URL_KEYS.into_iter().flat_map(marker).collect();
    let automaton = Automaton::new(&markers, CaseMatching::Any);
    (markers, automaton)
});

/// The phrases, prefixes and URL parameters that a [`Masker`](super::Masker) searches for.
pub struct MaskingPatterns {
    prefix_texts: Arc<BTreeSet<String>>,
    pub phrases: TextSet,
    /// Loose phrases, found regardless of case, line breaks and escape sequences in the stream.
    pub loose: TextSet,
    pub prefixes: Arc<Automaton>,
    pub prefilter: TextPrefilter,
}

/// Maximum total size of all phrases, and likewise of all loose phrases and of all prefixes: an
/// automaton needs 15 times as much memory.
const MAX_BYTES: usize = 4 << 20;

/// There are too many secrets to mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many secrets to mask (limit {} MiB in total)", MAX_BYTES >> 20)]
pub struct TooMuchToMask;

impl MaskingPatterns {
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
        let automaton = Arc::new(Automaton::new(&prefixes, CaseMatching::Exact));
        let phrases = trim_phrases(&masking.phrases);
        Self::compile(
            phrases,
            normalize_phrases(&masking.loose_phrases),
            Arc::new(prefixes),
            automaton,
        )
    }

    /// Returns these patterns with more phrases.
    pub fn with(&self, phrases: &[String], loose: &[String]) -> Result<Self, TooMuchToMask> {
        let phrases = &self.phrases.texts | &trim_phrases(phrases);
        let loose = &self.loose.texts | &normalize_phrases(loose);
        Self::compile(phrases, loose, self.prefix_texts.clone(), self.prefixes.clone())
    }

    fn compile(
        phrases: BTreeSet<Vec<u8>>,
        loose: BTreeSet<Vec<u8>>,
        prefix_texts: Arc<BTreeSet<String>>,
        prefixes: Arc<Automaton>,
    ) -> Result<Self, TooMuchToMask> {
        let (phrases, loose) = (TextSet::new(phrases)?, TextSet::new(loose)?);
        let markers = URL_MARKERS.0.iter().chain(prefix_texts.iter()).map(String::as_bytes);
        let all = phrases.texts.iter().chain(&loose.texts).map(Vec::as_slice).chain(markers);
        let prefilter = TextPrefilter::new(all, !loose.texts.is_empty());
        Ok(MaskingPatterns { prefix_texts, phrases, loose, prefixes, prefilter })
    }

    /// Returns whether all these phrases and loose phrases are among the patterns.
    pub fn contains_all(&self, phrases: &[String], loose: &[String]) -> bool {
        trim_phrases(phrases).is_subset(&self.phrases.texts)
            && normalize_phrases(loose).is_subset(&self.loose.texts)
    }
}

/// Texts to search for, with the automaton that finds them.
pub struct TextSet {
    texts: BTreeSet<Vec<u8>>,
    automaton: Automaton,
}

impl TextSet {
    fn new(texts: BTreeSet<Vec<u8>>) -> Result<Self, TooMuchToMask> {
        check_size(&texts)?;
        let automaton = Automaton::new(&texts, CaseMatching::Exact);
        Ok(TextSet { texts, automaton })
    }
}

impl Deref for TextSet {
    type Target = Automaton;

    fn deref(&self) -> &Automaton {
        &self.automaton
    }
}

/// Returns the automaton for URL parameters.
pub fn url_keys() -> &'static Automaton {
    &URL_MARKERS.1
}

fn trim_phrases(phrases: &[String]) -> BTreeSet<Vec<u8>> {
    let phrases = phrases.iter().map(|phrase| phrase.trim());
    phrases.filter(|phrase| !phrase.is_empty()).map(|phrase| phrase.as_bytes().to_vec()).collect()
}

/// Normalizes loose phrases, and drops those that become too short: they would match everywhere.
fn normalize_phrases(phrases: &[String]) -> BTreeSet<Vec<u8>> {
    let phrases = phrases.iter().map(|phrase| normalize(phrase.trim()));
    phrases.filter(|phrase| phrase.len() >= MIN_LOOSE_BYTES).collect()
}

fn check_size<T: AsRef<[u8]>>(texts: &BTreeSet<T>) -> Result<(), TooMuchToMask> {
    let bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    if bytes > MAX_BYTES { Err(TooMuchToMask) } else { Ok(()) }
}
