//! What the Kubernetes hook was seen to do, and where this module differs from it.

mod cases;
mod merges;
mod properties;
