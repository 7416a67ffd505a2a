//! Messages of the wire protocol, generated from the `.proto` files in this directory by `UPDATE_GOLDEN=1
//! cargo test -p oci-hooks-system-tests --test all proto`.

#[rustfmt::skip]
#[expect(missing_docs, reason = "generated")]
pub mod nri;
#[rustfmt::skip]
#[expect(missing_docs, reason = "generated")]
pub mod ttrpc;
