//! The syntax: RE2 in Perl flavour, exactly as Go's `regexp/syntax` accepts and rejects it.
//!
//! [`parse`] returns an [`Ast`], which answers a linter's questions about a pattern.

mod ast;
mod build;
mod escape;
mod measure;
mod parser;
pub(super) mod property;

pub(super) use ast::{Assertion, AstKind, CharacterClass, ClassItem, NodeId};
pub use ast::{Ast, ConstructKind, PatternConstruct};
pub(super) use parser::is_operator;
pub use parser::parse;
