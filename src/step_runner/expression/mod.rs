//! Expressions in `${{ }}`: the language of GitLab's functions, and of the steps before them.
//!
//! A text is plain but for `${{ … }}`; `\${{` stands for `${{` itself. An expression that is the
//! whole text keeps its type, text around it makes a string. Results are never expanded again.
//!
//! - Values: `null`, `true`, `1.5e3`, `"…"` with escapes and `${{ }}`, `'…'` with neither, `[1, 2]`,
//!   `{name: "x", (inputs.key): 1}`.
//! - Operators, from the tightest: `.name` and `[…]`; `+` `-` `!` before a value; `*` `/` `%`;
//!   `+` `-`; `==` `!=` `<` `<=` `>` `>=`; `&&`; `||`. Nothing is converted unasked. `&&` and `||`
//!   give one of their operands. False are `false`, `""`, `0`, `[]`, `{}` and `null`.
//! - Functions: `str(value)`, `num(text)`, `bool(value)`; `success()`, `failure()`, `always()` and
//!   `cancelled()`, meant for the `if:` of a step.
//! - Names: those of [`Context`].
//!
//! What the step runner before expressions had operators read still reads the same: a path of names
//! with dots between them, which may hold `-` and blanks (`${{job.MY-KEY}}`), comes first if
//! there is such a value; a missing name is reported in the same words; and `}}` without
//! `${{` is plain text, since scripts have it for reasons of their own.
//!
//! Texts come from jobs. Nesting is bounded, so is what an expansion may produce, and the time it
//! takes grows with what it reads and writes.

mod context;
mod error;
mod evaluate;
mod expand;
mod lexer;
mod mentions;
mod names;
mod operators;
mod parser;
mod syntax;
#[cfg(test)]
mod tests;

pub use context::{Context, Expanded, Status, StepState};
pub use error::{ExpressionError, ExpressionErrorKind};
pub use expand::{
    check, check_condition, condition, expand, expand_text, expand_value, is_dynamic,
};
pub use mentions::{Mention, condition_mentions, mentions};
