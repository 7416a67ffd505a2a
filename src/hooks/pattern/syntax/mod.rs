//! The syntax: RE2 in Perl flavour, exactly as Go's `regexp/syntax` accepts and rejects it.
//!
//! [`parse`] gives an [`Ast`], which answers what a linter wants to know about a pattern.

mod ast;
mod build;
mod escape;
mod measure;
mod parser;
pub(super) mod property;

pub(super) use ast::{Assertion, Class, ClassItem, Kind, NodeId};
pub use ast::{Ast, Construct, ConstructKind};
pub(super) use parser::is_operator;
pub use parser::parse;
