//! The request to cancel a job, whatever the number of its field is.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, bytes, decode_key, skip_field, string};
use prost::{DecodeError, Message};

/// The number of the field in the branch `avonbertoldi/grpc-endpoint` of GitLab's step-runner, of January
/// 2024, where this message was last seen in public.
const ID: u32 = 1;

/// Asks to cancel a job.
///
/// The source of today's message is not public; what the runner's tests show is that it has one text, `id`.
/// So that is the field with the number that it once had, or else the only one that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CancelRequest {
    /// The job; empty if the message does not say it without doubt.
    pub id: String,
}

/// Texts that may be the id, of numbers that are not [`ID`].
#[derive(Default)]
enum Others {
    #[default]
    None,
    One(u32, Vec<u8>),
    Several,
}

impl Message for CancelRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if !self.id.is_empty() {
            string::encode(ID, &self.id, buf);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            ID => string::merge(wire_type, &mut self.id, buf, ctx),
            _ => skip_field(wire_type, number, buf, ctx),
        }
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        let ctx = DecodeContext::default();
        let mut others = Others::default();
        while buf.has_remaining() {
            let (number, wire_type) = decode_key(&mut buf)?;
            if number == ID || wire_type != WireType::LengthDelimited {
                self.merge_field(number, wire_type, &mut buf, ctx.clone())?;
                continue;
            }
            let mut value = Vec::new();
            bytes::merge(wire_type, &mut value, &mut buf, ctx.clone())?;
            others = match others {
                Others::One(known, _) if known != number => Others::Several,
                Others::Several => Others::Several,
                // Of fields that come twice the last one counts.
                Others::None | Others::One(..) => Others::One(number, value),
            };
        }
        if self.id.is_empty()
            && let Others::One(_, value) = others
        {
            self.id = String::from_utf8(value).unwrap_or_default();
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        if self.id.is_empty() { 0 } else { string::encoded_len(ID, &self.id) }
    }

    fn clear(&mut self) {
        self.id.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(fields: &[(u32, &[u8])]) -> String {
        let mut message = Vec::new();
        for (number, value) in fields {
            bytes::encode(*number, &value.to_vec(), &mut message);
        }
        CancelRequest::decode(&message[..]).unwrap().id
    }

    #[test]
    fn the_only_text_is_the_id_whatever_its_number_is() {
        for number in [1, 2, 15, 16, 4711, (1 << 29) - 1] {
            assert_eq!(id(&[(number, b"job")]), "job", "{number}");
            assert_eq!(id(&[(number, b"old"), (number, b"job")]), "job", "{number}");
        }
        assert_eq!(id(&[(2, b"because"), (1, b"job"), (3, b"x")]), "job");
    }

    #[test]
    fn in_doubt_there_is_no_id() {
        assert_eq!(id(&[]), "");
        assert_eq!(id(&[(2, b"a"), (3, b"a")]), "");
        assert_eq!(id(&[(2, b"a"), (3, b"b"), (2, b"c")]), "");
        assert_eq!(id(&[(2, b"\xff")]), "");
        // A number is none.
        assert_eq!(CancelRequest::decode(&[0x10, 5][..]).unwrap().id, "");
        for broken in [&[0x0a, 5, b'a'][..], &[0x0a], &[0x80], &[0x0b, 1]] {
            CancelRequest::decode(broken).unwrap_err();
        }
    }

    #[test]
    fn it_is_sent_as_it_was_once_declared() {
        let request = CancelRequest { id: "7".to_owned() };
        assert_eq!(request.encode_to_vec(), [0x0a, 1, b'7']);
        assert!(CancelRequest::default().encode_to_vec().is_empty());
    }
}
