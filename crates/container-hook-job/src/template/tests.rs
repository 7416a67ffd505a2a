//! Tests of the module against recordings of the Kubernetes hook.

mod cases;
mod merges;
mod properties;
