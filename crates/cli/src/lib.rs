//! Code shared by the command-line programs: output, colours, completions, exit codes, man pages. Each program supplies
//! its clap command and its error type ([`exit::CliError`]).
//!
//! Unlike the libraries, this crate prints, reads the environment and chooses exit codes.

pub mod check;
pub mod completions;
pub mod context;
pub mod exit;
pub mod help;
pub mod man;
pub mod mistake;
pub mod style;
pub mod table;
pub mod terminal;
pub mod trace;
