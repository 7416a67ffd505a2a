//! The messages on the wire, generated from the `.proto` files beside this one by
//! `UPDATE_GOLDEN=1 cargo test --test proto`.

#[rustfmt::skip]
#[expect(missing_docs, reason = "generated")]
pub mod nri;
#[rustfmt::skip]
#[expect(missing_docs, reason = "generated")]
pub mod ttrpc;
