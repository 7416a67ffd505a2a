//! Compiled patterns: the lazy DFA of `regex-automata`.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::thread;

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, MatchKind};

use super::syntax::Ast;
use super::translate::{Texts, translate};

/// Memory for the states of one pattern and thread; a pattern that needs more forgets states and
/// makes them again.
const CACHE_BYTES: usize = 128 << 10;

/// Levels of a pattern for which the stack of any thread will do.
const SHALLOW_LEVELS: u16 = 40;
/// A stack for a thousand levels, also without optimization.
const DEEP_STACK_BYTES: usize = 64 << 20;

/// A pattern ready to run.
pub(super) struct Automaton {
    dfa: DFA,
    caches: Pool<Cache, CreateCache>,
}

type CreateCache = Box<dyn Fn() -> Cache + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// What may be matched of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Part,
    Whole,
}

impl Automaton {
    pub(super) fn new(ast: &Ast, texts: Texts) -> Self {
        let nfa = if ast.height() <= SHALLOW_LEVELS {
            compile(ast, texts)
        } else {
            let thread = thread::Builder::new().stack_size(DEEP_STACK_BYTES);
            thread::scope(|scope| {
                let compiled = thread.spawn_scoped(scope, || compile(ast, texts));
                compiled.map(|thread| thread.join().expect("compiling does not panic"))
            })
            .unwrap_or_else(|_| compile(ast, texts))
        };
        // All matches, so that the longest one shows whether the whole text matches.
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .cache_capacity(CACHE_BYTES)
            .skip_cache_capacity_check(true);
        let dfa = DFA::builder()
            .configure(config)
            .build_from_nfa(nfa)
            .expect("no Unicode word boundaries and no limits");
        let caches = {
            let dfa = dfa.clone();
            Pool::new(Box::new(move || dfa.create_cache()) as CreateCache)
        };
        Self { dfa, caches }
    }

    /// Returns whether the pattern matches that extent of the text.
    pub(super) fn matches(&self, text: &str, extent: Extent) -> bool {
        let whole = extent == Extent::Whole;
        let anchored = whole || self.dfa.get_nfa().is_always_start_anchored();
        let input = Input::new(text)
            .anchored(if anchored { Anchored::Yes } else { Anchored::No })
            .earliest(!whole);
        let end = self
            .dfa
            .try_search_fwd(&mut self.caches.get(), &input)
            .expect("no bytes end a search, nor does a full cache");
        end.is_some_and(|end| !whole || end.offset() == text.len())
    }
}

/// Compiles the pattern by recursion, level by level.
fn compile(ast: &Ast, texts: Texts) -> NFA {
    thompson::Compiler::new()
        .configure(thompson::Config::new().which_captures(WhichCaptures::None))
        .build_from_hir(&translate(ast, texts))
        .expect("the parser limits the size")
}
