//! The program `step-runner` on the command line: its output and exit codes.

mod examples;
mod git;
mod recorded;
mod run;
